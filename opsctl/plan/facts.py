"""What read-only probes saw of a host. Everything is optional: None is "unknown", and is shown as unknown.

``opsctl/campaign/probe.py`` fills these; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from opsctl.estimate import Estimate

__all__ = ["Estimate", "HostFacts", "IfDown", "Seen"]


class Seen(StrEnum):
    """What a service was found to be."""

    SERVING = "serving"
    LOADING = "loading"
    DOWN = "down"


@dataclass(frozen=True)
class HostFacts:
    """One host, as probes found it. Mappings are keyed by the service's name in the inventory."""

    host: str
    services: Mapping[str, Seen | None] = field(default_factory=dict)
    """How each service answers; absent or None: unknown."""
    units: Mapping[str, str | None] = field(default_factory=dict)
    """systemd's ActiveState of each service's unit, "not-found" where there is none; absent or None: unknown."""
    loads: Mapping[str, Estimate] = field(default_factory=dict)
    """Start to ready, from loads measured before on this host."""
    stops: Mapping[str, Estimate] = field(default_factory=dict)
    """Stop to GPUs free, measured before on this host."""
    steps: Mapping[str, Estimate] = field(default_factory=dict)
    """Duration of steps by content hash (``opsctl.playbook.content_hash`` of the step), measured before here."""
    dependents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Units that stop with a production service (RequiredBy, BoundBy, ConsistsOf, TriggeredBy); absent: unknown."""
    gpus: int | None = None
    python: str | None = None
    """Version of the serving environment's Python; "" where it does not start."""
    engine_versions: Mapping[str, str] = field(default_factory=dict)
    model_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The served model's config.json by service, where it could be read."""
    state_dir: str = "/var/lib/opsctl"
    holder: str | None = None
    """Who holds the host's lease; "" for nobody."""
    notes: tuple[str, ...] = ()
    """What could not be found out, and why."""


IfDown = Literal["refuse", "restore", "leave"]
"""What a run does where production was found down: refuse it, restore production at the end, or leave it down."""

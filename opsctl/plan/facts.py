"""What read-only probes saw of a host. Everything is optional: None is "unknown", and is shown as unknown.

``opsctl/campaign/preflight.py`` fills these; nothing here knows how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from opsctl.errors import OpsctlError
from opsctl.estimate import Estimate

__all__ = ["Estimate", "HostFacts", "IfDown", "Seen"]


class Seen(StrEnum):
    """What a service was found to be."""

    SERVING = "serving"
    LOADING = "loading"
    DOWN = "down"


@dataclass(frozen=True)
class HostFacts:
    """One host, as the preflight found it. Mappings are keyed by the service's name in the inventory."""

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
    dependents: tuple[str, ...] | None = None
    """Units that stop with production and run now; None: unknown, as are the triggers then."""
    triggers: tuple[str, ...] = ()
    """Units that start production and run now: timers, sockets, paths, and what upholds it."""
    gpus: int | None = None
    engine_version: str | None = None
    """Production's."""
    model_config: Mapping[str, Any] | None = None
    """The served model's config.json, where it could be read."""
    state_dir: str = "/var/lib/opsctl"
    unit_hash: str = ""
    """Of production's unit files as they are on the host."""
    holder: str | None = None
    """Who holds the host's lease; "" for no one."""
    refusals: tuple[OpsctlError, ...] = ()
    """Why a run would be refused now, the most important first."""
    notes: tuple[str, ...] = ()
    """What could not be found out, and why."""
    resumed: Resumed | None = None
    """What an earlier controller of the same run left; None for a new run."""

    def running(self, service: str) -> bool | None:
        """Return whether the unit of a service runs, or is about to; None: unknown."""
        state = self.units.get(service)
        return None if state is None else state not in {"inactive", "failed", "not-found"}


@dataclass(frozen=True)
class Resumed:
    """What an earlier controller of the same run did on a host."""

    as_found: str = "unknown"
    """How production answered before anything was touched."""
    token: int | None = None
    """Of the lease that still holds; None where it does not."""
    done: frozenset[tuple[str, str]] = frozenset()
    """Verified steps, by id and hash."""
    stages: tuple[str, ...] = ()
    """Units of the run's stages that still run."""
    dependents: tuple[str, ...] = ()
    """Units that ran before and stop with production."""
    triggers: tuple[str, ...] = ()
    """Units that ran before and start production."""
    engine_version: str | None = None


IfDown = Literal["refuse", "restore", "leave"]
"""What a run does where production was found down: refuse it, restore production at the end, or leave it down."""

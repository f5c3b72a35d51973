"""How long each phase of a load may stand still before the wait gives up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.estimate import Estimate
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.load.progress import LoadPhase

GENEROUS: Mapping[LoadPhase, float] = {
    # Imports of a cold environment from a network file system.
    LoadPhase.SPAWNED: 15 * 60.0,
    # NCCL's own time-out is 10 minutes: let it speak first.
    LoadPhase.ENGINE_INIT: 20 * 60.0,
    # journald keeps a progress bar until its line ends, so a healthy load can be silent for all of this phase.
    LoadPhase.WEIGHTS: 40 * 60.0,
    # Compilation and graph capture log little; 60 minutes of nothing were a fault (vllm 40988).
    LoadPhase.AFTER_WEIGHTS: 30 * 60.0,
    LoadPhase.HTTP_UP: 5 * 60.0,
    LoadPhase.FIRST_TOKENS: 10 * 60.0,
}
"""Seconds without any movement, for a service that this host never loaded before."""

FACTOR = 3.0
"""A phase may stand still for this many times its longest run so far."""
LEAST = 120.0
"""And never less than this: a page cache that is cold once makes a phase slow, not stuck."""


@dataclass(frozen=True)
class StallLimits:
    """Seconds without movement by phase, and where they come from (shown to the person who waits)."""

    seconds: Mapping[LoadPhase, float]
    source: str
    explicit: bool = False
    """Given by the user: then they hold for a server that logs nothing known, too."""

    @classmethod
    def for_service(cls, service: ResolvedService, loads: Estimate | None = None) -> StallLimits:
        """Return the user's limit, else one from the longest phases of earlier loads, else a generous one."""
        if service.readiness.stall is not None:
            return cls(
                dict.fromkeys(LoadPhase, service.readiness.stall), "readiness.stall of the service", explicit=True
            )
        longest = loads.longest_phases if loads else {}
        if loads is None or not longest:
            return cls(dict(GENEROUS), "no earlier load on this host: generous defaults")
        seconds = {
            phase: max(LEAST, FACTOR * longest[phase.value]) if phase.value in longest else GENEROUS[phase]
            for phase in LoadPhase
        }
        return cls(
            seconds, f"{FACTOR:g} × the longest of {loads.samples} earlier loads on this host, at least {LEAST:g} s"
        )

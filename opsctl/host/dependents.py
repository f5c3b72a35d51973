"""What stops with production, and what starts it: units that a restore must bring back, found over all relations.

``closure`` is pure: it takes a function that reads a unit. Order matters in what it returns: units nearer to production
come first, so that starting them in order starts each after what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opsctl.host.protocol import UnitStatus

STOPPED_WITH = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""Relations, seen from a unit, to those that systemd stops with it. Starting it brings none of them back."""
STARTED_BY = ("TriggeredBy", "UpheldBy")
"""Relations to units that start it by themselves: timers, sockets, paths, and what upholds it."""
_SHARED = (".target", ".slice")


@dataclass(frozen=True)
class Hanging:
    """Production's dependents and triggers. ``dependents`` stop with it; ``triggers`` start it: they stop first.

    ``unstoppable`` start it too, and no campaign may stop those: units that are shared with others (a target that
    upholds it), and such as systemd stops for nobody (RefuseManualStop=).
    """

    dependents: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    unstoppable: tuple[str, ...] = ()


def closure(unit: str, status_of: Callable[[str], UnitStatus], *, wanted: Callable[[UnitStatus], bool]) -> Hanging:
    """Return the dependents of a unit, direct or through others, of which ``wanted`` is true (those that run now)."""
    found: dict[str, UnitStatus] = {}
    triggers: dict[str, UnitStatus] = {}
    level = [status_of(unit)]
    seen = {unit}
    while level:
        reached: list[UnitStatus] = []
        for status in level:
            for name in _fresh(status, STARTED_BY, seen):
                triggers[name] = status_of(name)
            reached += [status_of(name) for name in _fresh(status, STOPPED_WITH, seen)]
        found |= {status.name: status for status in reached}
        level = reached
    running = {name: status for name, status in triggers.items() if wanted(status)}
    stays = {name for name, status in running.items() if name.endswith(_SHARED) or not stoppable(status)}
    return Hanging(
        dependents=tuple(name for name, status in found.items() if wanted(status)),
        triggers=tuple(name for name in running if name not in stays),
        unstoppable=tuple(name for name in running if name in stays),
    )


def stoppable(status: UnitStatus) -> bool:
    """Return whether systemd stops a unit when it is asked to: not with RefuseManualStop=."""
    return status.properties.get("CanStop") is not False


def runs(status: UnitStatus) -> bool:
    """Return whether a unit is up, or on its way up."""
    return status.active_state in {"active", "reloading", "activating"}


def _fresh(status: UnitStatus, relations: Iterable[str], seen: set[str]) -> list[str]:
    """Return the units of some relations that were not met before, by name, and remember them."""
    named: set[str] = set()
    for relation in relations:
        value = status.properties.get(relation)
        if isinstance(value, (list, tuple)):
            named |= {str(name) for name in value}
    fresh = sorted(named - seen)
    seen.update(fresh)
    return fresh

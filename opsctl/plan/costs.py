"""What a plan costs production and its users: how long it is down, what they notice, what stands in the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from opsctl.plan.actions import (
    Action,
    AwaitReady,
    Downtime,
    Gate,
    LeaveDown,
    PutIn,
    Restore,
    RunStep,
    Start,
    Stop,
    TakeOut,
)
from opsctl.plan.facts import Estimate, HostFacts, IfDown, Seen
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration


def downtime_of(
    actions: Sequence[Action], limit: float, *, already_down: AbstractSet[str] = frozenset()
) -> Downtime | None:
    """Return how long production does not all serve in a plan, from measured durations; None where it always does.

    ``limit`` is the playbook's own, in seconds: it bounds all phases together, and the restore comes after.
    ``already_down`` are the production services that were found down.
    """
    down = set(already_down)
    ever = bool(already_down)
    parts: list[Estimate] = []
    unknown: dict[str, None] = {}
    phases = restore = 0.0
    for action in actions:
        if isinstance(action, Stop) and action.production:
            down.add(action.service)
            ever = True
        if down:
            what, expected, most = _cost(action)
            if isinstance(action, Restore):
                restore += most
            else:
                phases += most
            if expected is not None:
                parts.append(expected)
            elif what:
                unknown[what] = None
        if isinstance(action, AwaitReady | Restore):
            down.discard(action.service)
    if not ever:
        return None
    return Downtime(_total(parts), tuple(unknown), min(phases, limit) + restore)


def notices_of(
    actions: Sequence[Action],
    production: Sequence[ResolvedService],
    downtime: Downtime | None,
    facts: HostFacts,
) -> tuple[str, ...]:
    """Return what production's users notice, a sentence a line."""
    if downtime is None:
        load = _load_on_production(actions)
        return (f"Production serves all the time; it also answers the requests of this run{load}.",)
    lines = [
        f"{service.model} at {service.url} does not answer for {say_downtime(downtime)}." for service in production
    ]
    taken = {action.service: action for action in actions if isinstance(action, TakeOut)}
    for service in production:
        if service.name in taken:
            back = any(isinstance(action, PutIn) and action.service == service.name for action in actions)
            after = "put back once it is verified" if back else "NOT put back: the inventory has no `traffic: in`"
            lines.append(f"{service.name} leaves the load balancer first, and is {after}.")
        elif service.stop.drain:
            limit = format_duration(service.stop.drain)
            lines.append(f"Running requests get {limit} to end; new ones are refused while it is down.")
        else:
            lines.append("Running requests are cut off (no drain, no `traffic`), new ones are refused.")
        dependents = facts.dependents.get(service.name)
        if dependents:
            lines.append(f"Stops with {service.unit} and is brought back: {', '.join(dependents)}.")
    if any(isinstance(action, LeaveDown) for action in actions):
        lines.append("Production was down and stays down (--if-down leave).")
    return tuple(lines)


def say_downtime(downtime: Downtime) -> str:
    """Return a downtime in words: measured parts, what is unknown, and the limit."""
    most = f"at most {format_duration(downtime.most)} by the limits"
    if downtime.expected is not None:
        return f"about {say_estimate(downtime.expected)} ({most})"
    known = (
        f"more than {format_duration(downtime.measured.seconds)}" if downtime.measured.seconds else "an unknown time"
    )
    return f"{known} ({most}; never measured here: {', '.join(downtime.unknown)})"


def say_estimate(estimate: Estimate) -> str:
    """Return a measured duration with its spread and the number of samples behind it."""
    return str(estimate)


def found_lines(facts: HostFacts, production: Sequence[ResolvedService]) -> tuple[str, ...]:
    """Return what the probes saw, a line each; unknown is said as unknown."""
    lines = []
    for service in production:
        seen = facts.services.get(service.name)
        version = facts.engine_versions.get(service.name)
        shown = f" ({service.engine} {version})" if version else ""
        unit = facts.units.get(service.name) or "unknown"
        lines.append(f"production {service.name}: {seen or 'unknown'}{shown}; {service.unit} {unit}")
    lines.append(f"GPUs: {'unknown' if facts.gpus is None else facts.gpus}")
    holder = "unknown" if facts.holder is None else facts.holder or "nobody"
    lines.append(f"lease: {holder}")
    return tuple(lines)


def stops_of(
    facts: HostFacts, production: Sequence[ResolvedService], wanted: Sequence[ResolvedService], if_down: IfDown
) -> tuple[str, ...]:
    """Return why a run would be refused as things are."""
    lines = []
    if facts.holder:
        lines.append(f"the host is held by {facts.holder} (exit 4)")
    for service in production:
        seen = facts.services.get(service.name)
        if seen in {Seen.DOWN, Seen.LOADING} and if_down == "refuse":
            lines.append(
                f"production {service.name} is {seen} (exit 2); mend it, or say --if-down restore or --if-down leave"
            )
    needed = {one.name: one for one in (*production, *wanted) if not one.is_variant}
    lines += [
        f"the host has no unit {service.unit} (service {service.name}; exit 2)"
        for service in needed.values()
        if facts.units.get(service.name) == "not-found"
    ]
    if facts.python == "":
        lines.append("the inventory's `python` does not start on the host (exit 2)")
    return tuple(lines)


def unknown_lines(facts: HostFacts, production: Sequence[ResolvedService]) -> tuple[str, ...]:
    """Return what could not be found out."""
    lines = [f"what stops with {service.unit}" for service in production if service.name not in facts.dependents]
    if facts.python is None:
        lines.append("whether the serving environment's Python starts")
    return (*lines, *facts.notes)


def _cost(action: Action) -> tuple[str, Estimate | None, float]:
    """Return what takes time in an action ("" for nothing worth naming), measured before, and its limit."""
    if isinstance(action, Stop):
        return f"stop of {action.unit}", action.expected, action.limit
    if isinstance(action, Gate):
        # Stops are measured until the GPUs are free, so the gate has no measurement of its own.
        return "", None, action.limit
    if isinstance(action, AwaitReady):
        return f"load of {action.service}", action.expected, action.limit * action.attempts
    if isinstance(action, Restore):
        return f"load of {action.service}", action.expected, action.limit
    if isinstance(action, RunStep):
        return f"step {action.step}", action.expected, action.limit
    return "", None, 0.0


def _total(parts: Sequence[Estimate]) -> Estimate:
    return Estimate(
        math.fsum(part.seconds for part in parts),
        math.sqrt(math.fsum(part.spread**2 for part in parts)),
        min((part.samples for part in parts), default=0),
    )


def _load_on_production(actions: Sequence[Action]) -> str:
    most = 0.0
    for action in actions:
        if isinstance(action, Start):
            break
        if isinstance(action, RunStep):
            values = [cell.axes.get("concurrency", 0) for cell in action.cells or ()]
            most = max([most, *(float(value) for value in values if isinstance(value, int | float))])
    return f", up to {most:g} at once" if most else ""

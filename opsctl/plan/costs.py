"""What a plan costs production and its users: how long it is down, and what they notice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opsctl.plan.actions import Action, AwaitReady, Clear, Gate, LeaveDown, Measure, Start, Stop, TrafficIn, TrafficOut
from opsctl.plan.facts import Estimate, HostFacts
from opsctl.plan.hostplan import Downtime
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration


def downtime_of(
    actions: Sequence[Action], production: ResolvedService, limit: float, *, already_down: bool
) -> Downtime | None:
    """Return how long production does not serve in a plan, from measured durations; None where it always does.

    ``limit`` is the playbook's own, in seconds: it bounds all phases together, and the restore comes after.
    """
    down = ever = already_down
    parts: list[Estimate] = []
    unknown: dict[str, None] = {}
    phases = restore = 0.0
    for action in actions:
        if isinstance(action, Stop) and action.service == production:
            down = ever = True
        if down:
            what, most = _cost(action)
            if action.phase is None and isinstance(action, AwaitReady):
                restore += most
            else:
                phases += most
            if action.forecast is not None and what:
                parts.append(action.forecast)
            elif what:
                unknown[what] = None
        if isinstance(action, AwaitReady) and action.service == production:
            down = False
    if not ever:
        return None
    return Downtime(_total(parts), tuple(unknown), min(phases, limit) + restore)


def notices_of(
    actions: Sequence[Action], production: ResolvedService, downtime: Downtime | None, facts: HostFacts
) -> tuple[str, ...]:
    """Return what production's users notice, a sentence a line."""
    if downtime is None:
        load = _load_on_production(actions)
        return (f"Production serves all the time; it also answers the requests of this run{load}.",)
    lines = [f"{production.model} at {production.url} does not answer for {say_downtime(downtime)}."]
    if any(isinstance(action, TrafficOut) for action in actions):
        back = any(isinstance(action, TrafficIn) for action in actions)
        after = "put back once it is verified" if back else "NOT put back: the inventory has no `traffic: in`"
        lines.append(f"{production.name} leaves the load balancer first, and is {after}.")
    elif production.stop.drain:
        limit = format_duration(production.stop.drain)
        lines.append(f"Running requests get {limit} to end; new ones are refused while it is down.")
    else:
        lines.append("Running requests are cut off (no drain, no `traffic`), new ones are refused.")
    if facts.dependents:
        lines.append(f"Stops with {production.unit} and is brought back: {', '.join(facts.dependents)}.")
    if facts.triggers:
        triggers = ", ".join(facts.triggers)
        lines.append(f"Starts {production.unit}, so is stopped first and started again at the end: {triggers}.")
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


def found_lines(facts: HostFacts, production: ResolvedService) -> tuple[str, ...]:
    """Return what the probes saw, a line each; unknown is said as unknown."""
    seen = facts.services.get(production.name)
    version = f" ({production.engine} {facts.engine_version})" if facts.engine_version else ""
    unit = facts.units.get(production.name) or "unknown"
    holder = "unknown" if facts.holder is None else facts.holder or "nobody"
    return (
        f"production {production.name}: {seen or 'unknown'}{version}; {production.unit} {unit}",
        f"GPUs: {'unknown' if facts.gpus is None else facts.gpus}",
        f"lease: {holder}",
    )


def unknown_lines(facts: HostFacts, production: ResolvedService) -> tuple[str, ...]:
    """Return what could not be found out."""
    lines = [f"what stops with {production.unit}, and what starts it"] if facts.dependents is None else []
    return (*lines, *facts.notes)


def _cost(action: Action) -> tuple[str, float]:
    """Return what takes time in an action ("" for nothing worth naming), and its limit in seconds."""
    if isinstance(action, Stop):
        return f"stop of {action.unit}", action.limit
    if isinstance(action, Clear):
        return f"stop of {action.ends}" if action.ends else "", action.limit if action.ends else 0.0
    if isinstance(action, Gate):
        # Stops are measured until the GPUs are free, so the gate has no measurement of its own.
        return "", action.limit
    if isinstance(action, AwaitReady):
        return f"load of {action.service.name}", action.limit * action.attempts
    if isinstance(action, Measure):
        return f"step {action.step}", action.limit
    return "", 0.0


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
        if isinstance(action, Measure):
            values = [cell.axes.get("concurrency", 0) for cell in action.planned]
            most = max([most, *(float(value) for value in values if isinstance(value, int | float))])
    return f", up to {most:g} at once" if most else ""

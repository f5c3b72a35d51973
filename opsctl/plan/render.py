"""A plan for people (lines with a style each) and for programs (one JSON document)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from opsctl.errors import ExitCode, OpsctlError
from opsctl.plan.actions import Action, AwaitReady, Branch, Measure
from opsctl.plan.costs import say_estimate
from opsctl.plan.facts import Estimate
from opsctl.plan.hostplan import HostPlan, Plan
from opsctl.quantities import counted, format_duration


class Line(NamedTuple):
    """One line of the rendered plan. ``style`` is a Rich style, or ""; ``hang`` the indent of what wraps."""

    style: str
    text: str
    hang: int = 0


def lines_of(plan: Plan, *, cells: bool = False) -> tuple[Line, ...]:
    """Return the plan as lines; with ``cells``, every cell by its id."""
    lines = [Line("bold", f"{plan.playbook}: {counted(len(plan.hosts), 'host')}, {counted(plan.loads, 'weight load')}")]
    if plan.description:
        lines.append(Line("dim", plan.description))
    for host in plan.hosts:
        lines += _host_lines(host, cells=cells)
    if plan.saving is not None:
        order = " → ".join(dict.fromkeys(plan.saving.order))
        why = "; the rounds interleave on purpose" if plan.saving.because_of_rounds else ""
        lines += [
            Line("", ""),
            Line(
                "yellow",
                f"Another order needs {counted(plan.saving.loads, 'load')} a host instead of "
                f"{plan.saving.instead_of}: {order}{why}.",
            ),
        ]
    lines += [Line("yellow", note) for note in plan.notes]
    return tuple(lines)


def document(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values for JSON. Keys: playbook, description, loads, hosts, saving, notes."""
    return {
        "playbook": plan.playbook,
        "description": plan.description,
        "loads": plan.loads,
        "hosts": [_host_document(host) for host in plan.hosts],
        "saving": None if plan.saving is None else dataclasses.asdict(plan.saving),
        "notes": list(plan.notes),
    }


def say_refusal(error: OpsctlError) -> str:
    """Return in one line why a run would be refused, with its exit code."""
    seen = f": {error.seen}" if error.seen and error.seen not in error.message else ""
    code = ExitCode.HELD if error.exit_code is ExitCode.HELD else ExitCode.UNFIT
    return f"{error.message}{seen} (exit {int(code)})" + (f"; {error.hint}" if error.hint else "")


def _host_document(host: HostPlan) -> dict[str, Any]:
    downtime = None
    if host.downtime is not None:
        downtime = {
            "expected": _estimate(host.downtime.expected),
            "measured": _estimate(host.downtime.measured),
            "unknown": list(host.downtime.unknown),
            "most_seconds": host.downtime.most,
        }
    return {
        "host": host.host,
        "loads": host.loads,
        "downtime": downtime,
        "found": list(host.found),
        "notices": list(host.notices),
        "stops": [say_refusal(error) for error in host.refusals],
        "unknown": list(host.unknown),
        "actions": [_action_document(host, action) for action in host.actions],
    }


def _action_document(host: HostPlan, action: Action) -> dict[str, Any]:
    phase = host.phases[action.phase] if action.phase is not None else None
    said: dict[str, Any] = {
        "id": action.id,
        "action": action.kind,
        "branch": action.branch,
        "phase": phase.name if phase else "",
        "round": phase.round if phase else 1,
        "does": action.describe(),
        "needs": action.needs,
        "proof": action.proof,
        "limit_seconds": action.limit or None,
        "expected": _estimate(action.forecast),
    }
    if isinstance(action, Measure):
        cells = action.cells
        said["step"] = action.step
        said["cells"] = None if cells is None else [{"id": cell.id, "axes": cell.axes} for cell in cells]
    return said


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {"seconds": estimate.seconds, "spread": estimate.spread, "samples": estimate.samples}


def _host_lines(host: HostPlan, *, cells: bool) -> Iterable[Line]:
    yield Line("", "")
    total = sum(len(step.planned) for step in host.steps)
    counts = f"{counted(len(host.steps), 'step')}, {counted(total, 'cell')}, {counted(host.loads, 'weight load')}"
    yield Line("bold", f"{host.host}: {counts}")
    for found in host.found:
        yield Line("dim", f"  seen    {found}", 10)
    for unknown in host.unknown:
        yield Line("dim", f"  unknown {unknown}", 10)
    title = None
    for number, action in enumerate(host.actions, start=1):
        heading = _heading(host, action)
        if heading != title:
            title = heading
            yield Line("cyan", f"  {heading}")
        yield Line("dim" if action.branch is not Branch.MAIN else "", f"  {number:>3}  {_say(action)}", 7)
        if cells and isinstance(action, Measure):
            for cell in action.planned:
                yield Line("dim", f"         {cell.id}")
    yield Line("cyan", "  what production's users notice")
    for notice in host.notices:
        yield Line("", f"       {notice}", 7)
    for refusal in host.refusals:
        yield Line("red", f"  a run would be refused now: {say_refusal(refusal)}", 4)


def _heading(host: HostPlan, action: Action) -> str:
    if action.phase is not None:
        phase = host.phases[action.phase]
        rounds = f", round {phase.round} of {host.phases[-1].round}" if host.phases[-1].round > 1 else ""
        retry = ", when the load dies of something transient" if action.branch is Branch.RETRY else ""
        return f"phase {phase.name}{rounds}{retry}"
    if action.branch is Branch.RESTORE:
        return "when anything failed, instead, until it does"
    if action in host.setup:
        return "first"
    return "then" if action in host.give_back else "then, once that is proven"


def _say(action: Action) -> str:
    times = []
    if isinstance(action, AwaitReady | Measure) or action.forecast is not None:
        times.append("unknown time" if action.forecast is None else f"about {say_estimate(action.forecast)}")
    if action.limit:
        times.append(f"at most {format_duration(action.limit)}")
    if isinstance(action, AwaitReady) and action.attempts > 1:
        times.append(counted(action.attempts, "attempt"))
    sentence = action.describe()
    return f"{sentence[:-1]}; {', '.join(times)}." if times else sentence

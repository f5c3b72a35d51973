"""A plan for people (lines with a style each) and for programs (one JSON document)."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from opsctl.plan.actions import (
    Action,
    Arm,
    AwaitReady,
    Gate,
    HostPlan,
    InstallVariant,
    LeaveDown,
    Plan,
    PutIn,
    Release,
    RemoveVariant,
    Restore,
    RunStep,
    Start,
    Stop,
    TakeOut,
    Verify,
)
from opsctl.plan.costs import say_estimate
from opsctl.plan.facts import Estimate
from opsctl.quantities import format_duration
from opsctl.results import Cell


class Line(NamedTuple):
    """One line of the picture. ``style`` is a Rich style, or ""; ``hang`` the indent where a narrow screen wraps it."""

    style: str
    text: str
    hang: int = 0


def lines_of(plan: Plan, *, cells: bool = False) -> tuple[Line, ...]:
    """Return the plan as lines; with ``cells``, every cell by its id."""
    lines = [
        Line("bold", f"{plan.playbook}: {_counted(len(plan.hosts), 'host')}, {_counted(plan.loads, 'weight load')}")
    ]
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
                f"Another order needs {_counted(plan.saving.loads, 'load')} a host instead of "
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
        "stops": list(host.stops),
        "unknown": list(host.unknown),
        "actions": [_action_document(action) for action in host.actions],
    }


def _action_document(action: Action) -> dict[str, Any]:
    said: dict[str, Any] = {"action": action.kind}
    for field in dataclasses.fields(action):
        value = getattr(action, field.name)
        if isinstance(value, Estimate):
            value = _estimate(value)
        elif field.name == "cells" and value is not None:
            value = [{"id": cell.id, "axes": cell.axes} for cell in value]
        said[field.name] = list(value) if isinstance(value, tuple) else value
    return said


def _estimate(estimate: Estimate | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {"seconds": estimate.seconds, "spread": estimate.spread, "samples": estimate.samples}


def _host_lines(host: HostPlan, *, cells: bool) -> Iterable[Line]:
    yield Line("", "")
    total = sum(len(step.cells or ()) for step in host.steps)
    counts = f"{_counted(len(host.steps), 'step')}, {_counted(total, 'cell')}, {_counted(host.loads, 'weight load')}"
    yield Line("bold", f"{host.host}: {counts}")
    for found in host.found:
        yield Line("dim", f"  seen    {found}", 10)
    for unknown in host.unknown:
        yield Line("dim", f"  unknown {unknown}", 10)
    title = None
    for number, action in enumerate(host.actions, start=1):
        heading = _heading(action, rounds=max(one.round for one in host.actions))
        if heading != title:
            title = heading
            yield Line("cyan", f"  {heading}")
        yield Line("", f"  {number:>3}  {_LABELS[type(action)]:<12}{_say(action)}", 19)
        if cells and isinstance(action, RunStep):
            for cell in action.cells or ():
                yield Line("dim", f"       {'':<12}{cell.id}")
    yield Line("cyan", "  what production's users notice")
    for notice in host.notices:
        yield Line("", f"       {notice}", 7)
    for stop in host.stops:
        yield Line("red", f"  a run would be refused now: {stop}", 4)


def _heading(action: Action, *, rounds: int) -> str:
    if not action.phase:
        return "first" if isinstance(action, Arm) else "then, whatever happened"
    return f"phase {action.phase}" + (f", round {action.round} of {rounds}" if rounds > 1 else "")


def _say(action: Action) -> str:
    return _WORDS[type(action)](action)


def _say_step(action: RunStep) -> str:
    if action.cells is None:
        planned = f"cells unknown: {action.unknown_because}"
    else:
        planned = f"{_counted(len(action.cells), 'cell')}{_extent(action.cells)}"
    return f"{action.step}: {planned}; {_expected(action.expected)}, at most {format_duration(action.limit)}"


def _extent(cells: tuple[Cell, ...]) -> str:
    if not cells:
        return ""
    return f" ({cells[0].id})" if len(cells) == 1 else f" ({cells[0].id} … {cells[-1].id})"


def _say_restore(action: Restore) -> str:
    dependents = "" if not action.dependents else f" and {', '.join(action.dependents)}"
    return f"{action.unit}{dependents}; {_expected(action.expected)}; tried until it serves"


def _expected(estimate: Estimate | None) -> str:
    return "unknown time" if estimate is None else f"about {say_estimate(estimate)}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


_LABELS: Mapping[type[Action], str] = {
    Arm: "arm",
    TakeOut: "take out",
    Stop: "stop",
    Gate: "gate",
    InstallVariant: "install",
    Start: "start",
    AwaitReady: "await ready",
    RunStep: "measure",
    Restore: "restore",
    LeaveDown: "leave down",
    Verify: "verify",
    PutIn: "put in",
    RemoveVariant: "remove",
    Release: "release",
}
_WORDS: Mapping[type[Action], Callable[[Any], str]] = {
    Arm: lambda a: f"lease of {format_duration(a.ttl)}, renewed; its guard restores {', '.join(a.restores)}",
    TakeOut: lambda a: f"{a.service}: {shlex.join(a.argv)}",
    Stop: lambda a: f"{a.unit}; {_expected(a.expected)}, at most {format_duration(a.limit)}",
    Gate: lambda a: f"GPUs free, stable over samples; at most {format_duration(a.limit)}",
    InstallVariant: lambda a: f"{a.unit}, derived from {a.of} as it runs now; in /run, gone at a reboot",
    Start: lambda a: a.unit,
    AwaitReady: lambda a: (
        f"{a.service}: {_counted(a.completions, 'completion')} in a row; {_expected(a.expected)}, "
        f"at most {format_duration(a.limit)}, {_counted(a.attempts, 'attempt')}"
    ),
    RunStep: _say_step,
    Restore: _say_restore,
    LeaveDown: lambda a: f"{a.service} was down and stays so",
    Verify: lambda a: f"{a.service}: {_counted(a.completions, 'completion')} in a row",
    PutIn: lambda a: f"{a.service}: {shlex.join(a.argv)}",
    RemoveVariant: lambda a: a.unit,
    Release: lambda _: "the lease is closed; only a verified restore closes it",
}

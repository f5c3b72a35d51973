"""A run as rich text for the terminal, from a RunRecord: for the live view and for ``opsctl status``.

Readable in 80 columns and without colour: each state has a sign and a word of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from opsctl.clock import instant
from opsctl.production import production_words
from opsctl.quantities import format_duration
from opsctl.record import PhaseRecord, ProductionRecord, RunRecord, StepRecord
from opsctl.results import State

SIGNS = {
    State.PENDING: ("·", "dim"),
    State.RUNNING: ("▶", "bold cyan"),
    State.VERIFYING: ("▷", "cyan"),
    State.VERIFIED: ("✔", "green"),
    State.FAILED: ("✘", "bold red"),
    State.INCONCLUSIVE: ("?", "yellow"),
    State.SKIPPED: ("–", "dim"),
}
_TONES = {"good": "green", "warn": "yellow", "bad": "bold red"}
_OUTCOME_STYLE = {"verified": "green", "running": "cyan", "inconclusive": "yellow"}


def elapsed(started: str | None, ended: str | None, *, at: datetime | None = None) -> str:
    """Return how long something took, or has taken so far; "" when it has not begun."""
    if started is None:
        return ""
    end = datetime.fromisoformat(ended) if ended else at or instant()
    return format_duration(max(0.0, (end - datetime.fromisoformat(started)).total_seconds()))


def draw(record: RunRecord, progress: Mapping[str, str], leases: Mapping[str, str]) -> RenderableType:
    """Return the run's view model.

    ``progress`` holds, by host, the ephemeral line of what is at work; ``leases`` what is known of the lease.
    """
    title = Text()
    title.append(record.playbook, style="bold")
    title.append(f"  {record.run}  ", style="dim")
    title.append(record.outcome, style=_OUTCOME_STYLE.get(record.outcome, "bold red"))
    title.append(f"  {elapsed(record.started, record.ended)}", style="dim")
    parts: list[RenderableType] = [title]
    for production in record.production:
        parts.append(_host_line(production, leases.get(production.host, "")))
        parts.append(_phases([phase for phase in record.phases if phase.host == production.host]))
        if action := action_at_work(record, production.host):
            parts.append(action)
        if line := progress.get(production.host):
            parts.append(Text(f"  {line}", style="cyan", overflow="ellipsis", no_wrap=True))
    if record.reason:
        parts.append(Text(record.reason, style="yellow" if record.exit_code in {0, 5} else "red"))
    return Group(*parts)


def action_at_work(record: RunRecord, host: str) -> Text | None:
    """Return the line of the action that a host is at, by its place in the plan; None where it is at none."""
    last = max((action.plan for action in record.actions if action.host == host), default=0)
    actions = [action for action in record.actions if action.host == host and action.plan == last]
    for place, action in enumerate(actions, start=1):
        if action.state is State.RUNNING:
            line = Text(f"  action {place} of {len(actions)}: ", style="dim", overflow="ellipsis", no_wrap=True)
            line.append(action.sentence)
            line.append(f"  {elapsed(action.started, action.ended)}", style="dim")
            return line
    return None


def action_table(record: RunRecord) -> Table:
    """Return every action of a run with its state and, where it is not verified, the reason."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "host", "action", "state", "took", "what"):
        table.add_column(heading, overflow="fold")
    for action in record.actions:
        sign, style = SIGNS[action.state]
        took = elapsed(action.started, action.ended) if action.ended else ""
        words = f"{action.sentence} {action.reason}".strip()
        table.add_row(
            Text(sign, style=style), action.host, action.id, Text(action.state, style=style), took, Text(words)
        )
    return table


def _host_line(production: ProductionRecord, lease: str) -> Text:
    words, tone = production_words(production)
    line = Text()
    line.append(f"{production.host}", style="bold")
    line.append("  production ")
    line.append(words, style=_TONES[tone])
    if lease:
        line.append(f"  lease {lease}", style="dim")
    return line


def _phases(phases: list[PhaseRecord]) -> Table:
    table = Table.grid(padding=(0, 1), expand=False)
    for column in ({"width": 1}, {"overflow": "fold"}, {"overflow": "fold"}, {"justify": "right", "no_wrap": True}):
        table.add_column(**column)
    rounds = max((phase.round for phase in phases), default=1)
    for phase in phases:
        sign, style = SIGNS[phase.state]
        name = f"{phase.name} (round {phase.round})" if rounds > 1 else phase.name
        table.add_row(
            Text(sign, style=style),
            Text(name, style="bold"),
            Text(f"{phase.serve} serves", style="dim"),
            Text(elapsed(phase.started, phase.ended), style="dim"),
        )
        for step in phase.steps:
            table.add_row("", *_step_row(step))
        if phase.reason and phase.state.final and phase.state is not State.VERIFIED:
            table.add_row("", Text(phase.reason, style=style), "", "")
    return table


def _step_row(step: StepRecord) -> tuple[Text, Text, Text]:
    sign, style = SIGNS[step.state]
    label = Text(f"{sign} ", style=style)
    label.append(step.name, style="" if step.state is not State.SKIPPED else "dim")
    return label, _cells(step), Text(elapsed(step.started, step.ended), style="dim")


def _cells(step: StepRecord) -> Text:
    cells = step.result.cells if step.result else ()
    if step.result and step.result.apart:
        return Text(step.result.reason, style="dim")
    text = Text(f"{step.state}", style=SIGNS[step.state][1])
    if step.state in {State.RUNNING, State.VERIFYING}:
        measured = sum(cell.state is not State.PENDING for cell in cells)
        text.append(f" {measured}/{len(cells)} cells measured", style="dim")
    else:
        verified = sum(cell.state is State.VERIFIED for cell in cells)
        text.append(f" {verified}/{len(step.result.applying) if step.result else 0} cells", style="dim")
    if step.result and step.result.reason and step.state is not State.VERIFIED:
        text.append(f": {step.result.reason}", style="dim")
    return text


def cell_table(record: RunRecord) -> Table:
    """Return every cell of a run with its state and, where it is not verified, the reason."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "step", "cell", "state", "reason"):
        table.add_column(heading, overflow="fold")
    for phase in record.phases:
        for step in phase.steps:
            for cell in step.result.cells if step.result else ():
                sign, style = SIGNS[cell.state]
                table.add_row(
                    Text(sign, style=style), step.id, cell.id, Text(cell.state, style=style), Text(cell.reason)
                )
    return table

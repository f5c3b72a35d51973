"""A stage that runs on this machine, as `opsctl bench` shows it: what it is at, then its tables and its verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from opsctl.report import document
from opsctl.report.sections.measured import cell_table, result_tables
from opsctl.results import State, StepResult
from opsctl.stages import STAGES
from opsctl.stages.base import StageContext
from opsctl.stages.local_run import run_here
from opsctl.stages.rendering import Column, Rendering
from opsctl.stages.vllm_format import vllm_document

if TYPE_CHECKING:
    from rich.status import Status

_WIDTH = 160  # columns, where output is no terminal
_PLAIN = Rendering("", "", (Column("Cell", axes=("id",)),))


def watch(
    stage: str, options: Any, context: StageContext, console: Console, *, python: str | None, quiet: bool
) -> StepResult:
    """Run a stage here, with what it is at on the console. Raises StageError."""
    with console.status(f"{stage}: starting") as status:

        def progress(record: Mapping[str, Any]) -> None:
            _say(record, stage, status, console, quiet=quiet)

        result = run_here(stage, options, context, python=python, progress=progress)
    if not quiet:
        console.print(f"results: {Path(context.folder)}", style="dim", highlight=False)
    return result


def _say(record: Mapping[str, Any], stage: str, status: Status, console: Console, *, quiet: bool) -> None:
    if record.get("record") == "progress" and record.get("of"):
        status.update(f"{stage}: {record['text']} ({record['done']:g} of {record['of']:g})")
    elif record.get("record") == "cell" and record.get("state") == "failed" and not quiet:
        console.print(f"{record['id']}: {record['reason']}", style="red", highlight=False, markup=False)


def show(result: StepResult, console: Console) -> None:
    """Print the tables of a result, what was found and advised, and the verdict last."""
    if not console.is_terminal:
        console.width = _WIDTH
    stage = STAGES[result.stage]
    shown = stage.rendering or _PLAIN
    tables = [cell_table(shown, result.cells, caption=shown.title or result.stage), *result_tables(stage, result)]
    for each in tables:
        console.print(_rich(each))
    if stage.rendering is None:
        for cell in result.cells:
            for figure in cell.figures:
                console.print(f"{cell.id}: {figure.name} {figure.value:g} {figure.unit}", highlight=False, markup=False)
    skipped = dict.fromkeys(cell.reason for cell in result.cells if cell.state is State.SKIPPED and cell.reason)
    said = [f"skipped: {reason}" for reason in skipped]
    said += [f"finding: {line}" for line in result.detail.get("findings") or ()]
    said += [f"advice: {line}" for line in (result.detail.get("advice") or {}).get("lines", ())]
    for line in said:
        console.print(line, markup=False, highlight=False)
    colour = {State.VERIFIED: "green", State.FAILED: "red"}.get(result.state, "yellow")
    console.print(f"[{colour}]{result.state.value}[/]: ", end="", highlight=False)
    console.print(result.reason, markup=False, highlight=False)


def _rich(each: document.Table) -> Table:
    table = Table(title=each.caption, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, head in enumerate(each.head):
        justify = "right" if place in each.numeric else "left"
        table.add_column(head, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in each.rows:
        table.add_row(*(item if isinstance(item, str) else item.text for item in row))
    return table


def vllm_json(result: StepResult) -> str:
    """Return ``vllm bench serve``'s keys: one document a cell, alone where there is one."""
    documents = [vllm_document(cell) for cell in result.cells if cell.figures]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=1)

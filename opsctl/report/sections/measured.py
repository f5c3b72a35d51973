"""What the measuring stages found: a section a stage, as the stage says that its cells are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opsctl.quantities import format_size
from opsctl.report import charts
from opsctl.report.document import Block, Inline, Mark, Prose, Section, Table, table
from opsctl.report.numbers import ABSENT, amount, digits, share, with_spread
from opsctl.report.reading import Material, Placed
from opsctl.report.sections.overview import cell_state
from opsctl.results import Cell, StepResult
from opsctl.stages import STAGES
from opsctl.stages.base import Stage
from opsctl.stages.rendering import Column, Rendering

STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99")


def sections(material: Material) -> list[Section]:
    """Return a section of each stage that says how its cells are shown, in the registry's order."""
    return [
        _section(material, stage, stage.rendering, placed)
        for stage in STAGES.values()
        if stage.rendering is not None and (placed := material.cells(stage.name))
    ]


def _section(material: Material, stage: Stage, shown: Rendering, placed: Sequence[Placed]) -> Section:
    blocks: list[Block] = [chart for hint in shown.charts if (chart := charts.lines(placed, hint)) is not None]
    for place in dict.fromkeys(item.place for item in placed):
        mine = [item for item in placed if item.place == place]
        blocks.append(_step_table(shown, mine))
        if shown.statistics:
            blocks.append(_every_statistic(shown.statistics, mine))
    for place, result in material.results():
        if result.stage == stage.name:
            blocks += result_tables(stage, result, place)
    return Section(stage.name, shown.title, tuple(blocks), short=shown.short)


def _step_table(shown: Rendering, placed: Sequence[Placed]) -> Block:
    first = placed[0]
    asked = first.step.options
    told = ", ".join(f"{key} {asked[key]}" for key in shown.told if key in asked)
    profiled = " Under a profiler: slow numbers, kept out of the history." if first.profiled else ""
    return cell_table(
        shown,
        [item.cell for item in placed],
        caption=f"{first.phase.serve}, {first.place}" + (f" ({told})" if told else ""),
        note=f"{shown.note}{profiled}",
    )


def cell_table(shown: Rendering, cells: Sequence[Cell], *, caption: str, note: str = "") -> Table:
    """Return the table of a step's cells: what tells them apart, their states, their figures."""
    named = {axis for column in shown.columns for axis in column.axes}
    apart = [column for column in shown.columns if not column.figure]
    figures = [column for column in shown.columns if column.figure]
    return table(
        (*(column.head for column in apart), "State", *(column.head for column in figures)),
        [
            (
                *(_axes(column, cell, named) for column in apart),
                cell_state(cell),
                *(_figure(column, cell) for column in figures),
            )
            for cell in cells
        ],
        numeric=range(len(apart) + 1, len(apart) + 1 + len(figures)),
        caption=caption,
        note=note,
    )


def _axes(column: Column, cell: Cell, named: set[str]) -> Inline:
    if column.axes == ("id",):
        return Mark(cell.id, "code")
    if not column.axes:
        return ", ".join(f"{name}={value}" for name, value in cell.axes.items() if name not in named) or ABSENT
    values = [cell.axes.get(name) for name in column.axes]
    if column.form == "size":
        return format_size(values[0]) if isinstance(values[0], int | float) else ABSENT
    return " × ".join(ABSENT if value is None else str(value) for value in values)


def _figure(column: Column, cell: Cell) -> str:
    found = cell.figure(column.figure)
    if found is None:
        return ABSENT
    if column.form == "share":
        return share(found.value)
    if column.form == "exponent":
        return f"{found.value:.1e}"
    return digits(found.value) if column.form == "plain" else with_spread(found)


def _every_statistic(names: Sequence[str], placed: Sequence[Placed]) -> Block:
    rows: list[tuple[Inline, ...]] = [
        (
            Mark(item.cell.id, "code"),
            name.upper(),
            *(with_spread(item.cell.figure(f"{name}.{statistic}")) for statistic in STATISTICS),
        )
        for item in placed
        for name in names
        if any(item.cell.figure(f"{name}.{statistic}") for statistic in STATISTICS)
    ]
    return table(
        ("Cell", "Latency, ms", *STATISTICS),
        rows,
        numeric=range(2, 2 + len(STATISTICS)),
        folded=True,
        caption=f"Every statistic of {placed[0].place}",
    )


def result_tables(stage: Stage, result: StepResult, place: str = "") -> list[Table]:
    """Return what a stage shows beside its cells."""
    return [
        table(
            made.head,
            [[_written(value) for value in row] for row in made.rows],
            numeric=[
                column for column in range(len(made.head)) if all(not isinstance(row[column], str) for row in made.rows)
            ],
            caption=f"{made.caption}{f', {place}' if place else ''}",
            note=made.note,
        )
        for made in stage.tables(result)
    ]


def _written(value: str | float | None) -> str:
    return value if isinstance(value, str) else digits(value)


def others(material: Material) -> Section | None:
    """List the figures of stages that have no section of their own."""
    own = {name for name, stage in STAGES.items() if stage.rendering is not None or stage.profiled}
    placed = [item for item in material.cells() if item.step.stage not in own]
    if not placed:
        return None
    rows = list(_figure_rows(placed))
    block: Block = (
        table(("Step", "Cell", "Figure", "Value", "95 % interval", "Samples", "Formula"), rows, numeric=(3, 4, 5))
        if rows
        else Prose("They ended without figures; Scope has their states.")
    )
    return Section("others", "Other measurements", (block,), short="Others")


def _figure_rows(placed: Iterable[Placed]) -> Iterable[tuple[Inline, ...]]:
    for item in placed:
        for figure in item.cell.figures:
            interval = (
                f"{digits(figure.low)} to {digits(figure.high)}"
                if figure.low is not None
                else ABSENT
                if figure.spread is None
                else f"s {digits(figure.spread, 2)}"
            )
            yield (
                Mark(item.place, "code"),
                Mark(item.cell.id, "code"),
                figure.name,
                amount(figure.value, figure.unit),
                interval,
                str(figure.samples),
                figure.formula or ABSENT,
            )

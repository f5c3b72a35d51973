"""``opsctl trace``: where a decode step's time goes, from a folder of Kineto traces."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.errors import UnfitError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from opsctl.trace import Analysis, Tpot

_WIDEST_NAME = 72


def trace(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH [PATH]", help="A trace file or a folder of them; two are compared.")
    ],
    excerpt: Annotated[
        Path | None, typer.Option(help="Write some steady steps of all ranks here, on one clock, for Perfetto.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps in the excerpt.")] = 3,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Ranks there should be; default: what files say.")
    ] = None,
    expected: Annotated[
        list[str] | None, typer.Option(metavar="OP=N", help="Collectives expected in a step: all_reduce=123.")
    ] = None,
    token_bytes: Annotated[
        int | None, typer.Option(min=1, help="Bytes of one token's hidden state, to derive message sizes from.")
    ] = None,
    tpot_off: Annotated[float | None, typer.Option(min=0, help="TPOT in ms measured without profiler.")] = None,
    tpot_armed: Annotated[float | None, typer.Option(min=0, help="TPOT in ms with the profiler armed.")] = None,
    tpot_capturing: Annotated[float | None, typer.Option(min=0, help="TPOT in ms during capture.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Files read at a time; default: one a core.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Kernels shown.")] = 15,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Say where a decode step's time goes: steps, categories, kernels, collectives, and what is wrong with the files.

    Busy time is a union of intervals; the sum of kernels stands beside it, named so. Broken files are named with
    what was salvaged, the others are still analysed. Exit 1 when nothing could be.

    [bold]Examples[/bold]

      opsctl trace traces/ --json

      opsctl trace before/ after/
    """
    from opsctl.trace import analyse, compare, write_excerpt

    if len(paths) > 2:
        raise UnfitError("wanted one path, or two to compare", seen=" ".join(map(str, paths)), hint="name a folder")
    if excerpt is not None and len(paths) > 1:
        raise UnfitError("an excerpt is of one folder")
    analyses = [
        analyse(
            [path],
            world_size=world_size,
            expected=_counts(expected),
            jobs=jobs,
            token_bytes=token_bytes,
            tpot=_tpot(tpot_off, tpot_armed, tpot_capturing),
        )
        for path in paths
    ]
    document = analyses[0].document() if len(analyses) == 1 else compare(*analyses).document()
    if excerpt is not None:
        try:
            written = write_excerpt(paths, excerpt, steps=steps, jobs=jobs)
        except OSError as error:
            raise UnfitError(f"{excerpt} cannot be written: {error.strerror or error}") from error
        document["excerpt"] = {"path": str(written.path), "events": written.events, "steps": written.steps}
    if json:
        print(jsonlib.dumps(document, indent=1))
    elif len(analyses) == 1:
        _show_analysis(analyses[0], document, top)
    else:
        _show_comparison(document, top)


def _counts(texts: Sequence[str] | None) -> dict[str, float]:
    counts = {}
    for text in texts or ():
        op, _, number = text.partition("=")
        try:
            counts[op.strip()] = float(number)
        except ValueError:
            raise UnfitError(f"--expected {text}", wanted="such as all_reduce=123") from None
    return counts


def _tpot(off: float | None, armed: float | None, capturing: float | None) -> Tpot:
    from opsctl.trace import Tpot

    in_us = [None if ms is None else ms * 1000 for ms in (off, armed, capturing)]
    return Tpot(off_us=in_us[0], armed_us=in_us[1], capturing_us=in_us[2])


def _console() -> Console:
    from opsctl.commands.terminal import Terminal

    return Terminal(highlight=False, soft_wrap=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 1) -> RenderableType:
    """Return a table; the first ``words`` columns hold words, the others figures."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < words else "right", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def _cell(value: object) -> str:
    from rich.markup import escape

    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) else escape(str(value))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _short(name: str) -> str:
    """Return a kernel's name without what all kernels of torch have in common, short enough for a table."""
    for common in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(common, "")
    return name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 1] + "…"


def _short_file(name: str) -> str:
    """Return a file's name without what all traces' names end in."""
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return name


def _show_analysis(analysis: Analysis, document: dict[str, Any], top: int) -> None:
    console = _console()
    console.print(_finding(document), markup=False)
    console.print()
    console.print(_ranks(document))
    console.print(_steps(document))
    console.print(_categories(document))
    if document["collectives"]:
        console.print(_collectives(document))
    console.print(_kernels(document, top))
    if document["other"]:
        names = ", ".join(f"{_short(row['name'])} {row['share_of_sum']:.1%}" for row in document["other"][:5])
        console.print(f"Largest of other, by share of the sum: {names}", markup=False)
    for line in (document["beside_the_clock"] or {}).get("explanation", ()):
        console.print(f"Beside the clock: {line}", markup=False)
    for note in document["notes"]:
        console.print(f"note: {note}", markup=False)
    for problem in analysis.problems:
        console.print(f"problem: {problem}", markup=False, style="yellow")
    if "excerpt" in document:
        console.print(f"excerpt: {document['excerpt']['path']} ({document['excerpt']['events']} events)", markup=False)


def _finding(document: dict[str, Any]) -> str:
    """Return the answer in a sentence or two."""
    shares = ", ".join(f"{row['name']} {row['share_of_busy']:.1%}" for row in document["categories"][:3])
    kinds = document["steps"]
    kind = next((name for name in ("decode", "unknown") if "used" in kinds.get(name, {})), None)
    if kind is None:
        busy, window = document["busy_us"] / 1000, document["window_us"] / 1000
        return f"No steps could be told apart. Busy {busy:,.3f} ms of {window:,.3f} ms: {shares}."
    row = kinds[kind]
    batch = f" of batch {row['batch']}" if row["batch"] is not None else ""
    what = f"{row['count']} decode steps{batch}" if kind == "decode" else f"{row['count']} steps of unknown kind"
    certain = "" if row["verdict"] == "steady" else " (inconclusive)"
    return (
        f"{what}: {row['wall_us']['mean'] / 1000:,.3f} ms a step on average{certain}, "
        f"busy {row['busy_us']['mean'] / 1000:,.3f} ms "
        f"({shares} of it), idle {row['idle_us']['mean'] / 1000:,.3f} ms; kernels add up to "
        f"{row['sum_us']['mean'] / 1000:,.3f} ms, which is no time on the clock."
    )


def _ranks(document: dict[str, Any]) -> RenderableType:
    rows = [
        (
            "front end" if row["role"] == "front end" else row["rank"],
            _short_file(row["file"]),
            "yes" if row["whole"] else "NO",
            row["device"] or "host only",
            row["events"],
            row["kernels"],
            row["streams"],
            row["steps"],
            _percent(row["busy_share"]),
        )
        for row in document["ranks"]
    ]
    columns = ("rank", "file", "whole", "device", "events", "kernels", "streams", "steps", "busy")
    return _table("Files", columns, rows, words=4)


def _steps(document: dict[str, Any]) -> RenderableType:
    rows = []
    for kind, main in document["steps"].items():
        for row in (main, *main.get("other_batches", ())):
            wall = row["wall_us"]
            dropped = f"{row['dropped']} dropped" if row.get("dropped") else ""
            own = [(row.get(key) or {}).get("mean") for key in ("busy_us", "sum_us", "idle_us")]
            figures = (wall["p50"], wall["mean"], _percent(wall["cv"]), *own)
            rows.append((kind, row["wall_is"], dropped, row["batch"], row["count"], *figures))
    columns = ("kind", "time is", "", "batch", "count", "p50 µs", "mean µs", "CV", "busy µs", "sum µs", "idle µs")
    return _table(f"Steps, by {document['method']}", columns, rows, words=3)


def _categories(document: dict[str, Any]) -> RenderableType:
    rows = [
        (
            row["name"],
            row["busy_us_per_step"],
            _percent(row["share_of_busy"]),
            row["hidden_us_per_step"],
            row["sum_us_per_step"],
            _percent(row["cv"]),
        )
        for row in document["categories"]
    ]
    columns = ("category", "busy µs/step", "share of busy", "hidden µs/step", "sum µs/step", "CV")
    return _table(f"What the device is busy with ({document['basis']})", columns, rows)


def _collectives(document: dict[str, Any]) -> RenderableType:
    rows = []
    for row in document["collectives"]:
        last = row["last_to_arrive"]
        size = f"{row['message_bytes']:,} B ({row['message_from']})" if row["message_bytes"] else "unknown"
        late = f"rank {last['rank']} ({last['share_of_calls']:.0%})" if last else "–"
        rows.append(
            (
                row["op"],
                size,
                late,
                f"{row['calls_per_step']:g}",
                "–" if row["expected_per_step"] is None else f"{row['expected_per_step']:g}",
                row["communication_us_per_step"],
                row["skew_us_per_step"],
            )
        )
    columns = (
        "collective",
        "message",
        "last to arrive",
        "calls/step",
        "expected",
        "communication µs/step",
        "skew µs/step",
    )
    return _table("Collectives", columns, rows, words=3)


def _kernels(document: dict[str, Any], top: int) -> RenderableType:
    """Return the kernels that a steady step spends most on; without steps, those of the whole file."""
    kernels = document["kernels"]
    if any(row["sum_us_per_step"] for row in kernels):
        kernels = sorted(kernels, key=lambda row: -(row["sum_us_per_step"] or 0.0))
    rows = [
        (
            _short(row["name"]),
            row["category"],
            "–" if row["calls_per_step"] is None else f"{row['calls_per_step']:g}",
            row["sum_us_per_step"],
            _percent(row["cv_per_step"]),
            row["calls"],
            row["mean_us"],
            _percent(row["share_of_sum"]),
        )
        for row in kernels[:top]
    ]
    columns = (
        "kernel or operator",
        "category",
        "calls/step",
        "µs/step",
        "CV",
        "calls",
        "mean µs",
        "share of file's sum",
    )
    return _table(f"Largest {len(rows)} of {len(document['kernels'])}", columns, rows, words=2)


def _show_comparison(document: dict[str, Any], top: int) -> None:
    console = _console()
    for title, key in (("A step", "steps"), ("Categories", "categories"), ("Kernels", "kernels")):
        rows = [
            (
                _short(row["name"]),
                row["verdict"],
                row["before_us_per_step"],
                row["after_us_per_step"],
                f"{row['difference_us_per_step']:+,.1f} ± {row['standard_error_us']:,.1f}",
                "–" if row["difference_share"] is None else f"{row['difference_share']:+.1%}",
                _calls(row),
            )
            for row in document[key][:top]
        ]
        columns = (title.lower(), "verdict", "before µs", "after µs", "difference µs", "", "calls/step")
        console.print(_table(f"{title}, per steady step", columns, rows, words=2))
    for row in document["counts"]:
        console.print(
            f"{row['op']}: {row['calls_per_step_before']:g} calls a step before, {row['calls_per_step_after']:g} after"
        )
    for problem in document["problems"]:
        console.print(f"problem: {problem}", markup=False, style="yellow")


def _calls(row: dict[str, Any]) -> str:
    before, after = row.get("calls_per_step_before"), row.get("calls_per_step_after")
    if before is None:
        return ""
    return f"{before:g}" if before == after else f"{before:g} → {after:g}"

"""``opsctl trace``: where a decode step's time goes, from a folder of Kineto traces."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.errors import UnfitError

if TYPE_CHECKING:
    from opsctl.trace import Comparison, Excerpt, Taken, Tpot, TraceAnalysis


def trace(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH [PATH]", help="A trace file or a folder of them; two are compared.")
    ],
    excerpt: Annotated[
        Path | None, typer.Option(help="Write some steady steps of all ranks here, on one clock, for Perfetto.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps in the excerpt.")] = 3,
    step: Annotated[int | None, typer.Option(min=0, help="First step of the excerpt, counted from 0.")] = None,
    begin: Annotated[
        float | None, typer.Option("--from", metavar="MS", min=0, help="Excerpt from here on, after the first work.")
    ] = None,
    end: Annotated[float | None, typer.Option("--to", metavar="MS", min=0, help="Excerpt up to here.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank in the excerpt.")] = None,
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
    only: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The window to take where a folder holds several.")
    ] = None,
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
    from opsctl.trace import Taken, analyse, compare

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
            only=only,
            tpot=_tpot(tpot_off, tpot_armed, tpot_capturing),
        )
        for path in paths
    ]
    result = analyses[0] if len(analyses) == 1 else compare(*analyses)
    written = None
    if excerpt is not None:
        taken = Taken(steps, step, _ns(begin), _ns(end), rank)
        written = _written(paths, excerpt, taken, jobs=jobs, only=only)
    if json:
        shown = {"path": str(written.path), "events": written.events, "steps": written.steps} if written else None
        print(jsonlib.dumps(result.to_json() | ({"excerpt": shown} if shown else {}), indent=1))
    else:
        _print(result, written, top)


def _written(paths: list[Path], excerpt: Path, taken: Taken, *, jobs: int | None, only: str | None) -> Excerpt:
    """Write an excerpt. Raises UnfitError where its file cannot be written."""
    from opsctl.trace import write_excerpt

    try:
        return write_excerpt(paths, excerpt, taken, jobs=jobs, only=only)
    except OSError as error:
        raise UnfitError(f"{excerpt} cannot be written: {error.strerror or error}") from error


def _print(result: TraceAnalysis | Comparison, written: Excerpt | None, top: int) -> None:
    """Print an analysis, or a comparison of two, as tables."""
    from opsctl.commands.terminal import Terminal
    from opsctl.terminal.traces import TraceTables
    from opsctl.trace import TraceAnalysis

    console = Terminal(highlight=False, soft_wrap=False)
    tables = TraceTables(console, top)
    if isinstance(result, TraceAnalysis):
        tables.analysis(result)
    else:
        tables.comparison(result)
    if written is not None:
        console.print(f"excerpt: {written.path} ({written.events} events)", markup=False)


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * 1_000_000)


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

"""``opsctl history``, ``compare`` and ``export``: figures over nights."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opsctl.snapshots import Changes, Comparison, Series, Snapshot
    from opsctl.snapshots.comparing import MetricComparison
    from opsctl.snapshots.store import History

BARS = "▁▂▃▄▅▆▇█"
SHOWN_NIGHTS = 14


class Format(StrEnum):
    """What figures are exported as."""

    OPENMETRICS = "openmetrics"
    CSV = "csv"
    JSONL = "jsonl"


def _open_history() -> History:
    from opsctl.runs.journal import state_home
    from opsctl.snapshots import FILE, History

    return History(state_home() / FILE)


def _from_journal(run: str) -> Sequence[Snapshot]:
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import find_run, load_run
    from opsctl.snapshots import snapshot_of

    with Journal.open() as journal:
        return snapshot_of(load_run(journal, find_run(journal, run)))


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run (or the beginning of its id), or: baseline.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run that is judged.")],
    fail_on: Annotated[
        list[str] | None, typer.Option("--fail-on", help="Limit such as 'tpot.p50 > +5%'; exit 1 when it is broken.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare although they were not measured alike; differences come first.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every figure, not only the headline ones.")] = False,
    nights: Annotated[int, typer.Option(min=1, help="Nights of the baseline.")] = 14,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Compare two runs, or a run with the history's baseline: each figure with its interval and a verdict.

    [bold]Examples[/bold]

      opsctl compare 20261129-0230 20261130-0230

      opsctl compare baseline 20261130-0230 --fail-on 'tpot.p50 > +5%' --fail-on 'output_throughput < -5%'
    """
    from opsctl.errors import ExitCode
    from opsctl.snapshots.choosing import BASELINE, compare_all, snapshots_of_run
    from opsctl.snapshots.limits import breaches, parse_limit

    limits = [parse_limit(text) for text in fail_on or ()]
    with _open_history() as history:
        left = None if a == BASELINE else snapshots_of_run(a, history, _from_journal)
        right = snapshots_of_run(b, history, _from_journal)
        comparisons = compare_all(left, right, history, nights=nights, force=force)
    broken = breaches(limits, [metric for comparison in comparisons for metric in comparison.metrics])
    if json:
        document = {
            "comparisons": [comparison.model_dump(mode="json") for comparison in comparisons],
            "breaches": [
                {"limit": breach.limit.text, "figure": str(breach.compared.key), "change": breach.compared.change}
                for breach in broken
            ],
        }
        print(jsonlib.dumps(document, indent=2))
    else:
        for comparison in comparisons:
            _show_comparison(comparison, everything=everything)
        for breach in broken:
            print(f"broken: {breach}")
    if broken:
        raise typer.Exit(int(ExitCode.FAILED))


def _show_comparison(comparison: Comparison, *, everything: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from opsctl.commands.terminal import Terminal
    from opsctl.snapshots.headline import is_headline

    console = Terminal()
    console.print(f"[bold]{escape(comparison.b)}[/] against {escape(comparison.a)}", highlight=False)
    console.print(f"{escape(comparison.service)} on {escape(comparison.host)}", highlight=False)
    for difference in comparison.differences:
        console.print(
            f"[yellow]not alike[/] {escape(difference.name)}: {escape(difference.a or '(nothing)')} → "
            f"{escape(difference.b or '(nothing)')}",
            highlight=False,
        )
    shown = [metric for metric in comparison.metrics if everything or is_headline(metric.key)]
    table = Table(box=None, pad_edge=False)
    for heading in ("figure", "A", "B"):
        table.add_column(heading, overflow="fold")
    for heading in ("change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for metric in shown:
        table.add_row(*_comparison_row(metric))
    console.print(table)
    hidden = len(comparison.metrics) - len(shown)
    for noise in dict.fromkeys(metric.noise for metric in shown):
        console.print(f"[dim]noise: {escape(noise)}[/]", highlight=False)
    if hidden:
        console.print(f"[dim]{hidden} more figures: --all[/]", highlight=False)


def _comparison_row(metric: MetricComparison) -> tuple[str, ...]:
    from rich.markup import escape

    from opsctl.report.numbers import amount

    style = {True: "green", False: "red", None: "default"}[metric.better]
    sides = [amount(side.value, metric.unit) if side else "–" for side in (metric.a, metric.b)]
    interval = (
        f"{100 * metric.change_low:+.1f} to {100 * metric.change_high:+.1f} %"
        if metric.change_low is not None and metric.change_high is not None
        else "not known"
    )
    change = "–" if metric.change is None else f"{100 * metric.change:+.1f} %"
    return (
        escape(f"{metric.key.cell} {metric.key.name}"),
        *sides,
        change,
        interval,
        f"[{style}]{metric.verdict}[/]",
    )


def history(
    metric: Annotated[str, typer.Argument(help="Figure, such as tpot.p50, or stage/cell/figure.")] = "tpot.p50",
    host: Annotated[str | None, typer.Option("--host", help="Only this host.")] = None,
    service: Annotated[str | None, typer.Option("--service", help="Only this service.")] = None,
    cell: Annotated[str | None, typer.Option("--cell", help="Only this cell, such as concurrency=8.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="30d, 12h, or a date.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Write CSV.")] = False,
) -> None:
    """Show a figure over nights, with its changes and outliers.

    [bold]Examples[/bold]

      opsctl history tpot.p50 --service vllm-kimi-k25-int4 --since 30d

      opsctl history output_throughput --cell concurrency=64 --csv
    """
    from opsctl.errors import UnfitError
    from opsctl.snapshots import detect_changes
    from opsctl.snapshots.choosing import since as since_time

    with _open_history() as store:
        found = store.series(metric, cell=cell, host=host, service=service, since=since_time(since))
        if not found:
            names = store.names()
            near = get_close_matches(metric.rsplit("/", 1)[-1], names, n=3)
            raise UnfitError(
                f"the history has no figure {metric!r} like that",
                seen=", ".join(names[:20]) or "an empty history",
                where=str(store.path),
                hint=f"nearest: {', '.join(near)}"
                if near
                else "a run that measured without a profiler puts them there",
            )
    judged = [(series, detect_changes(series)) for series in found]
    if json:
        print(jsonlib.dumps({"series": [_series_document(*item) for item in judged]}, indent=2))
    elif csv:
        sys.stdout.write(_series_csv(found))
    else:
        for series, changes in judged:
            _show_series(series, changes)


def _series_document(series: Series, changes: Changes) -> dict[str, object]:
    return {
        "host": series.host,
        "service": series.service,
        "figure": str(series.key),
        "unit": series.unit,
        "points": [
            {
                "time": point.time,
                "run": point.run,
                "value": point.value,
                "spread": point.spread,
                "samples": point.samples,
                "fingerprint": point.identity,
                "outlier": index in changes.outliers,
            }
            for index, point in enumerate(series.points)
        ],
        "changes": [
            {
                "began": series.points[change.began].time,
                "run": series.points[change.began].run,
                "found": series.points[change.found].time,
                "before": change.before,
                "after": change.after,
                "relative": change.relative,
                "statistic": change.statistic,
                "threshold": change.threshold,
            }
            for change in changes.changes
        ],
        "measured_differently_from": [series.points[index].time for index in changes.renewals],
        "nights_judged": changes.judged,
    }


def _series_csv(found: Sequence[Series]) -> str:
    import csv as csvlib
    import io

    out = io.StringIO()
    writer = csvlib.writer(out, lineterminator="\n")
    writer.writerow(("time", "run", "host", "service", "figure", "value", "unit", "spread", "samples", "fingerprint"))
    for series in found:
        for point in series.points:
            where = (point.time, point.run, series.host, series.service, str(series.key))
            writer.writerow((*where, point.value, series.unit, point.spread, point.samples, point.identity))
    return out.getvalue()


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """Return the last values as bars of eight heights, from the lowest to the highest of them."""
    last = list(values)[-width:]
    if not last:
        return ""
    low, high = min(last), max(last)
    if high == low:
        return BARS[3] * len(last)
    return "".join(BARS[min(7, int(8 * (value - low) / (high - low)))] for value in last)


def _show_series(series: Series, changes: Changes) -> None:
    from rich.markup import escape
    from rich.table import Table

    from opsctl.commands.terminal import Terminal
    from opsctl.quantities import counted
    from opsctl.report.numbers import amount, digits
    from opsctl.snapshots.changes import FEWEST, described

    console = Terminal()
    values = [point.value for point in series.points]
    console.print(
        f"[bold]{escape(str(series.key))}[/]  {escape(series.service)} on {escape(series.host)}", highlight=False
    )
    span = f"{amount(min(values), series.unit)} to {amount(max(values), series.unit)}, {counted(len(values), 'night')}"
    console.print(f"{sparkline(values, console.width - len(span) - 3)}  {span}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("night", "left"), ("run", "left"), (series.unit or "value", "right"), ("± ", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("")
    notes = _notes(changes)
    for index in range(max(0, len(values) - SHOWN_NIGHTS), len(values)):
        point = series.points[index]
        spread = "" if point.spread is None else digits(point.spread, 2)
        table.add_row(point.time[:10], escape(point.run), digits(point.value), spread, notes.get(index, ""))
    console.print(table)
    for change in changes.changes:
        console.print(f"[yellow]change[/] {escape(described(change, series.points))}", highlight=False)
    if not changes.judged:
        console.print(f"[dim]too few nights to judge changes: {len(values)} of {FEWEST}[/]", highlight=False)
    console.print()


def _notes(changes: Changes) -> dict[int, str]:
    notes = dict.fromkeys(changes.renewals, "measured differently from here on")
    notes |= dict.fromkeys(changes.outliers, "outlier")
    for change in changes.changes:
        notes[change.began] = f"change: {100 * change.relative:+.1f} %"
    return notes


def export(
    format_: Annotated[Format, typer.Option("--format", "-f", help="openmetrics for the node exporter.")] = Format.CSV,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; default: standard output.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Only this host.")] = None,
    service: Annotated[str | None, typer.Option("--service", help="Only this service.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="30d, 12h, or a date.")] = None,
) -> None:
    """Write the history's figures as OpenMetrics (the newest of each), CSV or JSON Lines (all of them).

    [bold]Examples[/bold]

      opsctl export -f openmetrics -o /var/lib/prometheus/node-exporter/opsctl.prom

      opsctl export -f csv --since 90d > figures.csv
    """
    from opsctl.commands.report import write_text
    from opsctl.snapshots import exporting
    from opsctl.snapshots.choosing import since as since_time

    with _open_history() as store:
        if format_ is Format.OPENMETRICS:
            text = exporting.open_metrics(store.latest(host=host, service=service))
        else:
            snapshots = store.snapshots(host=host, service=service, since=since_time(since))
            write = exporting.as_csv if format_ is Format.CSV else exporting.as_json_lines
            text = write(snapshots)
    if out is None:
        sys.stdout.write(text)
    else:
        write_text(out, text)

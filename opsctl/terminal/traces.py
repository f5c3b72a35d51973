"""Trace analyses on a terminal: tables that stay readable in 80 columns.

Words that may be long (a kernel, a file) take the width that the figures leave. Below ``ROOMY`` columns the columns
that a reader misses least are left out, and the last line says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from opsctl.trace.document import Change, Collective, Comparison, Kernel, Times, TraceAnalysis, mean_of
from opsctl.trace.finding import sentence

ROOMY = 100
"""Columns of a terminal from which on every column of a table is shown."""
_WIDEST_NAME = 72
_COMMON = ("void ", "at::native::", "(anonymous namespace)::")


@dataclass(frozen=True)
class Column:
    """A column: its heading, whether it holds words, takes what width is left, or is left out where there is little."""

    heading: str
    word: bool = False
    long: bool = False
    roomy: bool = False


Row = Sequence[object]


class TraceTables:
    """Prints analyses and comparisons on one console; ``top`` is how many kernels are shown."""

    def __init__(self, console: Console, top: int) -> None:
        self._console = console
        self._top = top
        self._left_out = False

    def analysis(self, analysis: TraceAnalysis) -> None:
        """Print the answer first, then what it rests on."""
        self._say(f"{sentence(analysis)}\n")
        self._ranks(analysis)
        self._steps(analysis)
        self._categories(analysis)
        if analysis.collectives:
            self._collectives(analysis.collectives)
        self._kernels(analysis.kernels)
        if analysis.other:
            names = ", ".join(f"{_short(row.name)} {row.share_of_sum:.1%}" for row in analysis.other[:5])
            self._say(f"Largest of other, by share of the sum: {names}")
        for line in analysis.beside_the_clock.explanation if analysis.beside_the_clock else ():
            self._say(f"Beside the clock: {line}")
        for note in analysis.notes:
            self._say(f"note: {note}")
        for left in analysis.left_out:
            self._say(f"left out: {left.file}: {left.reason}")
        self._problems(analysis.problems)
        self._say_what_is_left_out()

    def comparison(self, comparison: Comparison) -> None:
        """Print what changed from the first analysis to the second, a steady step each."""
        self._changes("A step", comparison.steps)
        self._changes("Categories", comparison.categories)
        self._changes("Kernels", comparison.kernels)
        for row in comparison.counts:
            self._say(
                f"{row.op}: {row.calls_per_step_before:g} calls a step before, {row.calls_per_step_after:g} after"
            )
        self._problems(comparison.problems)
        self._say_what_is_left_out()

    def _ranks(self, analysis: TraceAnalysis) -> None:
        columns = (
            Column("rank", word=True),
            Column("file", word=True, long=True),
            Column("whole", word=True),
            Column("device", word=True),
            Column("events", roomy=True),
            Column("kernels"),
            Column("streams"),
            Column("steps"),
            Column("busy"),
        )
        rows = [
            (
                "front end" if row.role == "front end" else " ".join(filter(None, (_text(row.rank), row.label))),
                _short_file(row.file),
                "yes" if row.whole else "NO",
                row.device or "host only",
                f"{row.events:,}",
                f"{row.kernels:,}",
                row.streams,
                row.steps,
                _percent(row.busy_share),
            )
            for row in analysis.ranks
        ]
        self._table("Files", columns, rows)

    def _steps(self, analysis: TraceAnalysis) -> None:
        headings = ("batch", "count", "p50 µs", "mean µs", "CV", "busy µs", "sum µs", "idle µs")
        rows: list[Row] = []
        means: dict[str, list[str]] = {}
        said = []
        for kind, main in analysis.steps.items():
            means.setdefault(main.wall_is, []).append(kind)
            if main.dropped:
                said.append(f"{main.dropped} {kind} left out: {main.dropped_because}")
            if main.verdict == "inconclusive":
                said.append(f"{kind} inconclusive: {main.verdict_because}")
            if main.other_steps_us and main.other_steps_us.mean:
                said.append(f"{kind}: of the busy time {main.other_steps_us.mean:,.1f} µs is work of other steps only")
            said += [f"{kind}: {phase.name} {phase.busy_us_per_step:,.1f} µs a step" for phase in main.phases]
            own = [mean_of(times) for times in (main.busy_us, main.sum_us, main.idle_us)]
            rows.append((kind, main.batch, main.count, *_spread(main.wall_us), *own))
            rows += [(kind, row.batch, row.count, *_spread(row.wall_us), *[None] * 3) for row in main.other_batches]
        self._table(f"Steps, by {analysis.method}", (Column("kind", word=True), *map(Column, headings)), rows)
        if means:
            self._say("A step's time: " + "; ".join(f"{', '.join(kinds)}: {what}" for what, kinds in means.items()))
            self._say("".join(f"{line}\n" for line in said))

    def _categories(self, analysis: TraceAnalysis) -> None:
        columns = (
            Column("category", word=True),
            Column("busy µs\na step"),
            Column("share\nof busy"),
            Column("overlapped\nµs a step"),
            Column("sum µs\na step"),
            Column("\nCV"),
        )
        rows = [
            (
                row.name,
                row.busy_us_per_step,
                _percent(row.share_of_busy),
                row.overlapped_us_per_step,
                row.sum_us_per_step,
                _percent(row.cv),
            )
            for row in analysis.categories
        ]
        self._table(f"What the device is busy with ({analysis.basis})", columns, rows)

    def _collectives(self, collectives: Sequence[Collective]) -> None:
        columns = (
            Column("\ncollective", word=True),
            Column("\nmessage", word=True),
            Column("last to\narrive", word=True),
            Column("calls\na step"),
            Column("\nexpected"),
            Column("communication\nµs a step"),
            Column("straggler\nwait µs"),
        )
        rows = []
        for row in collectives:
            last = row.last_to_arrive
            size = f"{row.message_bytes:,} B\n{row.message_from}" if row.message_bytes else "unknown"
            late = f"rank {last.rank} ({last.share_of_calls:.0%})" if last else None
            figures = (_count(row.calls_per_step), _count(row.expected_per_step))
            times = (row.communication_us_per_step, row.straggler_wait_us_per_step)
            rows.append((row.op, size, late, *figures, *times))
        self._table("Collectives", columns, rows)
        for row in collectives:
            for message in row.messages:
                group = f"group {message.group or '?'} of {_text(message.group_size) or '?'} ranks"
                self._say(
                    f"{row.op}: {message.calls:,} calls of {_count(message.message_bytes) or '?'} B {message.dtype}, "
                    f"{group}, {message.mean_us:,.1f} µs a call"
                    + (f", bus bandwidth {message.bus_bandwidth_gbs:,.1f} GB/s" if message.bus_bandwidth_gbs else "")
                )
            by = f" by {', '.join(row.algorithms)} kernels" if row.algorithms else ""
            skew = f", starts {row.start_skew_us:,.1f} µs apart over ranks" if row.start_skew_us is not None else ""
            self._say(f"{row.op}: {row.calls:,} calls in the file{by}, {row.sum_us:,.1f} µs{skew}")

    def _kernels(self, kernels: Sequence[Kernel]) -> None:
        """Print the kernels that a steady step spends most on; without steps, those of the whole file."""
        columns = (
            Column("\nkernel or operator", word=True, long=True),
            Column("\ncategory", word=True),
            Column("calls\na step"),
            Column("µs\na step"),
            Column("\nCV"),
            Column("calls\nin file", roomy=True),
            Column("\nmean µs", roomy=True),
            Column("share of\nfile's sum"),
        )
        if any(row.sum_us_per_step for row in kernels):
            kernels = sorted(kernels, key=lambda row: -(row.sum_us_per_step or 0.0))
        rows = [
            (
                _short(row.name),
                row.category,
                _count(row.calls_per_step),
                row.sum_us_per_step,
                _percent(row.cv_per_step),
                f"{row.calls:,}",
                row.mean_us,
                _percent(row.share_of_sum),
            )
            for row in kernels[: self._top]
        ]
        self._table(f"Largest {len(rows)} of {len(kernels)}", columns, rows)

    def _changes(self, title: str, changes: Sequence[Change]) -> None:
        columns = (
            Column(title.lower(), word=True, long=True),
            Column("verdict", word=True),
            Column("before µs", roomy=True),
            Column("after µs"),
            Column("difference µs"),
            Column(""),
            Column("calls"),
        )
        rows = [
            (
                _short(row.name),
                row.verdict,
                row.before_us_per_step,
                row.after_us_per_step,
                f"{row.difference_us_per_step:+,.1f} ± {row.standard_error_us:,.1f}",
                None if row.difference_share is None else f"{row.difference_share:+.1%}",
                _calls(row),
            )
            for row in changes[: self._top]
        ]
        self._table(f"{title}, per steady step", columns, rows)

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, markup=False, style=style)

    def _problems(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self._say(f"problem: {problem}", style="yellow")

    def _say_what_is_left_out(self) -> None:
        if self._left_out:
            self._say(f"Below {ROOMY} columns some figures are left out: widen the terminal, or --json.", style="dim")

    def _table(self, title: str, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        roomy = self._console.width >= ROOMY
        self._left_out |= not roomy and any(column.roomy for column in columns)
        shown = [place for place, column in enumerate(columns) if roomy or not column.roomy]
        table = Table(
            title=title,
            box=SIMPLE_HEAD,
            title_justify="left",
            title_style="bold",
            pad_edge=False,
            collapse_padding=not roomy,
        )
        for place in shown:
            column = columns[place]
            table.add_column(
                column.heading,
                justify="left" if column.word else "right",
                no_wrap=not column.long,
                overflow="fold" if column.long else "ellipsis",
                vertical="top",
            )
        for row in rows:
            table.add_row(*(_cell(row[place], long=columns[place].long) for place in shown))
        self._console.print(table)


def _short(name: str) -> str:
    """Return a kernel's name without what all kernels of torch have in common, short enough for a table."""
    for common in _COMMON:
        name = name.replace(common, "")
    return name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 1] + "…"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _spread(times: Times | None) -> tuple[float | None, float | None, str | None]:
    return (times.p50, times.mean, _percent(times.cv)) if times else (None, None, None)


def _text(number: int | None) -> str:
    return "" if number is None else str(number)


def _short_file(name: str) -> str:
    """Return a file's name without what all traces' names end in."""
    for ending in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(ending)
    return name


def _cell(value: object, *, long: bool) -> Text | str:
    if value is None:
        return "–"
    if isinstance(value, float):
        # More than four digits are more than any of these figures is known to.
        return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
    return Text(str(value), overflow="fold") if long else escape(str(value))


def _count(number: float | None) -> str | None:
    return None if number is None else f"{number:g}" if isinstance(number, float) else f"{number:,}"


def _calls(row: Change) -> str:
    before, after = row.calls_per_step_before, row.calls_per_step_after
    if before is None or after is None:
        return ""
    return f"{before:g}" if before == after else f"{before:g} → {after:g}"

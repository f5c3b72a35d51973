"""What ``opsctl trace`` shows a person: tables that stay readable in 80 columns.

Words that may be long (a kernel, a file) take the width that the figures leave. Below ``ROOMY`` columns the columns
that a reader misses least are left out, and the last line says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from opsctl.commands.terminal import Terminal

if TYPE_CHECKING:
    from opsctl.trace import Analysis

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


class TraceView:
    """Prints analyses and comparisons on one terminal."""

    def __init__(self, top: int) -> None:
        self._console = Terminal(highlight=False, soft_wrap=False)
        self._top = top
        self._left_out = False

    # -- one folder

    def analysis(self, analysis: Analysis, document: dict[str, Any]) -> None:
        """Print the answer first, then what it rests on."""
        self._say(_finding(document))
        self._say()
        self._ranks(document)
        self._steps(document)
        self._categories(document)
        if document["collectives"]:
            self._collectives(document)
        self._kernels(document)
        if document["other"]:
            names = ", ".join(f"{_short(row['name'])} {row['share_of_sum']:.1%}" for row in document["other"][:5])
            self._say(f"Largest of other, by share of the sum: {names}")
        for line in (document["beside_the_clock"] or {}).get("explanation", ()):
            self._say(f"Beside the clock: {line}")
        for note in document["notes"]:
            self._say(f"note: {note}")
        self._problems(analysis.problems)
        if "excerpt" in document:
            self._say(f"excerpt: {document['excerpt']['path']} ({document['excerpt']['events']} events)")
        self._say_what_is_left_out()

    def _ranks(self, document: dict[str, Any]) -> None:
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
                "front end" if row["role"] == "front end" else row["rank"],
                _short_file(row["file"]),
                "yes" if row["whole"] else "NO",
                row["device"] or "host only",
                f"{row['events']:,}",
                f"{row['kernels']:,}",
                row["streams"],
                row["steps"],
                _percent(row["busy_share"]),
            )
            for row in document["ranks"]
        ]
        self._table("Files", columns, rows)

    def _steps(self, document: dict[str, Any]) -> None:
        headings = ("batch", "count", "p50 µs", "mean µs", "CV", "busy µs", "sum µs", "idle µs")
        columns = (Column("kind", word=True), *map(Column, headings))
        rows: list[Row] = []
        means: dict[str, list[str]] = {}
        dropped = []
        for kind, main in document["steps"].items():
            means.setdefault(main["wall_is"], []).append(kind)
            if main.get("dropped"):
                dropped.append(f"{main['dropped']} {kind} left out: {main['dropped_because']}")
            for row in (main, *main.get("other_batches", ())):
                wall = row["wall_us"]
                own = [(row.get(key) or {}).get("mean") for key in ("busy_us", "sum_us", "idle_us")]
                rows.append((kind, row["batch"], row["count"], wall["p50"], wall["mean"], _percent(wall["cv"]), *own))
        self._table(f"Steps, by {document['method']}", columns, rows)
        if means:
            self._say("A step's time: " + "; ".join(f"{', '.join(kinds)}: {what}" for what, kinds in means.items()))
        for line in dropped:
            self._say(line)
        if rows:
            self._say()

    def _categories(self, document: dict[str, Any]) -> None:
        columns = (
            Column("category", word=True),
            Column("busy µs\na step"),
            Column("share\nof busy"),
            Column("hidden µs\na step"),
            Column("sum µs\na step"),
            Column("\nCV"),
        )
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
        self._table(f"What the device is busy with ({document['basis']})", columns, rows)

    def _collectives(self, document: dict[str, Any]) -> None:
        columns = (
            Column("\ncollective", word=True),
            Column("\nmessage", word=True),
            Column("last to\narrive", word=True),
            Column("calls\na step"),
            Column("\nexpected"),
            Column("communication\nµs a step"),
            Column("skew\nµs a step"),
        )
        rows = []
        for row in document["collectives"]:
            last = row["last_to_arrive"]
            size = f"{row['message_bytes']:,} B\n{row['message_from']}" if row["message_bytes"] else "unknown"
            late = f"rank {last['rank']} ({last['share_of_calls']:.0%})" if last else None
            figures = (_count(row["calls_per_step"]), _count(row["expected_per_step"]))
            times = (row["communication_us_per_step"], row["skew_us_per_step"])
            rows.append((row["op"], size, late, *figures, *times))
        self._table("Collectives", columns, rows)

    def _kernels(self, document: dict[str, Any]) -> None:
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
        kernels = document["kernels"]
        if any(row["sum_us_per_step"] for row in kernels):
            kernels = sorted(kernels, key=lambda row: -(row["sum_us_per_step"] or 0.0))
        rows = [
            (
                _short(row["name"]),
                row["category"],
                _count(row["calls_per_step"]),
                row["sum_us_per_step"],
                _percent(row["cv_per_step"]),
                f"{row['calls']:,}",
                row["mean_us"],
                _percent(row["share_of_sum"]),
            )
            for row in kernels[: self._top]
        ]
        self._table(f"Largest {len(rows)} of {len(kernels)}", columns, rows)

    # -- two folders

    def comparison(self, document: dict[str, Any]) -> None:
        """Print what changed from the first folder to the second, a steady step each."""
        for title, key in (("A step", "steps"), ("Categories", "categories"), ("Kernels", "kernels")):
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
                    _short(row["name"]),
                    row["verdict"],
                    row["before_us_per_step"],
                    row["after_us_per_step"],
                    f"{row['difference_us_per_step']:+,.1f} ± {row['standard_error_us']:,.1f}",
                    None if row["difference_share"] is None else f"{row['difference_share']:+.1%}",
                    _calls(row),
                )
                for row in document[key][: self._top]
            ]
            self._table(f"{title}, per steady step", columns, rows)
        for row in document["counts"]:
            before, after = row["calls_per_step_before"], row["calls_per_step_after"]
            self._say(f"{row['op']}: {before:g} calls a step before, {after:g} after")
        self._problems(document["problems"])
        self._say_what_is_left_out()

    # -- the terminal

    def _say(self, text: str = "", style: str | None = None) -> None:
        self._console.print(text, markup=False, style=style)

    def _problems(self, problems: Sequence[str]) -> None:
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


def _short(name: str) -> str:
    """Return a kernel's name without what all kernels of torch have in common, short enough for a table."""
    for common in _COMMON:
        name = name.replace(common, "")
    return name if len(name) <= _WIDEST_NAME else name[: _WIDEST_NAME - 1] + "…"


def _percent(share: float | None) -> str | None:
    """Return a share as shown; None stays unknown."""
    return None if share is None else f"{share:.1%}"


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
    return None if number is None else f"{number:g}"


def _calls(row: dict[str, Any]) -> str:
    before, after = row.get("calls_per_step_before"), row.get("calls_per_step_after")
    if before is None:
        return ""
    return f"{before:g}" if before == after else f"{before:g} → {after:g}"

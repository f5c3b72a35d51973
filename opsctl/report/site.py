"""A static site over the history: the runs, the trends with their changes, and every run's report.

Any web server can serve the folder, and a browser can open it from the disk: nothing is fetched from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.production import production_words
from opsctl.quantities import format_duration
from opsctl.record import RunRecord, Standing
from opsctl.report import html, sections
from opsctl.report.document import Block, Document, Inline, Mark, Prose, Section, Tile, table
from opsctl.report.finding import finding
from opsctl.report.numbers import ABSENT, amount, clock, seconds_between
from opsctl.report.sections.overview import STATE_TONES, downtime, state
from opsctl.report.trends import trend
from opsctl.snapshots import Changes, Series, detect_changes
from opsctl.snapshots.changes import described
from opsctl.snapshots.headline import is_headline, watched

RUNS = "runs"
CHARTED = 40
"""Trends beyond this many are listed without a chart: a page of hundreds of charts is read by nobody."""


@dataclass(frozen=True)
class PageFile:
    """One file of the site: its path below the site's folder, and its text."""

    path: str
    text: str


def pages(records: Sequence[RunRecord], series: Sequence[Series]) -> Iterator[PageFile]:
    """Yield every file of the site. ``records`` in any order; ``series`` as the history gives them."""
    yield PageFile(html.PLOTLY_FILE, html.plotly_script())
    newest_first = sorted(records, key=lambda record: record.started, reverse=True)
    for place, record in enumerate(newest_first):
        previous = next((older for older in newest_first[place + 1 :] if _alike(record, older)), None)
        document = sections.build(record, previous, home="../index.html")
        text = html.render(document, plotly_file=f"../{html.PLOTLY_FILE}", link_files=False)
        yield PageFile(page_of(record.run), text)
    yield PageFile("index.html", html.render(index(newest_first, series), kind="opsctl", plotly_file=html.PLOTLY_FILE))


def page_of(run: str) -> str:
    """Return the path of a run's page."""
    return f"{RUNS}/{''.join(letter if letter.isalnum() or letter in '-_.' else '-' for letter in run)}.html"


def write(folder: Path, files: Iterator[PageFile]) -> int:
    """Write the site's files; return how many. Each is written whole or not at all."""
    count = 0
    for page in files:
        target = folder / page.path
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        partial.write_text(page.text, encoding="utf-8")
        partial.replace(target)
        count += 1
    return count


def _alike(record: RunRecord, other: RunRecord) -> bool:
    return (record.playbook, record.hosts) == (other.playbook, other.hosts)


def index(records: Sequence[RunRecord], series: Sequence[Series]) -> Document:
    """Return the first page: is production up, what changed, which runs there are."""
    judged = [(item, detect_changes(item)) for item in series if is_headline(item.key)]
    alarming = {id(item) for item in watched([item for item, _ in judged])}
    latest = [(item, found.changes[-1]) for item, found in judged if id(item) in alarming and found.changes]
    headline = (
        f"{len(latest)} watched figure{'s' if len(latest) != 1 else ''} changed level: "
        + "; ".join(f"{item.key.name} of {item.service} {described(change, item.points)}" for item, change in latest)
        if latest
        else _unchanged([found for item, found in judged if id(item) in alarming])
    )
    return Document(
        title="Model servers, measured",
        subtitle=f"{len(records)} runs, {len(series)} figures over time",
        headline=headline + ("" if latest and headline.endswith(".") else "." if latest else ""),
        headline_note="Watched: TPOT p50 at the lowest load and output throughput at the highest, per service. "
        "Method: change-point model of Hawkins and Deng (2010), 1 false alarm in 450 nights and figure.",
        tiles=tuple(_tiles(records)),
        sections=(_runs(records), *_trends(judged)),
        footer="Written by opsctl site.",
    )


def _unchanged(found: Sequence[Changes]) -> str:
    """Return the headline where no figure changed; where too few nights were seen, nothing is known of them."""
    judged = sum(one.judged > 0 for one in found)
    if judged == len(found) and found:
        return "No watched figure changed its level."
    if judged:
        return f"{judged} of {len(found)} watched figures can be judged, and did not change their level."
    return "No watched figure can be judged yet: too few nights."


def _tiles(records: Sequence[RunRecord]) -> Iterator[Tile]:
    seen: set[str] = set()
    for record in records:
        for item in record.production:
            if item.host in seen or item.standing is Standing.UNTOUCHED:
                continue
            seen.add(item.host)
            words, tone = production_words(item)
            when = "now" if record.ended is None else clock(record.ended)
            yield Tile(f"Production on {item.host}", words, f"run {record.run}, {when}", tone)
    if records:
        last = records[0]
        yield Tile("Last run", last.outcome or "unknown", last.run, STATE_TONES.get(last.outcome, "warn"))


def _runs(records: Sequence[RunRecord]) -> Section:
    if not records:
        return Section("runs", "Runs", (Prose("No run yet."),))
    rows: list[tuple[Inline, ...]] = []
    for record in records:
        took = seconds_between(record.started, record.ended)
        gone = [downtime(item) for item in record.production]
        known = [seconds for seconds in gone if seconds is not None]
        rows.append(
            (
                Mark(record.run, href=page_of(record.run), page=True),
                record.playbook,
                ", ".join(record.hosts),
                clock(record.started),
                ABSENT if took is None else format_duration(took),
                "unknown" if len(known) < len(gone) or not gone else format_duration(max(known)),
                state(record.outcome),
                finding(record).sentence,
            )
        )
    head = ("Run", "Playbook", "Hosts", "Started", "Took", "Production down", "Outcome", "Finding")
    return Section("runs", "Runs", (table(head, rows, numeric=(4, 5)),))


def _trends(judged: Sequence[tuple[Series, Changes]]) -> Iterator[Section]:
    charted = 0
    for owner in dict.fromkeys((item.host, item.service) for item, _ in judged):
        mine = [(item, found) for item, found in judged if (item.host, item.service) == owner]
        blocks: list[Block] = []
        for item, found in mine:
            if len(item.points) > 1 and charted < CHARTED:
                blocks.append(trend(item, found, f"trend-{charted}"))
                charted += 1
        blocks.append(
            table(
                ("Cell", "Figure", "Nights", "Last", "Changes", "Outliers"),
                [
                    (
                        Mark(item.key.cell, "code"),
                        item.key.name,
                        str(len(item.points)),
                        amount(item.points[-1].value, item.unit),
                        "; ".join(described(change, item.points) for change in found.changes) or "none found",
                        str(len(found.outliers)),
                    )
                    for item, found in mine
                ],
                numeric=(2, 3, 5),
            )
        )
        name = "".join(letter if letter.isalnum() else "-" for letter in f"{owner[0]}-{owner[1]}")
        yield Section(f"trends-{name}", f"{owner[1]} on {owner[0]}", tuple(blocks))

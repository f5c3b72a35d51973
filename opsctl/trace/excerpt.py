"""A small trace for people: a few steady steps of all ranks on one clock, for Perfetto's page."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import TraceError
from opsctl.trace.across import clock_offsets, match_ranks
from opsctl.trace.folders import trace_files
from opsctl.trace.inflate import Source
from opsctl.trace.rank import RankResult
from opsctl.trace.text import nanoseconds
from opsctl.trace.workers import analyse_files

_GAP = re.compile(rb"(?<=\})\s*,\s*(?=\{)")
_TS = re.compile(rb'"ts"\s*:\s*([-+.\deE]+)')
_EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_METADATA = re.compile(rb'"ph"\s*:\s*"M"')
_LARGEST_PIECE = 1 << 22
_MOST_EVENTS = 400_000
_LEAD_NS = 1_000_000
"""The host launches a step before the device runs it: so much of the time before belongs to the picture."""
_PIDS_A_RANK = 10_000_000


@dataclass(frozen=True)
class Excerpt:
    """What was written: events, steps of each rank, and where."""

    path: Path
    events: int
    steps: int
    ranks: int
    size: int


def write_excerpt(paths: Sequence[Path], out: Path, *, steps: int = 3, jobs: int | None = None) -> Excerpt:
    """Write ``steps`` steady steps of all ranks to ``out`` (gzip where it ends in .gz), times from its own start.

    Processes are numbered apart by rank, clocks are aligned by the ends of collectives. Raises TraceError where
    there are no steps to take, OSError where ``out`` cannot be written.
    """
    results = analyse_files(trace_files(list(paths)), jobs)
    team = match_ranks(results, None)
    offsets = clock_offsets(team)
    chosen = [(place, member) for place, member in enumerate(team.members) if member.steady]
    if not chosen:
        raise TraceError("there are no steady steps to take an excerpt of", where=", ".join(map(str, paths)))
    count = min(steps, *(len(member.steady) for _, member in chosen))
    windows = {place: _window(member, count) for place, member in chosen}
    shift = {place: member.base_ns - round(offsets.get(place, 0.0)) for place, member in chosen}
    origin = min(windows[place][0] + shift[place] for place, _ in chosen)
    events: list[dict[str, Any]] = []
    for place, member in chosen:
        rank = place if member.rank is None else member.rank
        events.extend(_events(member.path, windows[place], shift[place] - origin, rank))
        if len(events) > _MOST_EVENTS:
            raise TraceError(
                f"{count} steps hold over {_MOST_EVENTS} events: too many for Perfetto's page",
                hint="take fewer steps",
            )
    text = json.dumps({"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": events}, separators=(",", ":"))
    data = gzip.compress(text.encode(), mtime=0) if out.name.endswith(".gz") else text.encode()
    out.write_bytes(data)
    return Excerpt(out, len(events), count, len(chosen), len(data))


def _window(member: RankResult, count: int) -> tuple[int, int]:
    """Return from when to when the middle ``count`` steady steps run: the middle is the least disturbed."""
    first = (len(member.steady) - count) // 2
    taken = member.steady[first : first + count]
    lead = min(_LEAD_NS, taken[0].span * 2) if member.on_device else 0
    return taken[0].first - lead, max(step.last for step in taken)


def _events(path: Path, window: tuple[int, int], shift: int, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the events that begin in the window, and those that name processes and threads."""
    for piece in _pieces(path):
        match = _TS.search(piece)
        start = nanoseconds(match[1]) if match else None
        naming = _METADATA.search(piece) is not None
        if start is None or not (naming or window[0] <= start <= window[1]):
            continue
        try:
            event = json.loads(piece)
        except ValueError:
            continue
        if isinstance(event, dict):
            yield _moved(event, 0 if naming else start + shift, rank)


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the text of one event after another. What is no event (the head, the tail) does not parse as one."""
    pending, begun = b"", False
    for block in Source(path).blocks():
        pending += block
        if not begun:
            match = _EVENTS_BEGIN.search(pending)
            if match is None:
                continue
            pending, begun = pending[match.end() :], True
        *whole, pending = _GAP.split(pending)
        pending = pending[-_LARGEST_PIECE:]
        yield from whole
    yield re.sub(rb"\}\s*\].*\Z", b"}", pending, flags=re.DOTALL)


def _moved(event: dict[str, Any], start: int, rank: int) -> dict[str, Any]:
    """Return the event on the excerpt's clock, in the process numbers of its rank."""
    event["ts"] = start / 1000
    pid = event.get("pid")
    own = pid if isinstance(pid, int) and 0 <= pid < _PIDS_A_RANK else sum(str(pid).encode()) + _PIDS_A_RANK // 2
    event["pid"] = rank * _PIDS_A_RANK + own
    if isinstance(event.get("id"), int):
        event["id"] += rank << 40
    if event.get("name") == "process_name" and isinstance(event.get("args"), dict):
        event["args"]["name"] = f"rank {rank}: {event['args'].get('name', '')}"
    return event

"""A small trace for people: some steps (or a span of time) of all ranks on one clock, for Perfetto's page.

Kept are the device's work in the window, the launches that caused it and their flows however long before they stand,
what the host did meanwhile (step markers, operators, stacks), and what names processes, threads and devices.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.errors import TraceError
from opsctl.trace.decode import GAP, LIKELY_GAP
from opsctl.trace.events import Role, role_of
from opsctl.trace.folders import trace_files
from opsctl.trace.inflate import Source
from opsctl.trace.rank import RankResult
from opsctl.trace.rank_alignment import clock_offsets, match_ranks
from opsctl.trace.reading import EVENTS_BEGIN, read_file
from opsctl.trace.text import nanoseconds
from opsctl.trace.workers import analyse_files

_LARGEST_PIECE = 1 << 22
_MOST_EVENTS = 400_000
_MERGED_AT_MOST = 8
_PIDS_A_RANK = 10_000_000
_FLOWS = {"s", "t", "f"}
_ON_DEVICE = {"gpu_user_annotation"}


class _Spelled(float):
    """A number that remembers how it is spelled: float64 cannot hold every time."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


_exact = json.JSONDecoder(parse_float=_Spelled, strict=False)


@dataclass(frozen=True)
class Excerpt:
    """What was written: events, steps of each rank (0: a span of time was taken), and where."""

    path: Path
    events: int
    steps: int
    ranks: int
    size: int


@dataclass(frozen=True)
class Taken:
    """What to take: ``steps`` of the middle, or from ``step`` on, or [``begin``, ``end``] in ns after the first work.

    Of all ranks, or of ``rank``.
    """

    steps: int = 3
    step: int | None = None
    begin: int | None = None
    end: int | None = None
    rank: int | None = None

    @property
    def timed(self) -> bool:
        """Whether a span of time is asked for."""
        return self.begin is not None or self.end is not None


def write_excerpt(
    paths: Sequence[Path], out: Path, taken: Taken | None = None, *, jobs: int | None = None, only: str | None = None
) -> Excerpt:
    """Write a part of all ranks to ``out`` (gzip where it ends in .gz), times from its own start.

    Processes are numbered apart by rank, clocks are aligned by the ends of collectives. Raises TraceError where what is
    asked for is not there, OSError where ``out`` cannot be written.
    """
    asked = taken or Taken()
    team = match_ranks(analyse_files(trace_files(list(paths), only).files, jobs), None)
    offsets = clock_offsets(team)
    where = ", ".join(map(str, paths))
    chosen = [
        (place, member)
        for place, member in enumerate(team.members)
        if asked.rank in (None, place if member.rank is None else member.rank) and member.extent
    ]
    if not chosen:
        raise TraceError("there is no work to take an excerpt of", seen=f"rank {asked.rank}", where=where)
    if not asked.timed:
        chosen = [(place, member) for place, member in chosen if member.steady]
        if not chosen:
            raise TraceError(
                "there are no steady steps to take an excerpt of", where=where, hint="say --from and --to, in ms"
            )
    windows = {place: _window(member, asked) for place, member in chosen}
    shift = {place: member.base_ns - round(offsets.get(place, 0.0)) for place, member in chosen}
    parts = {place: _Part(member.path, windows[place]) for place, member in chosen}
    kept: list[tuple[dict[str, Any], int, int]] = []
    for place, member in chosen:
        rank = place if member.rank is None else member.rank
        kept.extend((event, start + shift[place], rank) for event, start in parts[place].events())
        if len(kept) > _MOST_EVENTS:
            raise TraceError(
                f"the excerpt holds over {_MOST_EVENTS} events: too many for Perfetto's page", hint="take less"
            )
    origin = min(start for event, start, _ in kept if event.get("ph") != "M")
    events = [_moved(event, start - origin, rank) for event, start, rank in kept]
    document: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": events}
    if parts[chosen[0][0]].devices:
        document["deviceProperties"] = parts[chosen[0][0]].devices
    text = json.dumps(document, separators=(",", ":")).encode()
    data = gzip.compress(text, mtime=0) if out.name.endswith(".gz") else text
    out.write_bytes(data)
    count = 0 if asked.timed else min(asked.steps, *(len(_steps(member, asked)) for _, member in chosen))
    return Excerpt(out, len(events), count, len(chosen), len(data))


def _steps(member: RankResult, asked: Taken) -> list[Any]:
    if asked.step is None:
        return member.steady
    ordered = sorted((step for steps in member.groups.values() for step in steps), key=lambda step: step.first)
    return ordered[asked.step :]


def _window(member: RankResult, asked: Taken) -> tuple[int, int]:
    """Return from when to when work is taken: by default the middle steady steps, which are the least disturbed."""
    if asked.timed:
        first, last = member.extent or (0, 0)
        begin = first + (asked.begin or 0)
        end = last if asked.end is None else first + asked.end
        if not begin < end or begin >= last:
            raise TraceError(
                "nothing runs in the span asked for",
                seen=f"{(begin - first) / 1e6:g} to {(end - first) / 1e6:g} ms of {(last - first) / 1e6:g} ms",
                where=str(member.path),
            )
        return begin, end
    steps = _steps(member, asked)
    if not steps:
        raise TraceError(f"there is no step {asked.step}", where=str(member.path))
    count = min(asked.steps, len(steps))
    first = (len(steps) - count) // 2 if asked.step is None else 0
    taken = steps[first : first + count]
    return taken[0].first, max(step.last for step in taken)


class _Part:
    """The events of one file that belong to a window of its device work (or of its host's, without a device)."""

    def __init__(self, path: Path, window: tuple[int, int]) -> None:
        self.path = path
        self.window = window
        columns = read_file(path).columns
        device, launches = columns.device, columns.spans[Role.LAUNCH]
        self.keys = {
            key
            for key, start, duration in zip(device.correlation, device.start, device.duration)
            if key >= 0 and start < window[1] and start + duration > window[0]
        }
        spans = [
            (start, start + duration)
            for key, start, duration in zip(launches.correlation, launches.start, launches.duration)
            if key in self.keys
        ]
        self.host = (min([window[0], *(a for a, _ in spans)]), max(b for _, b in spans) if spans else window[1])
        self.devices: Any = None

    def events(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the events to keep, with their start in ns."""
        for event in self._parsed():
            start = nanoseconds(str(event.get("ts", "")).encode())
            if event.get("ph") == "M":
                yield event, 0 if start is None else start
            elif start is not None and self._belongs(event, start):
                yield event, start

    def _belongs(self, event: dict[str, Any], start: int) -> bool:
        phase, category = str(event.get("ph")), str(event.get("cat", ""))
        arguments = event.get("args")
        if phase in _FLOWS:
            key = event.get("id")
            return key in self.keys if category == "ac2g" else self.host[0] <= start < self.host[1]
        end = start + (nanoseconds(str(event.get("dur", 0)).encode()) or 0)
        role = role_of(phase, category, str(event.get("name", "")))
        if role is Role.DEVICE or category in _ON_DEVICE:
            return start < self.window[1] and end > self.window[0]
        if role is Role.LAUNCH and isinstance(arguments, dict) and arguments.get("correlation") in self.keys:
            return True
        return start < self.host[1] and end >= self.host[0]

    def _parsed(self) -> Iterator[dict[str, Any]]:
        """Yield each event that is JSON; what looks like the gap between two may stand inside one's arguments."""
        waiting: list[bytes] = []
        for piece in self._pieces():
            waiting.append(piece)
            for first in range(len(waiting)):
                try:
                    event = _exact.decode(b",".join(waiting[first:]).decode("utf-8", "replace"))
                except ValueError:
                    continue
                if isinstance(event, dict):
                    yield event
                waiting = []
                break
            del waiting[:-_MERGED_AT_MOST]

    def _pieces(self) -> Iterator[bytes]:
        """Yield the text of one event after another. What is no event (the head, the tail) does not parse as one."""
        pending, begun = b"", False
        for block in Source(self.path).blocks():
            pending += block
            if not begun:
                match = EVENTS_BEGIN.search(pending)
                if match is None:
                    continue
                self.devices = _devices(pending[: match.start()])
                pending, begun = pending[match.end() :], True
            *whole, pending = LIKELY_GAP.split(pending)
            pending = pending[-_LARGEST_PIECE:]
            yield from whole
        last = GAP.split(pending)
        yield from last[:-1]
        yield re.sub(rb"\}\s*\].*\Z", b"}", last[-1], flags=re.DOTALL)


def _devices(head: bytes) -> Any:
    try:
        return json.loads(head.rstrip(b" \r\n\t,") + b"}").get("deviceProperties")
    except (ValueError, AttributeError):
        return None


def _moved(event: dict[str, Any], start: int, rank: int) -> dict[str, Any]:
    """Return the event on the excerpt's clock, in the process numbers of its rank."""
    event["ts"] = 0 if event.get("ph") == "M" else start / 1000
    pid = event.get("pid")
    own = pid if isinstance(pid, int) and 0 <= pid < _PIDS_A_RANK else sum(str(pid).encode()) + _PIDS_A_RANK // 2
    event["pid"] = rank * _PIDS_A_RANK + own
    if isinstance(event.get("id"), int):
        event["id"] += rank << 40
    if event.get("name") == "process_name" and isinstance(event.get("args"), dict):
        event["args"]["name"] = f"rank {rank}: {event['args'].get('name', '')}"
    return event

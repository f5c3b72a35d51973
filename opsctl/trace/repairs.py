"""Device times that cannot be: put right where that is certain, left out where it is not, and always said.

- A start at or before 0, or a day away from all others, is no time: when the work ran is not known, so it is left out.
- A negative duration is none: the call counts, with no time.
- Work of a stream runs in order. Where one piece seems to end after two later launches of its stream ran to their end,
  its end stamp came late (seen on ROCm): it is cut to the start of the next. Kernels of one graph launch may truly
  overlap, and so may one kernel and the next (programmatic launch): those are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opsctl.trace.events import Columns, Spans
from opsctl.trace.speedups import optional

_DAY_NS = 86_400 * 10**9
_SECOND_NS = 10**9
_NAMED = 3


def repair(columns: Columns) -> list[str]:
    """Put the device times of a file right, in place; return what was done, for a person."""
    spans = columns.device
    said: list[str] = []
    if not len(spans):
        return said
    lost = _without_time(spans)
    if lost:
        said.append(f"{_pieces(columns, lost)} an impossible start: left out")
        spans.remove(set(lost))
    np = optional("numpy")
    negative = (
        [place for place, duration in enumerate(spans.duration) if duration < 0]
        if np is None
        else np.flatnonzero(np.asarray(spans.duration) < 0).tolist()
    )
    if negative:
        said.append(f"{_pieces(columns, negative)} a negative duration: counted, with no time")
    for place in negative:
        spans.duration[place] = 0
    late = _late_ends(np, spans)
    if late:
        said.append(
            f"{_pieces(columns, [place for place, _ in late])} an end after later work of its stream ended: cut"
        )
    for place, following in late:
        spans.duration[place] = spans.start[following] - spans.start[place]
    return said


def _pieces(columns: Columns, places: Iterable[int]) -> str:
    own = list(places)
    names = list(dict.fromkeys(columns.names[columns.device.name[place]][1] for place in own))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    noun, verb = ("piece", "has") if len(own) == 1 else ("pieces", "have")
    return f"{len(own)} {noun} of device work ({', '.join(names[:_NAMED])}{more}) {verb}"


def _without_time(spans: Spans) -> list[int]:
    first, last = min(spans.start), max(spans.start)
    if first > 0 and last - first < _DAY_NS:
        return []
    middle = sorted(spans.start)[len(spans) // 2]
    return [
        place
        for place, start in enumerate(spans.start)
        if abs(start - middle) > _DAY_NS or (start <= 0 and middle - start > _SECOND_NS)
    ]


def _late_ends(np: Any, spans: Spans) -> list[tuple[int, int]]:
    """Return (place, place of the next on its stream) of work whose end stamp came late."""
    if np is None:
        order = sorted(range(len(spans)), key=lambda place: (spans.lane[place], spans.start[place]))
        rows = [
            (spans.lane[i], spans.start[i], spans.start[i] + spans.duration[i], spans.correlation[i]) for i in order
        ]
        return [
            (order[i], order[i + 1])
            for i, (one, two, three) in enumerate(zip(rows, rows[1:], rows[2:]))
            if one[0] == three[0]
            and one[1] < two[1] < two[2] <= three[1] < three[2] < one[2]
            and 0 <= one[3] != two[3] >= 0
            and one[3] != three[3] >= 0
            and two[3] != three[3]
        ]
    lane, start, length, key = (
        np.asarray(column) for column in (spans.lane, spans.start, spans.duration, spans.correlation)
    )
    order = np.lexsort((start, lane)) if (np.diff(start) < 0).any() or (lane != lane[0]).any() else np.arange(len(lane))
    lane, start, key, end = lane[order], start[order], key[order], (start + length)[order]
    late = (end[2:] < end[:-2]) & (lane[2:] == lane[:-2])
    for place in np.flatnonzero(late).tolist():
        one, two, three = place, place + 1, place + 2
        in_order = start[one] < start[two] < end[two] <= start[three] < end[three]
        known = min(key[one], key[two], key[three]) >= 0
        late[place] = in_order and known and len({int(key[n]) for n in (one, two, three)}) == 3
    return [(int(order[place]), int(order[place + 1])) for place in np.flatnonzero(late)]

"""Busy time: unions of intervals, and who a moment belongs to where intervals overlap.

All times are whole nanoseconds, so the answers of the two implementations (numpy, and plain Python where
there is none) are equal, and do not depend on the order in which events stand in a file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.trace.grouping import exact_sums
from opsctl.trace.speedups import optional

_CHUNK = 1 << 16
"""Intervals taken at a time: memory stays bounded, and what is worked on stays in the cache."""


@dataclass
class Occupancy:
    """How the intervals of one group (a step) lie over each other, by class (a category). Lists are by class.

    ``busy`` is the union of all. ``exclusive`` sums to it: a moment belongs to the lowest class among those
    that run. ``union`` counts a moment for every class that runs in it, ``total`` for every interval.
    """

    busy: int
    exclusive: list[int]
    union: list[int]
    total: list[int]


@dataclass
class Intervals:
    """Intervals by columns: group (a step; below 0: of none), start and duration in ns, class."""

    group: Sequence[int]
    start: Sequence[int]
    duration: Sequence[int]
    kind: Sequence[int]


def occupancy(intervals: Intervals, groups: int, kinds: int) -> list[Occupancy]:
    """Return one Occupancy for each group in 0…groups-1; classes are 0…kinds-1.

    Intervals of different groups never meet, even where their times overlap. A duration below 0 counts as 0.
    """
    np = optional("numpy")
    if np is None:
        return _occupancy_plain(intervals, groups, kinds)
    return _occupancy_numpy(np, intervals, groups, kinds)


def clipped(
    start: Sequence[int], duration: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    """Cut intervals to windows, which are sorted and never overlap; what lies in several windows is split.

    Returns columns: the window's place, the interval's place, start and duration of the part.
    """
    np = optional("numpy")
    if np is None:
        rows = [
            (window, place, max(begin, begins[window]), min(begin + length, ends[window]))
            for place, (begin, length) in enumerate(zip(start, duration))
            for window in range(bisect_right(ends, begin), bisect_left(begins, begin + length))
        ]
        columns = list(zip(*rows)) or [(), (), (), ()]
        return columns[0], columns[1], columns[2], [end - begin for begin, end in zip(columns[2], columns[3])]
    begin, length = np.asarray(start, dtype=np.int64), np.asarray(duration, dtype=np.int64)
    opens, closes = np.asarray(begins, dtype=np.int64), np.asarray(ends, dtype=np.int64)
    first = np.searchsorted(closes, begin, side="right")
    count = np.maximum(np.searchsorted(opens, begin + length, side="left") - first, 0)
    piece = np.repeat(np.arange(len(begin)), count)
    window = np.arange(len(piece)) - np.repeat(np.cumsum(count) - count - first, count)
    from_ = np.maximum(begin[piece], opens[window])
    return window, piece, from_, np.minimum(begin[piece] + length[piece], closes[window]) - from_


def union(start: Sequence[int], duration: Sequence[int]) -> int:
    """Return the ns during which at least one interval runs. A duration below 0 counts as 0."""
    np = optional("numpy")
    if np is None:
        nought = [0] * len(start)
        return _occupancy_plain(Intervals(nought, start, duration, nought), 1, 1)[0].busy
    begin, length = np.asarray(start, dtype=np.int64), np.asarray(duration, dtype=np.int64)
    if not (length > 0).all():
        begin, length = begin[length > 0], length[length > 0]
    if not len(begin):
        return 0
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], (begin + length)[order]
    reached = np.maximum.accumulate(end)
    gaps = np.maximum(begin[1:] - reached[:-1], 0).sum()
    return int(reached[-1] - begin[0] - gaps)


def total(duration: Sequence[int]) -> int:
    """Return the ns of all intervals together. A duration below 0 counts as 0."""
    np = optional("numpy")
    if np is None:
        return sum(length for length in duration if length > 0)
    return int(np.maximum(np.asarray(duration, dtype=np.int64), 0).sum())


def _occupancy_plain(intervals: Intervals, groups: int, kinds: int) -> list[Occupancy]:
    result = [Occupancy(0, [0] * kinds, [0] * kinds, [0] * kinds) for _ in range(groups)]
    edges: list[list[tuple[int, int, int]]] = [[] for _ in range(groups)]
    columns = (intervals.group, intervals.start, intervals.duration, intervals.kind)
    for number, begin, length, which in zip(*columns):
        if 0 <= number < groups and length > 0:
            result[number].total[which] += length
            edges[number].append((begin, 1, which))
            edges[number].append((begin + length, -1, which))
    for found, sides in zip(result, edges):
        sides.sort()
        _walk(found, sides, [0] * kinds)
    return result


def _walk(found: Occupancy, sides: list[tuple[int, int, int]], running: list[int]) -> None:
    """Add up one group's sorted edges: (moment, +1 begins or -1 ends, class)."""
    before = 0
    for moment, change, which in sides:
        passed = moment - before
        before = moment
        if passed and any(running):
            found.busy += passed
            active = [index for index, count in enumerate(running) if count]
            found.exclusive[active[0]] += passed
            for index in active:
                found.union[index] += passed
        running[which] += change


@dataclass
class _Tables:
    """Sums in the making: ``busy`` by group, the others by group and class."""

    busy: Any
    exclusive: Any
    union: Any
    total: Any


def _occupancy_numpy(np: Any, intervals: Intervals, groups: int, kinds: int) -> list[Occupancy]:
    columns = (intervals.group, intervals.start, intervals.duration, intervals.kind)
    group, start, duration, kind = (np.asarray(column, dtype=np.int64) for column in columns)
    sums = _Tables(np.zeros(groups, dtype=np.int64), *(np.zeros((groups, kinds), dtype=np.int64) for _ in range(3)))
    chosen = np.flatnonzero((group >= 0) & (group < groups) & (duration > 0))
    if len(chosen):
        chosen = chosen[np.lexsort((start[chosen], group[chosen]))]
        group, start, kind = group[chosen], start[chosen], kind[chosen]
        end = start + duration[chosen]
        cell = group * kinds + kind
        sums.total += exact_sums(np, cell, end - start, groups * kinds).reshape(groups, kinds)
        lone = _lone(np, group, start, end)
        alone = exact_sums(np, cell[lone], (end - start)[lone], groups * kinds).reshape(groups, kinds)
        sums.exclusive += alone
        sums.union += alone
        sums.busy += alone.sum(axis=1)
        group, start, end, kind = (column[~lone] for column in (group, start, end, kind))
        for first, last in _cuts(np, group, start, end):
            run = slice(first, last)
            _sweep(np, Intervals(group[run], start[run], end[run] - start[run], kind[run]), sums)
    rows = (table.tolist() for table in (sums.busy, sums.exclusive, sums.union, sums.total))
    return [Occupancy(*row) for row in zip(*rows)]


def _lone(np: Any, group: Any, start: Any, end: Any) -> Any:
    """Return which intervals, sorted by group and start, meet no other of their group: most, on one stream."""
    first = np.flatnonzero(np.diff(group, prepend=-1))
    number = np.cumsum(np.diff(group, prepend=group[0]) != 0)
    begin = start - start[first][number]
    apart = int((end - start[first][number]).max()) + 1
    if apart * len(first) > 1 << 62:
        return np.zeros(len(start), dtype=bool)
    # Groups are laid one after the other on a clock of their own, so that one running maximum serves them all.
    begin += number * apart
    finish = begin + (end - start)
    reached = np.maximum.accumulate(finish)
    lone = np.ones(len(start), dtype=bool)
    lone[1:] &= begin[1:] >= reached[:-1]
    lone[:-1] &= finish[:-1] <= begin[1:]
    return lone


def _cuts(np: Any, group: Any, start: Any, end: Any) -> Any:
    """Yield [first, last) of runs of about _CHUNK intervals, cut where nothing runs."""
    count = len(start)
    first = 0
    while first < count:
        last = min(first + _CHUNK, count)
        while last < count:
            # Ends are compared within the last group only: groups never meet.
            own = first + int(np.searchsorted(group[first:last], group[last - 1]))
            if group[last] != group[last - 1] or start[last] >= end[own:last].max():
                break
            last = min(last + 256, count)
        yield first, last
        first = last


def _sweep(np: Any, run: Any, sums: _Tables) -> None:
    """Add up one run of intervals, sorted by group and start."""
    moments = np.concatenate((run.start, run.start + run.duration))
    owners = np.concatenate((run.group, run.group))
    order = np.lexsort((moments, owners))
    moments, owners = moments[order], owners[order]
    passed = np.diff(moments, append=moments[-1:])
    passed[:-1][owners[1:] != owners[:-1]] = 0
    change = np.ones(len(moments), dtype=np.int32)
    change[len(run.start) :] = -1
    change, which = change[order], np.concatenate((run.kind, run.kind))[order]
    taken = np.zeros(len(moments), dtype=bool)
    edges = np.flatnonzero(np.diff(owners, prepend=-1))
    groups = owners[edges]
    # (np.unique would load numpy.ma, which takes longer than a rank of 0.1 GB may.)
    for index in np.flatnonzero(np.bincount(run.kind)).tolist():
        running = np.cumsum(np.where(which == index, change, 0)) > 0
        sums.union[groups, index] += np.add.reduceat(np.where(running, passed, 0), edges)
        sums.exclusive[groups, index] += np.add.reduceat(np.where(running & ~taken, passed, 0), edges)
        taken |= running
    sums.busy[groups] += np.add.reduceat(np.where(taken, passed, 0), edges)

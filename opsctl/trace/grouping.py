"""Sums by key over long columns: exact whole numbers, with numpy or without."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.trace.speedups import optional

_EXACT_IN_FLOAT = 1 << 53
_DENSE = 1 << 22
"""Pairs of which all that could be are counted, also those that do not occur: faster than sorting."""


def totals(keys: Sequence[int], values: Sequence[int] | None, size: int) -> list[int]:
    """Return for each key in 0…size-1 the sum of its values (None: how often it stands there); others are left out."""
    np = optional("numpy")
    if np is None:
        sums = [0] * size
        for key, value in zip(keys, [1] * len(keys) if values is None else values):
            if 0 <= key < size:
                sums[key] += value
        return sums
    index = np.asarray(keys, dtype=np.int64)
    weights = None if values is None else np.asarray(values, dtype=np.int64)
    chosen = (index >= 0) & (index < size)
    if not chosen.all():
        index, weights = index[chosen], None if weights is None else weights[chosen]
    return [int(total) for total in exact_sums(np, index, weights, size).tolist()]


def exact_sums(np: Any, index: Any, values: Any, size: int) -> Any:
    """Return whole sums of values by index, through ``bincount`` where its float64 is exact (below 2**53)."""
    if values is None:
        return np.bincount(index, minlength=size)
    if len(values) and int(np.abs(values).max()) * len(values) < _EXACT_IN_FLOAT:
        return np.bincount(index, weights=values, minlength=size).astype(np.int64)
    sums = np.zeros(size, dtype=np.int64)
    np.add.at(sums, index, values)
    return sums


def extents(keys: Sequence[int], start: Sequence[int], duration: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each key from 0 on the first start and the last end of its intervals."""
    np = optional("numpy")
    found: dict[int, tuple[int, int]] = {}
    if np is None:
        for key, begin, length in zip(keys, start, duration):
            first, last = found.get(key, (begin, begin + length))
            found[key] = min(first, begin), max(last, begin + length)
        return {key: extent for key, extent in found.items() if key >= 0}
    index, begin = np.asarray(keys, dtype=np.int64), np.asarray(start, dtype=np.int64)
    end = begin + np.asarray(duration, dtype=np.int64)
    chosen = index >= 0
    if not chosen.all():
        index, begin, end = index[chosen], begin[chosen], end[chosen]
    if not len(index):
        return {}
    if not (index[1:] >= index[:-1]).all():
        order = np.argsort(index, kind="stable")
        index, begin, end = index[order], begin[order], end[order]
    edges = np.flatnonzero(np.diff(index, prepend=-1))
    firsts, lasts = np.minimum.reduceat(begin, edges), np.maximum.reduceat(end, edges)
    return dict(zip(index[edges].tolist(), zip(firsts.tolist(), lasts.tolist())))


def totals_of_pairs(
    outer: Sequence[int], inner: Sequence[int], values: Sequence[int], inner_size: int
) -> dict[tuple[int, int], int]:
    """Return the sum of values for each pair (outer, inner) that occurs, both from 0 on."""
    np = optional("numpy")
    sums: dict[tuple[int, int], int] = {}
    if np is None:
        for pair, value in zip(zip(outer, inner), values):
            if pair[0] >= 0:
                sums[pair] = sums.get(pair, 0) + value
        return sums
    first = np.asarray(outer, dtype=np.int64)
    chosen = first >= 0
    keys = first[chosen] * inner_size + np.asarray(inner, dtype=np.int64)[chosen]
    own = np.asarray(values, dtype=np.int64)[chosen]
    if len(keys) and int(keys.max()) < _DENSE:
        size = int(keys.max()) + 1
        found = np.flatnonzero(np.bincount(keys, minlength=size))
        result = exact_sums(np, keys, own, size)[found]
    else:
        found, inverse = np.unique(keys, return_inverse=True)
        result = exact_sums(np, inverse, own, len(found))
    pairs: list[tuple[int, int]] = [divmod(key, inner_size) for key in found.tolist()]
    return dict(zip(pairs, map(int, result.tolist())))


def pick(column: Sequence[int], index: Sequence[int]) -> Sequence[int]:
    """Return the values of a short table ``column`` at the places ``index``, all of them valid (-1: the last)."""
    np = optional("numpy")
    if np is None:
        return [column[place] for place in index]
    picked: Sequence[int] = np.asarray(column, dtype=np.int64)[np.asarray(index, dtype=np.int64)]
    return picked


def where_known(known: Sequence[int], column: Sequence[int]) -> Sequence[int]:
    """Return the column, -1 where ``known`` is below 0."""
    np = optional("numpy")
    if np is None:
        return [value if key >= 0 else -1 for key, value in zip(known, column)]
    values: Sequence[int] = np.where(np.asarray(known, dtype=np.int64) >= 0, np.asarray(column, dtype=np.int64), -1)
    return values


def sorted_places(bounds: Sequence[int], keys: Sequence[int]) -> Sequence[int]:
    """Return for each key the index of the last of the sorted ``bounds`` that is not above it; -1 before the first."""
    np = optional("numpy")
    if np is None:
        return [bisect_right(bounds, key) - 1 for key in keys]
    wanted = np.asarray(keys, dtype=np.int64)
    places: list[int] = (np.searchsorted(np.asarray(bounds, dtype=np.int64), wanted, side="right") - 1).tolist()
    return places


def look_up(table: Mapping[int, int], keys: Sequence[int], absent: int) -> Sequence[int]:
    """Return what the table says of each key, ``absent`` where it says nothing."""
    np = optional("numpy")
    if np is None or not table:
        return [table.get(key, absent) for key in keys]
    known = np.fromiter(sorted(table), dtype=np.int64, count=len(table))
    said = np.fromiter((table[key] for key in known.tolist()), dtype=np.int64, count=len(table))
    wanted = np.asarray(keys, dtype=np.int64)
    # What one graph launched stands together: of a run of equal keys one is looked up.
    first = np.append(True, wanted[1:] != wanted[:-1])[: len(wanted)]
    own = wanted[first]
    place = np.minimum(np.searchsorted(known, own), len(known) - 1)
    found: Sequence[int] = np.where(known[place] == own, said[place], absent)[np.cumsum(first) - 1]
    return found


def where_equal(keys: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    """Return the keys, -1 where ``others`` holds another one."""
    np = optional("numpy")
    if np is None:
        return [key if key == other else -1 for key, other in zip(keys, others)]
    values: Sequence[int] = np.where(np.asarray(keys) == np.asarray(others), np.asarray(keys), -1)
    return values


def differ(keys: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two columns of the same length differ anywhere."""
    np = optional("numpy")
    if np is None:
        return any(key != other for key, other in zip(keys, others))
    return bool((np.asarray(keys) != np.asarray(others)).any())

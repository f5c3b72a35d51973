"""Sums by key over long columns: exact whole numbers, with numpy or without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.trace.speedups import optional


def totals(keys: Sequence[int], values: Sequence[int] | None, size: int) -> list[int]:
    """Return for each key in 0…size-1 the sum of its values (None: how often it stands there); others are left out."""
    np = optional("numpy")
    if np is None:
        sums = [0] * size
        for key, value in zip(keys, [1] * len(keys) if values is None else values, strict=True):
            if 0 <= key < size:
                sums[key] += value
        return sums
    index = np.asarray(keys, dtype=np.int64)
    chosen = (index >= 0) & (index < size)
    result = np.zeros(size, dtype=np.int64)
    np.add.at(result, index[chosen], 1 if values is None else np.asarray(values, dtype=np.int64)[chosen])
    return [int(total) for total in result.tolist()]


def extents(keys: Sequence[int], start: Sequence[int], duration: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return for each key from 0 on the first start and the last end of its intervals."""
    np = optional("numpy")
    found: dict[int, tuple[int, int]] = {}
    if np is None:
        for key, begin, length in zip(keys, start, duration, strict=True):
            first, last = found.get(key, (begin, begin + length))
            found[key] = min(first, begin), max(last, begin + length)
        return {key: extent for key, extent in found.items() if key >= 0}
    index, begin = np.asarray(keys, dtype=np.int64), np.asarray(start, dtype=np.int64)
    chosen = index >= 0
    index, begin, end = index[chosen], begin[chosen], (begin + np.asarray(duration, dtype=np.int64))[chosen]
    if not len(index):
        return {}
    firsts = np.full(int(index.max()) + 1, np.iinfo(np.int64).max)
    lasts = np.full(len(firsts), np.iinfo(np.int64).min)
    np.minimum.at(firsts, index, begin)
    np.maximum.at(lasts, index, end)
    return {key: (int(firsts[key]), int(lasts[key])) for key in np.unique(index).tolist()}


def totals_of_pairs(
    outer: Sequence[int], inner: Sequence[int], values: Sequence[int], inner_size: int
) -> dict[tuple[int, int], int]:
    """Return the sum of values for each pair (outer, inner) that occurs, both from 0 on."""
    np = optional("numpy")
    sums: dict[tuple[int, int], int] = {}
    if np is None:
        for pair, value in zip(zip(outer, inner, strict=True), values, strict=True):
            if pair[0] >= 0:
                sums[pair] = sums.get(pair, 0) + value
        return sums
    first = np.asarray(outer, dtype=np.int64)
    chosen = first >= 0
    keys = first[chosen] * inner_size + np.asarray(inner, dtype=np.int64)[chosen]
    found, inverse = np.unique(keys, return_inverse=True)
    result = np.zeros(len(found), dtype=np.int64)
    np.add.at(result, inverse, np.asarray(values, dtype=np.int64)[chosen])
    return dict(zip(_pairs(found, inner_size), map(int, result.tolist()), strict=True))


def _pairs(keys: Any, inner_size: int) -> list[tuple[int, int]]:
    return [divmod(key, inner_size) for key in keys.tolist()]


def pick(column: Sequence[int], index: Sequence[int]) -> Sequence[int]:
    """Return the values of a short table ``column`` at the places ``index``, all of them valid."""
    np = optional("numpy")
    if np is None:
        return [column[place] for place in index]
    picked: Sequence[int] = np.asarray(column, dtype=np.int64)[np.asarray(index, dtype=np.int64)]
    return picked

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.trace import intervals
from opsctl.trace.intervals import Intervals, Occupancy, occupancy, total, union

GROUPS, KINDS = 3, 3
ROWS = st.lists(
    st.tuples(st.integers(-1, GROUPS), st.integers(0, 60), st.integers(-1, 25), st.integers(0, KINDS - 1)), max_size=40
)


def brute_force(rows: list[tuple[int, int, int, int]], epoch: int) -> list[Occupancy]:
    """Look at every single nanosecond."""
    result = []
    for group in range(GROUPS):
        own = [row for row in rows if row[0] == group and row[2] > 0]
        found = Occupancy(0, [0] * KINDS, [0] * KINDS, [0] * KINDS)
        for _, _, duration, kind in own:
            found.total[kind] += duration
        for moment in range(100):
            active = sorted({kind for _, start, duration, kind in own if start <= moment < start + duration})
            found.busy += bool(active)
            for kind in active:
                found.union[kind] += 1
            for kind in active[:1]:
                found.exclusive[kind] += 1
        result.append(found)
    assert epoch >= 0
    return result


@settings(max_examples=200, deadline=None)
@given(rows=ROWS, epoch=st.sampled_from([0, 10**18]), chunk=st.sampled_from([2, 7, 1 << 16]), seed=st.integers(0, 9))
@pytest.mark.parametrize("without", ["", "numpy"])
def test_against_every_single_nanosecond(
    without: str, rows: list[tuple[int, int, int, int]], epoch: int, chunk: int, seed: int
) -> None:
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)  # noqa: S311
    columns = [list(column) for column in zip(*shuffled, strict=True)] or [[], [], [], []]
    columns[1] = [start + epoch for start in columns[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSCTL_TRACE_WITHOUT", without)
        patch.setattr(intervals, "_CHUNK", chunk)
        assert occupancy(Intervals(*columns), GROUPS, KINDS) == brute_force(rows, epoch)
        (whole,) = brute_force([(0, start, length, 0) for _, start, length, _ in rows], epoch)[:1]
        assert (union(columns[1], columns[2]), total(columns[2])) == (whole.busy, sum(whole.total))


@pytest.mark.parametrize("without", ["", "numpy"])
def test_two_streams_side_by_side_are_counted_once(monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    assert union([0, 5, 30], [10, 10, 1]) == 16
    assert union([], []) == 0


def test_exclusive_adds_up_to_busy_and_hidden_is_the_rest() -> None:
    # class 0 computes 0–10, class 1 communicates 5–20: half a step of communication is hidden
    (found,) = occupancy(Intervals([0, 0], [0, 5], [10, 15], [0, 1]), 1, 2)
    assert found == Occupancy(busy=20, exclusive=[10, 10], union=[10, 15], total=[10, 15])

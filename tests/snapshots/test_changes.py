from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.snapshots import detect_changes
from opsctl.snapshots.changes import FEWEST, WINDOW, detect, hampel, ranks, strongest_split
from opsctl.snapshots.headline import watched
from tests.snapshots.nights import OUTPUT, TPOT, series

ROOT = Path(__file__).parents[2]


def noisy(level: float, nights: int, seed: int) -> list[float]:
    source = random.Random(seed)  # noqa: S311
    return [level * (1 + source.gauss(0, 0.02)) for _ in range(nights)]


def test_a_step_is_found_where_it_began_and_as_large_as_it_is() -> None:
    (change,) = detect([*noisy(12.0, 30, 1), *noisy(13.0, 10, 2)]).changes
    assert abs(change.began - 30) <= 2
    assert change.found < 37
    assert change.relative == pytest.approx(1 / 12, abs=0.02)
    assert change.statistic > change.threshold


def test_what_is_found_does_not_depend_on_nights_to_come() -> None:
    values = [*noisy(12.0, 30, 1), *noisy(13.0, 30, 2), *noisy(12.0, 30, 3)]
    whole = detect(values)
    assert len(whole.changes) == 2
    for change in whole.changes:
        assert change in detect(values[: change.found + 1]).changes
        assert change not in detect(values[: change.found]).changes


def test_one_bad_night_is_an_outlier_and_two_weeks_are_a_change() -> None:
    quiet = noisy(12.0, 40, 5)
    bad = [*quiet[:30], 18.0, *quiet[31:]]
    assert detect(bad).outliers == (30,)
    assert detect(bad).changes == ()
    assert detect([*quiet[:30], *noisy(18.0, 14, 6)]).changes[0].began == 30


def test_too_few_nights_are_not_judged() -> None:
    found = detect([12.0] * 5 + [20.0] * (FEWEST - 6))
    assert found.judged == 0
    assert found.changes == ()


def test_values_that_never_move_are_quiet() -> None:
    assert detect([12.0] * 100).changes == ()
    assert detect([0.0] * 100).outliers == ()


def test_another_fingerprint_is_judged_anew_and_is_no_change() -> None:
    values = [*noisy(12.0, 30, 1), *noisy(15.0, 30, 2)]
    same = detect_changes(series(values))
    assert len(same.changes) == 1
    upgraded = detect_changes(series(values, ["a"] * 30 + ["b"] * 30))
    assert upgraded.changes == ()
    assert upgraded.renewals == (30,)
    later = detect_changes(series([*noisy(9.0, 20, 4), *values], ["z"] * 20 + ["a"] * 60))
    assert later.renewals == (20,)
    assert abs(later.changes[0].began - 50) <= 2


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=70))
def test_ranks_are_those_of_the_definition(values: list[int]) -> None:
    expected = [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]
    assert ranks(values) == expected


@given(st.lists(st.floats(-1e6, 1e6), min_size=FEWEST, max_size=WINDOW, unique=True))
def test_only_the_order_of_the_values_matters(values: list[float]) -> None:
    order = sorted(values)
    split, statistic = strongest_split(values)
    assert strongest_split([float(order.index(value)) for value in values]) == (split, statistic)
    assert 1 <= split < len(values)
    assert math.isfinite(statistic)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=90))
def test_no_series_breaks_it(values: list[float]) -> None:
    found = detect(values)
    assert all(0 <= change.began <= change.found < len(values) for change in found.changes)
    assert set(found.outliers) <= set(range(len(values)))


def test_hampel() -> None:
    assert hampel([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 9.0]) == [7]
    assert hampel([1.0, 9.0]) == []


def test_two_figures_a_service_are_watched() -> None:
    one = series([1.0])
    cells = ("concurrency=8", "concurrency=64", "concurrency=1")
    listed = [
        type(one)(host="h", service="s", key=key.model_copy(update={"cell": cell}), unit="", points=one.points)
        for key in (TPOT, OUTPUT, TPOT.model_copy(update={"name": "ttft.p50"}))
        for cell in cells
    ]
    assert [(item.key.name, item.key.cell) for item in watched(listed)] == [
        ("tpot.p50", "concurrency=1"),
        ("output_throughput", "concurrency=64"),
    ]


def test_the_benchmark_prints_every_figure_beside_its_bound() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/change_detection.py", "--json", "--series", "40"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    document = json.loads(done.stdout)
    assert len(document["results"]) == 10
    assert all({"value", "bound", "held", "low", "high"} <= set(result) for result in document["results"])
    assert done.returncode == (0 if document["held"] else 1), done.stderr

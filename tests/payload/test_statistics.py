import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.payload.statistics import figure, interval, mean, percentile, std, t_975

FLOATS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(FLOATS, st.sampled_from([0.0, 1.0, 50.0, 90.0, 95.0, 99.0, 100.0]))
def test_percentile_is_numpys(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.percentile(values, share)), abs=1e-6)


@given(FLOATS)
def test_mean_and_std_are_numpys(values: list[float]) -> None:
    assert mean(values) == pytest.approx(float(np.mean(values)), abs=1e-6)
    assert std(values) == pytest.approx(float(np.std(values)), abs=1e-4)
    if len(values) > 1:
        assert std(values, sample=True) == pytest.approx(float(np.std(values, ddof=1)), abs=1e-4)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (10, 2.228), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)],
)
def test_students_t_is_the_tables(degrees: int, quantile: float) -> None:
    assert t_975(degrees) == pytest.approx(quantile, abs=1e-3)


def test_interval_of_three_rounds() -> None:
    low, high = interval([10.0, 11.0, 12.0]) or (0.0, 0.0)
    half = 4.303 * 1.0 / math.sqrt(3)
    assert low == pytest.approx(11 - half, rel=1e-3)
    assert high == pytest.approx(11 + half, rel=1e-3)


def test_one_round_has_no_interval() -> None:
    assert interval([10.0]) is None
    assert figure("x", 1.0, "ms").low is None


@pytest.mark.parametrize("call", [lambda: mean([]), lambda: percentile([], 50), lambda: t_975(0)])
def test_nothing_measured_is_an_error(call: object) -> None:
    with pytest.raises(ValueError, match=r"no values|at least 1"):
        call()  # type: ignore[operator]

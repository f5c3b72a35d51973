from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.errors import UnfitError
from opsctl.snapshots import History, MetricKey, compare, compare_with_nights
from opsctl.snapshots.choosing import compare_all, since, snapshots_of_run
from opsctl.snapshots.comparing import MetricComparison, Side, Verdict, ratio_bounds
from opsctl.snapshots.limits import breaches, parse_limit
from tests.snapshots.nights import FINGERPRINT, TPOT, night


@pytest.mark.parametrize(
    ("a", "b", "half", "verdict", "better"),
    [
        (12.0, 12.05, 0.1, Verdict.UNCHANGED, None),
        (12.0, 12.6, 0.1, Verdict.LARGER, False),
        (12.0, 11.4, 0.1, Verdict.SMALLER, True),
        (12.0, 14.0, 2.0, Verdict.CANNOT_TELL, None),
        (12.0, 12.0, 0.6, Verdict.CANNOT_TELL, None),
        (12.0, 24.0, None, Verdict.CANNOT_TELL, None),
    ],
)
def test_a_verdict_needs_more_than_noise(
    a: float, b: float, half: float | None, verdict: Verdict, better: bool | None
) -> None:
    (metric,) = compare(night(0, a, half=half), night(1, b, half=half)).metrics
    assert metric.verdict is verdict
    assert metric.better is better
    assert metric.change == pytest.approx(b / a - 1)
    assert metric.noise


def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says() -> None:
    source = random.Random(11)  # noqa: S311
    held, trials, sd, n, t = 0, 2000, 0.4, 5, 2.776
    for _ in range(trials):
        sides = []
        for mean in (12.0, 12.6):
            values = [source.gauss(mean, sd) for _ in range(n)]
            middle = sum(values) / n
            spread = math.sqrt(sum((value - middle) ** 2 for value in values) / (n - 1))
            half = t * spread / math.sqrt(n)
            sides.append(Side(value=middle, low=middle - half, high=middle + half))
        bounds = ratio_bounds(*sides)
        assert bounds is not None
        held += bounds[0] <= 12.6 / 12.0 - 1 <= bounds[1]
    assert 0.945 <= held / trials <= 0.99


def test_nights_give_a_prediction_interval() -> None:
    nights = [night(index, value, half=None) for index, value in enumerate((12.0, 12.1, 11.9, 12.05, 11.95))]
    ordinary = compare_with_nights(nights, night(9, 12.2, half=None)).metrics[0]
    assert ordinary.verdict is Verdict.UNCHANGED
    assert "5 nights" in ordinary.noise
    slow = compare_with_nights(nights, night(9, 12.6, half=None)).metrics[0]
    assert slow.verdict is Verdict.LARGER
    assert slow.better is False
    # t(4) s sqrt(1 + 1/5) = 2.776 * 0.0790569 * 1.0954451
    assert slow.a is not None
    assert slow.a.high == pytest.approx(12.0 + 0.2404085)


def test_one_side_missing_is_said() -> None:
    comparison = compare(night(0, 12.0), night(1, 12.0, output=900.0))
    missing = next(metric for metric in comparison.metrics if metric.key.name == "output_throughput")
    assert missing.verdict is Verdict.CANNOT_TELL
    assert missing.a is None
    assert missing.noise == "only one side has it"


def test_unequal_fingerprints_are_compared_only_when_asked(tmp_path: Path) -> None:
    newer = night(1, 13.0, fingerprint={**FINGERPRINT, "versions.vllm": "0.32.0", "driver": "590"})
    with History(tmp_path / "h.sqlite") as history:
        with pytest.raises(UnfitError, match="not measured alike") as caught:
            compare_all([night(0, 12.0)], [newer], history)
        assert caught.value.seen == "driver: 580.95.05 → 590; versions.vllm: 0.31.0 → 0.32.0"
        (comparison,) = compare_all([night(0, 12.0)], [newer], history, force=True)
    assert [difference.name for difference in comparison.differences] == ["driver", "versions.vllm"]
    assert comparison.metrics[0].verdict is Verdict.LARGER


def test_a_baseline_that_is_not_there_is_said(tmp_path: Path) -> None:
    with History(tmp_path / "h.sqlite") as history, pytest.raises(UnfitError, match="nothing to compare"):
        compare_all(None, [night(0, 12.0)], history)


def test_a_run_is_found_by_its_beginning_and_not_by_two(tmp_path: Path) -> None:
    with History(tmp_path / "h.sqlite") as history:
        history.add([night(10, 12.0), night(11, 12.0)])
        assert snapshots_of_run("night-010", history, lambda _: ())[0].run == "night-010"
        with pytest.raises(UnfitError, match="beginning of 2 runs"):
            snapshots_of_run("night-01", history, lambda _: ())
        assert snapshots_of_run("other", history, lambda _: [night(3, 1.0)])[0].run == "night-003"
        with pytest.raises(UnfitError, match="measured nothing"):
            snapshots_of_run("other", history, lambda _: ())


def compared(change: float, low: float | None = None, high: float | None = None) -> MetricComparison:
    return MetricComparison(key=TPOT, unit="ms", a=None, b=None, change=change, change_low=low, change_high=high)


@pytest.mark.parametrize(
    ("rule", "metric", "broken"),
    [
        ("tpot.p50 > +5%", compared(0.06, 0.04, 0.08), True),
        ("tpot.p50 > 5 %", compared(0.04, 0.02, 0.06), False),
        ("tpot.p50 > +5%", compared(0.06, -0.02, 0.14), False),
        ("tpot.p50 > +5%", compared(0.06), True),
        ("tpot.* < -3%", compared(-0.04, -0.05, -0.03), True),
        ("concurrency=1: tpot.p50 > +5%", compared(0.06, 0.04, 0.08), True),
        ("tpot.p50>+0%", compared(0.001, 0.0005, 0.002), True),
    ],
)
def test_limits(rule: str, metric: MetricComparison, *, broken: bool) -> None:
    assert bool(breaches([parse_limit(rule)], [metric])) is broken


@pytest.mark.parametrize(
    "rule", ["tpot.p50", "tpot.p50 > fast", "> 5%", "tpot.p50 > 5", "tpot.p50 > -5%", "a < +5%", ""]
)
def test_a_limit_that_says_nothing_is_refused(rule: str) -> None:
    with pytest.raises(UnfitError) as caught:
        parse_limit(rule)
    assert caught.value.wanted is not None


def test_a_limit_on_a_figure_that_is_not_there_does_not_pass() -> None:
    with pytest.raises(UnfitError, match="concerns no figure"):
        breaches([parse_limit("tpot.p5O > +5%")], [compared(0.01, 0.0, 0.02)])
    with pytest.raises(UnfitError, match="concerns no figure"):
        breaches([parse_limit("concurrency=8: tpot.p50 > +5%")], [compared(0.01, 0.0, 0.02)])


def test_a_breach_says_what_it_is() -> None:
    (breach,) = breaches([parse_limit("tpot.p50 > +5%")], [compared(0.06, 0.04, 0.08)])
    assert str(breach) == "serving-benchmark/concurrency=1/tpot.p50: +6.0 % breaks 'tpot.p50 > +5%'"


def test_since() -> None:

    now = datetime(2026, 12, 1, tzinfo=UTC)
    assert since(None) is None
    assert since("30d", now=now) == "2026-11-01T00:00:00+00:00"
    assert since("2026-11-05") == "2026-11-05T00:00:00+00:00"
    with pytest.raises(UnfitError):
        since("last week")


def test_keys_read_as_people_type_them() -> None:
    assert str(MetricKey(stage="gemm", cell="w13/M=8", name="gemm.time")) == "gemm/w13/M=8/gemm.time"

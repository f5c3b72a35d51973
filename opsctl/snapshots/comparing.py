"""Two snapshots side by side: each figure with the interval of its difference, a verdict, and the noise it rests on.

The interval of a difference (or of a ratio, on logarithms) is recovered from the two figures' own 95 %
intervals: MOVER, G. Y. Zou and A. Donner, "Construction of confidence limits about effect measures: a
general approach", Statistics in Medicine 27 (2008) 1693-1702. Against several nights it is a prediction
interval for one more night: mean ± t(n-1) s sqrt(1 + 1/n).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from opsctl.payload.statistics import mean, std, t_975
from opsctl.snapshots.models import Metric, MetricKey, Snapshot
from opsctl.stages import figure_kind


class Verdict(StrEnum):
    """What can be said of b against a."""

    LARGER = "larger"
    SMALLER = "smaller"
    UNCHANGED = "not changed by more than 5 %"
    """By two one-sided tests (TOST): the whole interval of the change lies within ``MARGIN``."""
    CANNOT_TELL = "cannot tell"
    """The interval holds no change, and also one beyond ``MARGIN``; or the noise of a figure is not known."""


MARGIN = 0.05
"""A change that people decide on: what lies within it on either side counts as none."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Model):
    """One side's figure with its 95 % interval."""

    value: float
    low: float | None = None
    high: float | None = None


class MetricComparison(_Model):
    """One figure of both sides. ``change`` is b / a - 1, ``change_low`` and ``change_high`` its 95 % interval."""

    key: MetricKey
    unit: str
    a: Side | None
    b: Side | None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None
    verdict: Verdict = Verdict.CANNOT_TELL
    better: bool | None = None
    """Whether the difference that was shown is to the good; None where none was shown, or it is not known."""
    noise: str = ""


class Difference(_Model):
    """One line of the fingerprints that is not equal. "" where a side has no such line."""

    name: str
    a: str
    b: str


class Comparison(_Model):
    """b against a."""

    a: str
    b: str
    host: str
    service: str
    differences: tuple[Difference, ...]
    """Not empty: the two were not measured alike, and what follows is compared only because someone asked."""
    metrics: tuple[MetricComparison, ...]

    @property
    def comparable(self) -> bool:
        """Whether both were measured alike."""
        return not self.differences


def compare(a: Snapshot, b: Snapshot) -> Comparison:
    """Compare two snapshots: every figure that either has."""
    return Comparison(
        a=a.run,
        b=b.run,
        host=b.host,
        service=b.service,
        differences=tuple(differences(a.fingerprint, b.fingerprint)),
        metrics=tuple(_pair(key, a.metric(key), b.metric(key)) for key in _keys(a, b)),
    )


def compare_with_nights(nights: Sequence[Snapshot], b: Snapshot) -> Comparison:
    """Compare a snapshot with what earlier nights lead to expect. One night is compared as a run is."""
    if len(nights) == 1:
        return compare(nights[0], b)
    metrics = []
    for key in _keys(*nights, b):
        values = [metric.value for night in nights if (metric := night.metric(key)) is not None]
        metrics.append(_against(key, values, b.metric(key), [night.metric(key) for night in nights]))
    return Comparison(
        a=f"{len(nights)} nights, {nights[0].run} to {nights[-1].run}" if nights else "no earlier night",
        b=b.run,
        host=b.host,
        service=b.service,
        differences=tuple(differences(nights[-1].fingerprint, b.fingerprint)) if nights else (),
        metrics=tuple(metrics),
    )


def differences(a: Mapping[str, str], b: Mapping[str, str]) -> list[Difference]:
    """Return the lines of two fingerprints that are not equal, by name."""
    return [
        Difference(name=name, a=a.get(name, ""), b=b.get(name, ""))
        for name in sorted({*a, *b})
        if a.get(name, "") != b.get(name, "")
    ]


def _keys(*snapshots: Snapshot) -> list[MetricKey]:
    return list(dict.fromkeys(metric.key for snapshot in snapshots for metric in snapshot.metrics))


def _pair(key: MetricKey, a: Metric | None, b: Metric | None) -> MetricComparison:
    if a is None or b is None or a.unit != b.unit:
        unit = next((metric.unit for metric in (b, a) if metric is not None), "")
        missing = "only one side has it" if a is None or b is None else f"units differ: {a.unit} and {b.unit}"
        return MetricComparison(key=key, unit=unit, a=_side(a) if a else None, b=_side(b) if b else None, noise=missing)
    left, right = _side(a), _side(b)
    bounds = ratio_bounds(left, right)
    noise = (
        "spread within each run; what differs from run to run is not in it"
        if bounds is not None
        else "one sample on a side: its noise is not known"
    )
    return _judged(key, b.unit, left, right, bounds=bounds, noise=noise)


def _against(
    key: MetricKey, values: Sequence[float], b: Metric | None, nights: Sequence[Metric | None]
) -> MetricComparison:
    unit = next((metric.unit for metric in (b, *nights) if metric is not None), "")
    if not values or b is None:
        a = Side(value=mean(values)) if values else None
        return MetricComparison(key=key, unit=unit, a=a, b=_side(b) if b else None, noise="only one side has it")
    middle = mean(values)
    if len(values) < 2:
        noise = "one earlier night: noise not known"
        return _judged(key, unit, Side(value=middle), Side(value=b.value), bounds=None, noise=noise)
    half = t_975(len(values) - 1) * std(values, sample=True) * math.sqrt(1 + 1 / len(values))
    left = Side(value=middle, low=middle - half, high=middle + half)
    # The interval is that of a new night: the new night's own value is a point beside it.
    bounds = None if middle <= 0 or half >= middle else (b.value / (middle + half) - 1, b.value / (middle - half) - 1)
    noise = f"from night to night, {len(values)} nights; 95 % prediction interval of one more night"
    return _judged(key, unit, left, Side(value=b.value), bounds=bounds, noise=noise)


def _judged(
    key: MetricKey, unit: str, a: Side, b: Side, *, bounds: tuple[float, float] | None, noise: str
) -> MetricComparison:
    change = b.value / a.value - 1 if a.value else None
    verdict = Verdict.CANNOT_TELL if bounds is None else _verdict(*bounds)
    return MetricComparison(
        key=key,
        unit=unit,
        a=a,
        b=b,
        change=change,
        change_low=None if bounds is None else bounds[0],
        change_high=None if bounds is None else bounds[1],
        verdict=verdict,
        better=_better(key, verdict),
        noise=noise,
    )


def _verdict(low: float, high: float) -> Verdict:
    if low > 0 or high < 0:
        return Verdict.LARGER if low > 0 else Verdict.SMALLER
    return Verdict.UNCHANGED if low >= -MARGIN and high <= MARGIN else Verdict.CANNOT_TELL


def ratio_bounds(a: Side, b: Side) -> tuple[float, float] | None:
    """Return the 95 % interval of b / a - 1 by MOVER on logarithms; None where a side has no positive interval."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    if min(a.low, b.low, a.value, b.value) <= 0:
        return None
    log_a, log_b = math.log(a.value), math.log(b.value)
    below = math.hypot(log_b - math.log(b.low), math.log(a.high) - log_a)
    above = math.hypot(math.log(b.high) - log_b, log_a - math.log(a.low))
    return math.expm1(log_b - log_a - below), math.expm1(log_b - log_a + above)


def _side(metric: Metric) -> Side:
    """Return a figure with its interval: as it was measured, else by Student's t from its deviation and samples."""
    if metric.low is not None and metric.high is not None:
        return Side(value=metric.value, low=metric.low, high=metric.high)
    if metric.spread is None or metric.samples < 2:
        return Side(value=metric.value)
    half = t_975(metric.samples - 1) * metric.spread / math.sqrt(metric.samples)
    return Side(value=metric.value, low=metric.value - half, high=metric.value + half)


def _better(key: MetricKey, verdict: Verdict) -> bool | None:
    if verdict not in {Verdict.LARGER, Verdict.SMALLER}:
        return None
    kind = figure_kind(key.stage, key.name)
    worse = None if kind is None else kind.worse(1.0 if verdict is Verdict.LARGER else -1.0)
    return None if worse is None else not worse

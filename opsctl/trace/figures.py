"""Means and spreads of whole nanoseconds, exact until the last division, given in µs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from statistics import median

from opsctl.trace.document import Times

_DIGITS = 3


def us(nanoseconds: float) -> float:
    """Return µs for ns, with three decimals."""
    return round(nanoseconds / 1000, _DIGITS)


def ratio(part: float, whole: float) -> float:
    """Return part of whole with six decimals, 0 where there is no whole."""
    return round(part / whole, 6) if whole else 0.0


@dataclass(frozen=True)
class Spread:
    """A sample of times in ns: its size, mean, median, standard deviation (n-1) and CV (deviation over mean)."""

    count: int
    mean: float
    p50: float
    deviation: float

    @property
    def cv(self) -> float:
        """Return the coefficient of variation."""
        return self.deviation / self.mean if self.mean else 0.0

    @property
    def error(self) -> float:
        """Return the standard error of the mean over the mean: how far the mean may be off, as a share of it."""
        return self.cv / self.count**0.5 if self.count else 0.0

    def times(self) -> Times:
        """Return the spread in µs for the document."""
        return Times(us(self.p50), us(self.mean), round(self.cv, 6))


def spread(values: Sequence[int]) -> Spread:
    """Return the spread of whole numbers, through integers: the order of values cannot move a digit."""
    count = len(values)
    if not count:
        return Spread(0, 0.0, 0.0, 0.0)
    total, squares = sum(values), sum(value * value for value in values)
    return Spread(count, total / count, float(median(values)), deviation(total, squares, count))


def deviation(total: int, squares: int, count: int) -> float:
    """Return the sample standard deviation from a sum and a sum of squares, exact before the root."""
    if count < 2:
        return 0.0
    scaled = (count * squares - total * total) * 10**6 // (count * (count - 1))
    return isqrt(max(0, scaled)) / 1000

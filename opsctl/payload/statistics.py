"""The few statistics that results need, with their sources. Pure; numpy may be absent on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence

from opsctl.payload.records import Figure

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (any table, e.g. NIST/SEMATECH 1.3.6.7.2).
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z_975 = 1.959964


def t_975(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Beyond the table: the first two terms of its Cornish-Fisher expansion, within 0.001 there
    (Abramowitz and Stegun 26.7.5). Raises ValueError below 1.
    """
    if degrees < 1:
        msg = f"Student's t wants at least 1 degree of freedom, got {degrees}"
        raise ValueError(msg)
    if degrees <= len(_T_975):
        return _T_975[degrees - 1]
    z = _Z_975
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean. Raises ValueError when there is none."""
    if not values:
        msg = "the mean of no values"
        raise ValueError(msg)
    return math.fsum(values) / len(values)


def std(values: Sequence[float], *, sample: bool = False) -> float:
    """Return the standard deviation: of the population, as numpy.std and vLLM do, or of a sample (n − 1)."""
    count = len(values)
    if count - sample < 1:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (count - sample))


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile (0 to 100) with linear interpolation, as numpy's default (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    if not ordered:
        msg = "a percentile of no values"
        raise ValueError(msg)
    place = (len(ordered) - 1) * share / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of independent values by Student's t; None from fewer than two."""
    if len(values) < 2:
        return None
    half = t_975(len(values) - 1) * std(values, sample=True) / math.sqrt(len(values))
    middle = mean(values)
    return middle - half, middle + half


def figure(
    name: str,
    value: float,
    unit: str,
    *,
    samples: int = 1,
    spread: float | None = None,
    over: Sequence[float] = (),
    formula: str = "",
) -> Figure:
    """Return a figure; its 95 % interval and its range are those of the values ``over`` which it is the mean."""
    low, high = interval(over) or (None, None)
    least, most = (min(over), max(over)) if over else (None, None)
    return Figure(name, value, unit, samples, spread, low, high, formula, least, most)

"""Numbers as a report prints them: as many digits as they deserve, the unit, the spread and the samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import datetime

from opsctl.payload.statistics import t_975
from opsctl.quantities import counted
from opsctl.results import Figure

ABSENT = "–"


def digits(value: float | None, significant: int = 4) -> str:
    """Return a number with that many significant digits, never in exponent notation below 10^15.

    >>> digits(12.3456), digits(0.00123456), digits(1234567.0), digits(None)
    ('12.35', '0.001235', '1,234,567', '–')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    if abs(value) >= 1e15:
        return f"{value:.3e}"
    decimals = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 12)}f}"
    return text.rstrip("0").rstrip(".") if "." in text and decimals > significant else text


def count(value: float | None) -> str:
    """Return how often something happened: whole where it is whole, else three digits behind the point."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.3f}".rstrip("0").rstrip(".")


def share(value: float | None) -> str:
    """Return a ratio as a percentage with one decimal."""
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def amount(value: float | None, unit: str) -> str:
    """Return a number with its unit; a ratio reads as a percentage, a count has no unit."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if unit == "ratio":
        return share(value)
    return count(value) if unit == "count" else f"{digits(value)} {unit}"


PLUS_MINUS = (
    "± is half of the 95 % confidence interval of the mean, by Student's t over rounds, windows or repetitions; over "
    "fewer than 5 windows the range is shown instead. s is a standard deviation, where no interval was computed. "
    "Verified: the evidence is complete. Conclusive: the interval is at most a quarter of the value on either side."
)
"""What ± means in a report: said once."""
FEW = 5
"""From fewer values than this a mean is shown with their range, not with an interval."""


def plus_minus(value: float, half: float, significant: int = 4) -> str:
    """Return ``12.1 ± 0.2``, both rounded to what the interval leaves significant.

    The value ends where the second digit of the interval ends, and has at most ``significant`` digits; an interval
    below its last digit is said to be less than that digit.

    >>> plus_minus(12.3456, 0.21), plus_minus(6.37412, 0.00043), plus_minus(3.0, 0.0)
    ('12.35 ± 0.21', '6.374 ± <0.001', '3.000 ± <0.001')
    """
    places = significant - 1 - _order(value)
    if half > 0:
        places = min(places, 1 - _order(half))
    step = 10.0**-places
    shown = max(0, places)
    if half < step / 2:
        return f"{value:,.{shown}f} ± <{step:,.{shown}f}"
    return f"{round(value, places):,.{shown}f} ± {round(half, places):,.{shown}f}"


def _order(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def too_wide(figure: Figure) -> str:
    """Return what is said in place of an interval that no decision can rest on."""
    if figure.least is None or figure.most is None:
        half = digits(figure.half_width, 2)
        return f"spread too wide: {_samples(figure)}, half of the interval is {half}"
    return f"spread too wide: {_samples(figure)}, {digits(figure.least)} … {digits(figure.most)}"


def with_spread(figure: Figure | None) -> str:
    """Return ``12.1 ± 0.2`` without unit (the column's head has it), or why there is no interval worth the name."""
    if figure is None:
        return ABSENT
    half = figure.half_width
    if half is not None:
        return plus_minus(figure.value, half) if figure.conclusive else too_wide(figure)
    if figure.spread is not None:
        return f"{digits(figure.value)} (s {digits(figure.spread, 2)})"
    return digits(figure.value)


def in_words(figure: Figure) -> str:
    """Return a figure for a sentence: ``12.1 ms (95 % interval 11.9 to 12.3, 3 samples)``."""
    samples = _samples(figure)
    if figure.low is not None and figure.high is not None:
        if figure.conclusive:
            about = f"95 % interval {digits(figure.low)} to {digits(figure.high)}, {samples}"
        else:
            about = too_wide(figure)
    elif figure.spread is not None:
        about = f"standard deviation {digits(figure.spread, 2)}, {samples}"
    else:
        about = f"{samples}, no spread known"
    return f"{amount(figure.value, figure.unit)} ({about})"


def _samples(figure: Figure) -> str:
    return counted(figure.samples, "sample")


def mean_of_few(values: Sequence[float], unit: str = "", *, resolution: int = 4) -> str:
    """Return the mean of values with its 95 % interval, or with their range where they are fewer than ``FEW``.

    ``resolution``: decimals beyond which the values mean nothing, such as those of a clock.
    """
    mean = statistics.fmean(values)
    if len(values) >= FEW:
        half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
        return plus_minus(mean, half) + unit
    low, middle, high = (
        min(digits(value), f"{value:,.{resolution}f}", key=len) for value in (min(values), mean, max(values))
    )
    return f"{middle}{unit}" if low == high else f"{middle}{unit} ({low} to {high})"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the standard deviation over the values (None where there is one value only)."""
    mean = statistics.fmean(values)
    return mean, statistics.stdev(values) if len(values) > 1 else None


def seconds_between(start: str | None, end: str | None) -> float | None:
    """Return the seconds from one ISO time to another, or None where either is missing or not a time."""
    if not start or not end:
        return None
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return None


def clock(time: str | None) -> str:
    """Return an ISO time as people read it, ``2026-11-30 01:31:00 UTC``; what is not a time comes back as it is."""
    if not time:
        return ABSENT
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return time
    zone = moment.strftime("%Z").replace("UTC+00:00", "UTC")
    return f"{moment:%Y-%m-%d %H:%M:%S} {zone}".rstrip()

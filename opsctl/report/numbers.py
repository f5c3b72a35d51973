"""Numbers as a report prints them: as many digits as they deserve, the unit, the spread and the samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import datetime

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


PLUS_MINUS = "± is half of the 95 % interval where one was computed, else a standard deviation."


def with_spread(figure: Figure | None) -> str:
    """Return ``12.1 ± 0.2`` without unit (the column's head has it): half of the 95 % interval, else the deviation."""
    if figure is None:
        return ABSENT
    if figure.low is not None and figure.high is not None:
        return f"{digits(figure.value)} ± {digits((figure.high - figure.low) / 2, 2)}"
    if figure.spread is not None:
        return f"{digits(figure.value)} ± {digits(figure.spread, 2)}"
    return digits(figure.value)


def in_words(figure: Figure) -> str:
    """Return a figure for a sentence: ``12.1 ms (95 % interval 11.9 to 12.3, 3 samples)``."""
    samples = f"{figure.samples} sample{'s' if figure.samples != 1 else ''}"
    if figure.low is not None and figure.high is not None:
        about = f"95 % interval {digits(figure.low)} to {digits(figure.high)}, {samples}"
    elif figure.spread is not None:
        about = f"standard deviation {digits(figure.spread, 2)}, {samples}"
    else:
        about = f"{samples}, no spread known"
    return f"{amount(figure.value, figure.unit)} ({about})"


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

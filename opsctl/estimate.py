"""How long something takes, from the times that were measured before: one statistic, wherever it is shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opsctl.quantities import format_duration

LATEST = 20
"""Samples of one thing that are looked back upon: a host changes, and what it did a year ago says little."""


@dataclass(frozen=True)
class Estimate:
    """Seconds measured before: the median of ``samples`` measurements, and their standard deviation (0 for one)."""

    seconds: float
    spread: float = 0.0
    samples: int = 1
    slowest: float = 0.0
    longest_phases: Mapping[str, float] = field(default_factory=dict)
    """Loads: the longest time of each phase, in seconds."""

    @staticmethod
    def of(samples: Iterable[float], phases: Sequence[Mapping[str, float]] = ()) -> Estimate | None:
        """Return the estimate from samples, of which ``phases`` are the parts; None without a sample."""
        values = tuple(samples)
        if not values:
            return None
        names = dict.fromkeys(name for part in phases for name in part)
        return Estimate(
            statistics.median(values),
            statistics.stdev(values) if len(values) > 1 else 0.0,
            len(values),
            max(values),
            {name: max(part.get(name, 0.0) for part in phases) for name in names},
        )

    def slower_than_ever(self, waited: float) -> bool:
        """Return whether a wait has outlasted every sample."""
        return waited > self.slowest

    def __str__(self) -> str:
        spread = f" ± {format_duration(self.spread)}" if self.samples > 1 else ""
        return f"{format_duration(self.seconds)}{spread} (n={self.samples})"

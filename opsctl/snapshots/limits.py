"""``--fail-on 'tpot.p50 > +5%'``: a limit on a change, as people write it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from opsctl.errors import UnfitError
from opsctl.snapshots.comparing import MetricComparison

_RULE = re.compile(
    r"\s*(?:(?P<cell>\S+?)\s*:\s*)?(?P<metric>[\w.*?\[\]-]+)\s*(?P<sign>[<>])\s*(?P<number>[+-]?\d+(?:\.\d+)?)\s*%\s*"
)
WANTED = "METRIC > +PERCENT% or METRIC < -PERCENT%, such as 'tpot.p50 > +5%' or 'concurrency=8: *throughput < -3%'"


@dataclass(frozen=True)
class Limit:
    """A change that must not be. ``metric`` and ``cell`` are globs; ``change`` is a ratio (0.05 is 5 %)."""

    text: str
    metric: str
    cell: str
    sign: Literal["<", ">"]
    change: float

    def concerns(self, compared: MetricComparison) -> bool:
        """Whether the limit is about this figure."""
        return fnmatchcase(compared.key.name, self.metric) and fnmatchcase(compared.key.cell, self.cell)

    def broken_by(self, compared: MetricComparison) -> bool:
        """Whether the change lies beyond the limit, and is more than noise.

        Where the noise is known, its interval must not hold *no change at all*; where it is not known, the
        number alone decides: a gate must not pass for want of evidence.
        """
        if compared.change is None:
            return False
        beyond = compared.change > self.change if self.sign == ">" else compared.change < self.change
        if not beyond or compared.change_low is None or compared.change_high is None:
            return beyond
        return compared.change_low > 0 or compared.change_high < 0


@dataclass(frozen=True)
class Breach:
    """A limit, and the figure that broke it."""

    limit: Limit
    compared: MetricComparison

    def __str__(self) -> str:
        change = 100 * (self.compared.change or 0.0)
        return f"{self.compared.key}: {change:+.1f} % breaks '{self.limit.text.strip()}'"


def parse_limit(text: str) -> Limit:
    """Read one limit. Raises UnfitError with what was wanted."""
    match = _RULE.fullmatch(text)
    if match is None:
        raise UnfitError(f"--fail-on {text!r} cannot be read", wanted=WANTED)
    sign, number = match["sign"], float(match["number"])
    if (sign == ">" and number < 0) or (sign == "<" and number > 0):
        raise UnfitError(
            f"--fail-on {text!r} would fail when nothing changed", wanted=WANTED, hint=f"write {sign} {-number:+g}%"
        )
    return Limit(text=text, metric=match["metric"], cell=match["cell"] or "*", sign=sign, change=number / 100)  # type: ignore[arg-type]


def breaches(limits: Iterable[Limit], compared: Iterable[MetricComparison]) -> list[Breach]:
    """Return every limit that is broken, by each figure that breaks it.

    Raises UnfitError for a limit on a figure that was not compared: a gate that looks at nothing always passes.
    """
    metrics = list(compared)
    found: list[Breach] = []
    for limit in limits:
        concerned = [metric for metric in metrics if limit.concerns(metric) and metric.change is not None]
        if not concerned:
            names = sorted({metric.key.name for metric in metrics if metric.change is not None})
            raise UnfitError(
                f"--fail-on {limit.text!r} concerns no figure that both sides have",
                seen=", ".join(names[:12]) or "no figure at all",
            )
        found.extend(Breach(limit, metric) for metric in concerned if limit.broken_by(metric))
    return found

"""Two analyses beside each other: what changed in a step, and whether the change is more than the spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any

from opsctl.trace.analysis import Analysis
from opsctl.trace.figures import Spread, deviation, spread
from opsctl.trace.rank import KernelRow, RankResult
from opsctl.trace.tables import idle_times, wall_times

_SIGMAS = 3.0
_STEP_FIGURES = ("wall_us", "busy_us", "sum_us", "idle_us")


@dataclass(frozen=True)
class Change:
    """One figure before and after, in µs a step, with the standard error of the difference.

    ``verdict`` is ``new``, ``gone``, ``slower``, ``faster``, ``same`` (within three standard errors) or
    ``unknown`` (a side has too few steps to tell).
    """

    name: str
    before: float
    after: float
    error: float
    verdict: str
    calls_before: float | None = None
    calls_after: float | None = None

    @property
    def difference(self) -> float:
        """Return after - before in µs a step."""
        return self.after - self.before

    def document(self) -> dict[str, Any]:
        """Return the change for the JSON document."""
        row: dict[str, Any] = {
            "name": self.name,
            "before_us_per_step": round(self.before, 3),
            "after_us_per_step": round(self.after, 3),
            "difference_us_per_step": round(self.difference, 3),
            "difference_share": round(self.difference / self.before, 6) if self.before else None,
            "standard_error_us": round(self.error, 3),
            "verdict": self.verdict,
        }
        if self.calls_before is not None or self.calls_after is not None:
            row |= {"calls_per_step_before": self.calls_before, "calls_per_step_after": self.calls_after}
        return row


@dataclass(frozen=True)
class Comparison:
    """What changed from one analysis to another, per steady step of their reference ranks."""

    steps: list[Change]
    categories: list[Change]
    kernels: list[Change]
    counts: list[dict[str, Any]]
    problems: list[str]

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "steps": [change.document() for change in self.steps],
            "categories": [change.document() for change in self.categories],
            "kernels": [change.document() for change in self.kernels],
            "counts": self.counts,
            "problems": self.problems,
        }


def compare(a: Analysis, b: Analysis) -> Comparison:
    """Compare two analyses, ``a`` being what was before."""
    first, second = a.reference, b.reference
    problems = [f"{side}: {text}" for side, analysis in (("A", a), ("B", b)) for text in analysis.problems]
    if first is None or second is None or not first.steady or not second.steady:
        return Comparison([], [], [], [], [*problems, "a side has no steps to compare by"])
    if first.steady_group != second.steady_group:
        problems.append(f"the steps differ in kind or batch: {first.steady_group} before, {second.steady_group} after")
    if first.on_device != second.on_device:
        problems.append("one side was measured on a GPU, the other on the host alone")
    kernels = _kernels(first, second)
    return Comparison(_steps(first, second), _categories(first, second), kernels, _counts(a, b), problems)


def _steps(first: RankResult, second: RankResult) -> list[Change]:
    sides = []
    for result in (first, second):
        walls = wall_times(result.steady)
        idle = idle_times(result)
        busy, total = [item.busy for item in result.occupancy], [sum(item.total) for item in result.occupancy]
        sides.append([spread(values) for values in (walls, busy, total, idle)])
    return [_change(name, *pair) for name, pair in zip(_STEP_FIGURES, zip(*sides))]


def _categories(first: RankResult, second: RankResult) -> list[Change]:
    tables: list[Mapping[str, Spread]] = [
        {
            name: spread([item.exclusive[index] for item in result.occupancy])
            for index, name in enumerate(result.categories)
            if any(item.total[index] for item in result.occupancy)
        }
        for result in (first, second)
    ]
    names = sorted(set(tables[0]) | set(tables[1]))
    return _largest_first([_change(name, tables[0].get(name), tables[1].get(name)) for name in names])


def _kernels(first: RankResult, second: RankResult) -> list[Change]:
    rows = [{row.name: row for row in result.rows if row.step_calls} for result in (first, second)]
    changes = []
    for name in sorted(set(rows[0]) | set(rows[1])):
        before, after = rows[0].get(name), rows[1].get(name)
        changes.append(
            _change(
                name,
                _spread_of(before, len(first.steady)),
                _spread_of(after, len(second.steady)),
                calls=(_calls(before, first), _calls(after, second)),
            )
        )
    return _largest_first(changes)


def _calls(row: KernelRow | None, result: RankResult) -> float:
    return round(row.step_calls / len(result.steady), 3) if row else 0.0


def _spread_of(row: KernelRow | None, steps: int) -> Spread | None:
    if row is None:
        return None
    mean = row.step_sum / steps
    return Spread(steps, mean, mean, deviation(row.step_sum, row.step_squares, steps))


def _counts(a: Analysis, b: Analysis) -> list[dict[str, Any]]:
    """Return the collectives of which a step has another number than before."""
    tables = [{row["op"]: row["calls_per_step"] for row in analysis.document()["collectives"]} for analysis in (a, b)]
    return [
        {"op": op, "calls_per_step_before": tables[0].get(op, 0.0), "calls_per_step_after": tables[1].get(op, 0.0)}
        for op in sorted(set(tables[0]) | set(tables[1]))
        if tables[0].get(op, 0.0) != tables[1].get(op, 0.0)
    ]


def _change(name: str, before: Spread | None, after: Spread | None, calls: tuple[float, float] | None = None) -> Change:
    means = [side.mean / 1000 if side else 0.0 for side in (before, after)]
    errors = [side.deviation / 1000 / sqrt(side.count) if side else 0.0 for side in (before, after)]
    error = sqrt(errors[0] ** 2 + errors[1] ** 2)
    if before is None or after is None:
        verdict = "new" if before is None else "gone"
    elif min(before.count, after.count) < 3:
        verdict = "unknown"
    elif abs(means[1] - means[0]) <= _SIGMAS * error or means[0] == means[1]:
        verdict = "same"
    else:
        verdict = "slower" if means[1] > means[0] else "faster"
    before_calls, after_calls = calls or (None, None)
    return Change(name, means[0], means[1], error, verdict, before_calls, after_calls)


def _largest_first(changes: list[Change]) -> list[Change]:
    return sorted(changes, key=lambda change: (-abs(change.difference), change.name))

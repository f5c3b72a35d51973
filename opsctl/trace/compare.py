"""Two analyses beside each other: what changed in a step, and whether the change is more than the spread."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Tuple

from opsctl.trace.document import Change, Comparison, CountChange, Kernel, Steps, Times, TraceAnalysis

_SIGMAS = 3.0
_EQUAL = 0.05
"""A difference that lies within this share, its errors included, counts as none (two one-sided tests)."""
_STEP_FIGURES = ("wall_us", "busy_us", "sum_us", "idle_us")
_Side = Tuple[float, float, int]
"""Mean in µs, standard deviation, steps."""


def compare(a: TraceAnalysis, b: TraceAnalysis) -> Comparison:
    """Compare two analyses, ``a`` being what was before; they may have been read back from JSON."""
    first, second = a.main, b.main
    problems = [f"{side}: {text}" for side, analysis in (("A", a), ("B", b)) for text in analysis.problems]
    if not first.used or not second.used:
        return Comparison(problems=(*problems, "a side has no steps to compare by"))
    problems += [
        f"{side}: inconclusive: {steps.verdict_because}"
        for side, steps in (("A", first), ("B", second))
        if steps.verdict == "inconclusive"
    ]
    groups = [(analysis.kind, analysis.main.batch) for analysis in (a, b)]
    if groups[0] != groups[1]:
        problems.append(f"the steps differ in kind or batch: {groups[0]} before, {groups[1]} after")
    if a.on_device != b.on_device:
        problems.append("one side was measured on a GPU, the other on the host alone")
    steps = (
        _change(name, _times(getattr(first, name), first), _times(getattr(second, name), second))
        for name in _STEP_FIGURES
    )
    return Comparison(tuple(steps), _categories(a, b), _kernels(a, b), _counts(a, b), tuple(problems))


def _times(times: Times | None, steps: Steps) -> _Side | None:
    return (times.mean, times.cv * times.mean, steps.timed) if times else None


def _categories(a: TraceAnalysis, b: TraceAnalysis) -> tuple[Change, ...]:
    first, second = (
        {row.name: (row.busy_us_per_step, row.cv * row.busy_us_per_step, side.main.timed) for row in side.categories}
        for side in (a, b)
    )
    return _largest_first(_change(name, first.get(name), second.get(name)) for name in sorted(set(first) | set(second)))


def _kernels(a: TraceAnalysis, b: TraceAnalysis) -> tuple[Change, ...]:
    first, second = ({row.name: row for row in side.kernels if row.calls_per_step} for side in (a, b))
    return _largest_first(
        _change(
            name,
            _of_kernel(first.get(name), a.main.used),
            _of_kernel(second.get(name), b.main.used),
            calls=(_calls(first.get(name)), _calls(second.get(name))),
        )
        for name in sorted(set(first) | set(second))
    )


def _calls(row: Kernel | None) -> float:
    return (row.calls_per_step or 0.0) if row else 0.0


def _of_kernel(row: Kernel | None, steps: int) -> _Side | None:
    if row is None:
        return None
    mean = row.sum_us_per_step or 0.0
    return mean, (row.cv_per_step or 0.0) * mean, steps


def _counts(a: TraceAnalysis, b: TraceAnalysis) -> tuple[CountChange, ...]:
    first, second = ({row.op: row.calls_per_step or 0.0 for row in side.collectives} for side in (a, b))
    pairs = [(op, first.get(op, 0.0), second.get(op, 0.0)) for op in sorted(set(first) | set(second))]
    return tuple(CountChange(op, before, after) for op, before, after in pairs if before != after)


def _change(name: str, before: _Side | None, after: _Side | None, calls: tuple[float, float] | None = None) -> Change:
    (mean_before, _, _), (mean_after, _, _) = (side or (0.0, 0.0, 0) for side in (before, after))
    error = sqrt(sum(side[1] ** 2 / side[2] for side in (before, after) if side))
    difference = mean_after - mean_before
    if before is None or after is None:
        verdict = "new" if before is None else "gone"
    elif min(before[2], after[2]) < 3:
        verdict = "unknown"
    elif abs(difference) <= _SIGMAS * error or not difference:
        near = _EQUAL * mean_before
        verdict = "same" if abs(difference) + _SIGMAS * error <= near or not (difference or error) else "cannot tell"
    else:
        verdict = "slower" if difference > 0 else "faster"
    calls_before, calls_after = calls or (None, None)
    return Change(
        name=name,
        verdict=verdict,
        before_us_per_step=round(mean_before, 3),
        after_us_per_step=round(mean_after, 3),
        difference_us_per_step=round(difference, 3),
        difference_share=round(difference / mean_before, 6) if mean_before else None,
        standard_error_us=round(error, 3),
        calls_per_step_before=calls_before,
        calls_per_step_after=calls_after,
    )


def _largest_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda change: (-abs(change.difference_us_per_step), change.name)))

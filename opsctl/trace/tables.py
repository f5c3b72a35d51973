"""The tables of the document: steps, categories, kernels, collectives. All from one rank, or from all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.trace.across import Team, skew_of
from opsctl.trace.categories import COMMUNICATION, OTHER
from opsctl.trace.figures import deviation, ratio, spread, us
from opsctl.trace.intervals import Occupancy
from opsctl.trace.rank import CollectiveCalls, KernelRow, RankResult
from opsctl.trace.steps import Step

_ENOUGH_STEPS = 10
_ENOUGH_CERTAINTY = 0.02
_LARGEST_OTHERS = 10
_BYTES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "half": 2, "float16": 2, "bfloat16": 2,
    "double": 8, "long": 8, "int64": 8, "char": 1, "int8": 1, "byte": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_CAPTURED = (1, 2, 4)
_CAPTURED_EVERY = 8


def steady_verdict(result: RankResult) -> tuple[str, str]:
    """Return ``steady`` or ``inconclusive``, and why: the spread of the steps' times against their count."""
    found = spread(wall_times(result.steady))
    if found.count < _ENOUGH_STEPS:
        return "inconclusive", f"{found.count} timed steady steps, wanted at least {_ENOUGH_STEPS}: record for longer"
    if found.error > _ENOUGH_CERTAINTY:
        return "inconclusive", (
            f"steps vary by {found.cv:.1%} over {found.count} steps, so their mean is known to {found.error:.1%}, "
            f"wanted {_ENOUGH_CERTAINTY:.0%}: record for longer, or find what disturbs them"
        )
    return "steady", f"the mean of {found.count} steps is known to {found.error:.2%}"


def step_groups(result: RankResult) -> dict[str, Any]:
    """Return the steps by kind; of the steady kind with busy, sum and idle, of the others their times alone."""
    document: dict[str, Any] = {}
    for kind in sorted({kind for kind, _ in result.groups}):
        groups = {batch: steps for (name, batch), steps in result.groups.items() if name == kind}
        batch = max(groups, key=lambda size: (len(groups[size]), size or 0))
        if result.steady_group and result.steady_group[0] == kind:
            batch = result.steady_group[1]
        row = _timing(groups[batch]) | {"count": len(groups[batch]), "batch": batch}
        if (kind, batch) == result.steady_group:
            row |= _steady(result)
        if len(groups) > 1:
            row["other_batches"] = [
                {"batch": size, "count": len(steps), **_timing(steps)}
                for size, steps in sorted(groups.items(), key=lambda item: item[0] or 0)
                if size != batch
            ]
        document[kind] = row
    return document


def wall_times(steps: Sequence[Step]) -> list[int]:
    """Return the times to the next step, where any step has one; else from the first to the last work of each."""
    return [step.wall for step in steps if step.wall is not None] or [step.span for step in steps]


def idle_times(result: RankResult) -> list[int]:
    """Return wall minus busy of the steady steps that have a time to the next; else what their work leaves idle."""
    pairs = list(zip(result.steady, result.occupancy))
    timed = [(step.wall, found.busy) for step, found in pairs if step.wall is not None]
    return [max(0, wall - busy) for wall, busy in timed or [(step.span, found.busy) for step, found in pairs]]


def _timing(steps: Sequence[Step]) -> dict[str, Any]:
    """Return wall times; where no step is followed by one of its kind, the extent of each step's own work."""
    known = any(step.wall is not None for step in steps)
    walls = wall_times(steps)
    return {
        "wall_us": spread(walls).document(),
        "wall_is": "time to the next step" if known else "first to last work of a step",
        "timed": len(walls),
    }


def _steady(result: RankResult) -> dict[str, Any]:
    verdict, reason = steady_verdict(result)
    return _timing(result.steady) | {
        "used": len(result.steady),
        "dropped": result.dropped,
        "dropped_because": "the first steps differ from the rest by over a tenth and over 4 usual deviations"
        if result.dropped
        else None,
        "busy_us": spread([found.busy for found in result.occupancy]).document(),
        "sum_us": spread([sum(found.total) for found in result.occupancy]).document(),
        "idle_us": spread(idle_times(result)).document(),
        "verdict": verdict,
        "verdict_because": reason,
    }


def _occupancies(result: RankResult) -> list[Occupancy]:
    if result.steady:
        return result.occupancy
    return [result.whole_window] if result.whole_window else []


def category_rows(team: Team) -> list[dict[str, Any]]:
    """Return one row a category that occurs, the largest share first.

    ``busy_us_per_step`` is exclusive: a moment belongs to one category, communication comes last, so the rows
    add up to the busy time. ``hidden_us_per_step`` ran while another category had the moment. Without steps
    the "step" is the whole window.
    """
    reference = team.reference
    if reference is None:
        return []
    found = _occupancies(reference)
    busy = sum(item.busy for item in found)
    rows = []
    for index, name in enumerate(reference.categories):
        total = sum(item.total[index] for item in found)
        if not total:
            continue
        exclusive = [item.exclusive[index] for item in found]
        union = sum(item.union[index] for item in found)
        steps = len(found)
        rows.append(
            {
                "name": name,
                "busy_us_per_step": us(sum(exclusive) / steps),
                "sum_us_per_step": us(total / steps),
                "share_of_busy": ratio(sum(exclusive), busy),
                "union_us_per_step": us(union / steps),
                "hidden_us_per_step": us((union - sum(exclusive)) / steps),
                "cv": round(spread(exclusive).cv, 6),
                "share_of_busy_by_rank": [_share(member, index) for member in team.members],
            }
        )
    return sorted(rows, key=lambda row: (-row["share_of_busy"], row["name"]))


def _share(member: RankResult, index: int) -> float | None:
    found = _occupancies(member)
    busy = sum(item.busy for item in found)
    return ratio(sum(item.exclusive[index] for item in found), busy) if busy else None


def kernel_rows(result: RankResult) -> list[dict[str, Any]]:
    """Return one row a kernel, the largest first: calls and sums over the whole file, and a steady step's share."""
    total = sum(row.sum for row in result.rows)
    steps = len(result.steady)
    rows = [_kernel_row(row, total, steps) for row in result.rows]
    return sorted(rows, key=lambda row: (-row["sum_us"], row["name"]))


def _kernel_row(row: KernelRow, total: int, steps: int) -> dict[str, Any]:
    mean = row.step_sum / steps if steps else 0.0
    return {
        "name": row.name,
        "category": row.category,
        "calls": row.calls,
        "calls_per_step": round(row.step_calls / steps, 3) if steps else None,
        "sum_us": us(row.sum),
        "mean_us": us(row.sum / row.calls),
        "share_of_sum": ratio(row.sum, total),
        "sum_us_per_step": us(mean) if steps else None,
        "cv_per_step": round(deviation(row.step_sum, row.step_squares, steps) / mean, 6) if mean else None,
    }


def other_rows(result: RankResult) -> list[dict[str, Any]]:
    """Return the largest names that no category takes, with their share of the sum."""
    total = sum(row.step_sum if result.steady else row.sum for row in result.rows)
    unnamed = sorted(
        (-(row.step_sum if result.steady else row.sum), row.name) for row in result.rows if row.category == OTHER
    )
    return [{"name": name, "share_of_sum": ratio(-own, total)} for own, name in unnamed[:_LARGEST_OTHERS] if own]


def collective_rows(team: Team, expected: Mapping[str, float], token_bytes: int | None) -> list[dict[str, Any]]:
    """Return one row an operation, observed or expected: calls a step, communication and skew, message size."""
    reference = team.reference
    if reference is None:
        return []
    rows = []
    for operation in sorted(set(reference.collectives) | set(expected)):
        calls, found = reference.collectives.get(operation), skew_of(team, operation)
        per_step = sum(map(len, calls.durations)) / len(reference.steady) if calls else 0.0
        wanted = expected.get(operation)
        rows.append(
            {
                "op": operation,
                "calls_per_step": round(per_step, 3),
                "expected_per_step": wanted,
                "as_expected": None if wanted is None else abs(per_step - wanted) < 0.0005,
                "communication_us_per_step": us(found.communication / found.steps) if found else 0.0,
                "skew_us_per_step": us(found.skew / found.steps) if found and found.skew is not None else None,
                "last_to_arrive": _last(found.last) if found else None,
                "kernels": calls.names if calls else [],
                **_message(calls, operation, reference, token_bytes),
            }
        )
    return rows


def _last(counts: Mapping[int, int]) -> dict[str, Any] | None:
    total = sum(counts.values())
    if not total:
        return None
    rank = min(counts, key=lambda key: (-counts[key], key))
    return {"rank": rank, "share_of_calls": ratio(counts[rank], total)}


def _message(
    calls: CollectiveCalls | None, operation: str, result: RankResult, token_bytes: int | None
) -> dict[str, Any]:
    """Return the usual message: as the trace says it, else derived from the batch, and which of the two."""
    if calls and calls.messages:
        (elements, dtype, _), _ = max(calls.messages.items(), key=lambda item: (item[1], item[0]))
        size = _BYTES.get(dtype.lower().removeprefix("c10::"))
        return {"message_bytes": elements * size if size else None, "message_from": "trace", "message_dtype": dtype}
    batch = result.steady_group[1] if result.steady_group else None
    if calls and token_bytes and batch and operation == "all_reduce":
        return {"message_bytes": _padded(batch) * token_bytes, "message_from": "derived", "message_dtype": None}
    return {"message_bytes": None, "message_from": None, "message_dtype": None}


def _padded(tokens: int) -> int:
    """Return the size of the captured graph that a batch runs in: 1, 2, 4, 8, 16, 24, … (vLLM's default)."""
    small = next((size for size in _CAPTURED if tokens <= size), None)
    return small or -(-tokens // _CAPTURED_EVERY) * _CAPTURED_EVERY


def hidden_communication(result: RankResult) -> tuple[int, int]:
    """Return (hidden, all) ns of communication over the steady steps: what ran while something computed."""
    index = result.categories.index(COMMUNICATION)
    found = _occupancies(result)
    union = sum(item.union[index] for item in found)
    return union - sum(item.exclusive[index] for item in found), union

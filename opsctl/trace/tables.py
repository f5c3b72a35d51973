"""The rows of the document: steps, categories, kernels, collectives. All from one rank, or from all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from opsctl.trace.categories import COMMUNICATION, OTHER
from opsctl.trace.document import (
    Batch,
    Category,
    Collective,
    Kernel,
    LastToArrive,
    MessageSize,
    OtherName,
    Steps,
    Times,
)
from opsctl.trace.events import Message
from opsctl.trace.figures import deviation, ratio, spread, us
from opsctl.trace.intervals import Occupancy
from opsctl.trace.rank import CollectiveCalls, KernelRow, RankResult
from opsctl.trace.rank_alignment import Skew, Team, skew_of
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
_ALGORITHMS = (
    ("multimem", r"multimem"),
    ("symmetric memory", r"nccl_?sym|symm_?mem"),
    ("Lamport", r"lamport"),
    ("one-shot", r"one_?shot"),
    ("two-shot", r"two_?shot"),
    ("one-stage", r"1stage"),
    ("two-stage", r"2stage"),
)
"""Of kernels that have one algorithm each. NCCL's names are not read: its kernels run any algorithm and protocol."""


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


def step_groups(result: RankResult) -> dict[str, Steps]:
    """Return the steps by kind; of the steady kind with busy, sum and idle, of the others their times alone."""
    return {kind: _of_kind(result, kind) for kind in sorted({kind for kind, _ in result.groups})}


def _of_kind(result: RankResult, kind: str) -> Steps:
    groups = {batch: steps for (name, batch), steps in result.groups.items() if name == kind}
    batch = max(groups, key=lambda size: (len(groups[size]), size or 0))
    steady = result.steady_group is not None and result.steady_group[0] == kind
    if steady and result.steady_group:
        batch = result.steady_group[1]
    steps = result.steady if steady else groups[batch]
    known = any(step.wall is not None for step in steps)
    verdict, reason = steady_verdict(result) if steady else ("", "")
    timed = _timed(result) if steady else []
    found = [result.occupancy[index] for index in timed]
    return Steps(
        count=len(groups[batch]),
        batch=batch,
        wall_us=_times(wall_times(steps)),
        wall_is="time to the next step" if known else "first to last work of a step",
        timed=len(wall_times(steps)),
        used=len(steps) if steady else 0,
        dropped=result.dropped if steady else 0,
        dropped_because="the first steps differ from the rest by over a tenth and over 4 usual deviations"
        if steady and result.dropped
        else "",
        busy_us=_times([item.busy for item in found]),
        sum_us=_times([sum(item.total) for item in found]),
        idle_us=_times([_length(result.steady[index]) - result.occupancy[index].busy for index in timed]),
        other_steps_us=_times([result.others[index] for index in timed]),
        verdict=verdict,
        verdict_because=reason,
        phases=tuple(result.phases) if steady else (),
        other_batches=tuple(
            Batch(size, len(own), _times(wall_times(own)) or Times(0.0, 0.0, 0.0))
            for size, own in sorted(groups.items(), key=lambda item: item[0] or 0)
            if size != batch
        ),
    )


def _times(values: Sequence[int]) -> Times | None:
    return spread(values).times() if values else None


def wall_times(steps: Sequence[Step]) -> list[int]:
    """Return the times to the next step, where any step has one; else from the first to the last work of each."""
    return [step.wall for step in steps if step.wall is not None] or [step.span for step in steps]


def _timed(result: RankResult) -> list[int]:
    """Return the steady steps that have a time to the next, all where none has: busy and idle add up to their wall."""
    known = [index for index, step in enumerate(result.steady) if step.wall is not None]
    return known or list(range(len(result.steady)))


def _length(step: Step) -> int:
    return step.span if step.wall is None else step.wall


def _occupancies(result: RankResult) -> list[Occupancy]:
    if result.steady:
        return [result.occupancy[index] for index in _timed(result)]
    return [result.whole_window] if result.whole_window else []


def category_rows(team: Team) -> tuple[Category, ...]:
    """Return one row a category that occurs, the largest share first. Without steps the "step" is the whole window."""
    reference = team.reference
    if reference is None:
        return ()
    found = _occupancies(reference)
    busy, steps = sum(item.busy for item in found), len(found)
    rows = []
    for index, name in enumerate(reference.categories):
        total = sum(item.total[index] for item in found)
        if not total:
            continue
        exclusive = [item.exclusive[index] for item in found]
        union = sum(item.union[index] for item in found)
        rows.append(
            Category(
                name=name,
                busy_us_per_step=us(sum(exclusive) / steps),
                sum_us_per_step=us(total / steps),
                share_of_busy=ratio(sum(exclusive), busy),
                union_us_per_step=us(union / steps),
                overlapped_us_per_step=us((union - sum(exclusive)) / steps),
                cv=round(spread(exclusive).cv, 6),
                share_of_busy_by_rank=tuple(_share(member, index) for member in team.members),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.share_of_busy, row.name)))


def _share(member: RankResult, index: int) -> float | None:
    found = _occupancies(member)
    busy = sum(item.busy for item in found)
    return ratio(sum(item.exclusive[index] for item in found), busy) if busy else None


def kernel_rows(result: RankResult) -> tuple[Kernel, ...]:
    """Return one row a kernel, the largest first: calls and sums over the whole file, and a steady step's share."""
    total, steps = sum(row.sum for row in result.rows), len(result.steady)
    rows = [_kernel_row(row, total, steps) for row in result.rows]
    return tuple(sorted(rows, key=lambda row: (-row.sum_us, row.name)))


def _kernel_row(row: KernelRow, total: int, steps: int) -> Kernel:
    mean = row.step_sum / steps if steps else 0.0
    return Kernel(
        name=row.name,
        category=row.category,
        calls=row.calls,
        sum_us=us(row.sum),
        mean_us=us(row.sum / row.calls),
        share_of_sum=ratio(row.sum, total),
        calls_per_step=round(row.step_calls / steps, 3) if steps else None,
        sum_us_per_step=us(mean) if steps else None,
        cv_per_step=round(deviation(row.step_sum, row.step_squares, steps) / mean, 6) if mean else None,
    )


def other_rows(result: RankResult) -> tuple[OtherName, ...]:
    """Return the largest names that no category takes, with their share of the sum."""
    total = sum(row.step_sum if result.steady else row.sum for row in result.rows)
    unnamed = sorted(
        (-(row.step_sum if result.steady else row.sum), row.name) for row in result.rows if row.category == OTHER
    )
    return tuple(OtherName(name, ratio(-own, total)) for own, name in unnamed[:_LARGEST_OTHERS] if own)


def collective_rows(
    team: Team, expected: Mapping[str, float], token_bytes: int | None, offsets: dict[int, float]
) -> tuple[Collective, ...]:
    """Return one row an operation, observed or expected: over the file, a step, and over ranks."""
    reference = team.reference
    if reference is None:
        return ()
    operations = sorted(set(reference.collectives) | set(expected))
    return tuple(_collective(team, reference, name, expected.get(name), token_bytes, offsets) for name in operations)


def _collective(  # noqa: PLR0917 (what one row rests on)
    team: Team,
    reference: RankResult,
    operation: str,
    wanted: float | None,
    token_bytes: int | None,
    offsets: dict[int, float],
) -> Collective:
    calls = reference.collectives.get(operation, CollectiveCalls())
    found = skew_of(team, operation, offsets) or Skew(0, None, 0, len(reference.steady))
    steps = len(reference.steady)
    per_step = calls.in_steps / steps if steps else None
    messages = tuple(_message(operation, *item) for item in sorted(calls.messages.items(), key=_most_frequent))
    size, source, dtype = None, None, None
    batch = reference.steady_group[1] if reference.steady_group else None
    if messages:
        size, source, dtype = messages[0].message_bytes, "trace", messages[0].dtype
    elif calls.starts and token_bytes and batch and operation == "all_reduce":
        size, source = _padded(batch) * token_bytes, "derived"
    return Collective(
        op=operation,
        calls=len(calls.starts),
        sum_us=us(sum(max(0, duration) for duration in calls.durations)),
        calls_per_step=None if per_step is None else round(per_step, 3),
        expected_per_step=wanted,
        as_expected=None if wanted is None or per_step is None else abs(per_step - wanted) < 0.0005,
        communication_us_per_step=us(found.communication / found.steps) if found.steps else None,
        straggler_wait_us_per_step=us(found.waiting / found.steps)
        if found.steps and found.waiting is not None
        else None,
        start_skew_us=us(found.starts / found.calls) if found.waiting is not None and found.calls else None,
        last_to_arrive=_last(found),
        algorithms=tuple(
            name for name, pattern in _ALGORITHMS if any(re.search(pattern, own, re.IGNORECASE) for own in calls.names)
        ),
        kernels=tuple(calls.names),
        message_bytes=size,
        message_from=source,
        message_dtype=dtype,
        messages=messages,
    )


def _last(found: Skew) -> LastToArrive | None:
    if not found.last:
        return None
    rank = min(found.last, key=lambda key: (-found.last[key], key))
    return LastToArrive(rank, ratio(found.last[rank], found.calls))


def _most_frequent(item: tuple[Message, tuple[int, int]]) -> tuple[int, int, str, str]:
    message, (count, _) = item
    return -count, -message.elements, message.dtype, message.group


def _message(operation: str, message: Message, counted: tuple[int, int]) -> MessageSize:
    """Return a row of one kind of message. Bus bandwidth as nccl-tests define it, from the mean time of a call."""
    count, total = counted
    width, ranks = _BYTES.get(message.dtype.lower().removeprefix("c10::"), 0), message.group_size
    elements = max(message.elements, message.received) if operation == "all_gather" else message.elements
    size = elements * width if width else None
    factor = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}.get(operation)
    share = factor * (ranks - 1) / ranks if factor and ranks else 1.0 if factor is None else None
    return MessageSize(
        calls=count,
        message_bytes=size,
        dtype=message.dtype,
        group=message.group,
        group_size=ranks or None,
        mean_us=us(total / count),
        bus_bandwidth_gbs=round(size * share * count / total, 3) if size and share and total else None,
    )


def _padded(tokens: int) -> int:
    """Return the size of the captured graph that a batch runs in: 1, 2, 4, 8, 16, 24, … (vLLM's default)."""
    small = next((size for size in _CAPTURED if tokens <= size), None)
    return small or -(-tokens // _CAPTURED_EVERY) * _CAPTURED_EVERY


def exposed_communication(result: RankResult) -> int:
    """Return ns of communication over the steps of :func:`category_rows` during which nothing else ran."""
    index = result.categories.index(COMMUNICATION)
    return sum(item.exclusive[index] for item in _occupancies(result))


def mean_busy(result: RankResult) -> tuple[int, int]:
    """Return (busy ns, steps) over the steps that :func:`category_rows` counts; (0, 0) where there are none."""
    found = _occupancies(result) if result.steady else []
    return sum(item.busy for item in found), len(found)

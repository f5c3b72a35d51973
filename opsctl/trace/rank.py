"""One rank's file, analysed on its own: what a steady step consists of. Small enough to travel between processes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.trace.categories import Categories, default_categories
from opsctl.trace.collective_kind import asked_operations
from opsctl.trace.document import Phase
from opsctl.trace.events import Columns, Message
from opsctl.trace.grouping import differ, extents, pick, totals, totals_of_pairs, where_equal, where_known
from opsctl.trace.intervals import Intervals, Occupancy, clipped, occupancy, total, union
from opsctl.trace.markers import DECODE, MIXED, OTHER_KIND, PREFILL, TRAINING
from opsctl.trace.phases import training_phases
from opsctl.trace.reading import TraceFile, read_file
from opsctl.trace.steps import NO_STEP, Step, Stepping, find_steps, unsteady_at_first
from opsctl.trace.work import Work, work_of


@dataclass
class KernelRow:
    """One kernel (or operator): calls and ns over the whole file, and over the steady steps."""

    kind: str
    name: str
    category: str
    calls: int
    sum: int
    step_calls: int = 0
    step_sum: int = 0
    step_squares: int = 0
    """Sum over steady steps of the square of the step's sum: for the spread."""


@dataclass
class CollectiveCalls:
    """The calls of one operation in a file, in order of their start, on the file's own clock (ns)."""

    starts: list[int] = field(default_factory=list)
    durations: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """The steady step of each call; NO_STEP: of none."""
    names: list[str] = field(default_factory=list)
    messages: dict[Message, tuple[int, int]] = field(default_factory=dict)
    """How often each message was sent, and the ns of these calls, where the trace says it."""

    @property
    def in_steps(self) -> int:
        """Return how many of the calls lie in steady steps."""
        return sum(1 for step in self.steps if step != NO_STEP)


@dataclass
class RankResult:
    """What one file holds. Times are in ns; ``occupancy``, ``others`` and ``steady`` have one entry a steady step."""

    path: Path
    rank: int | None = None
    world_size: int | None = None
    front_end: bool = False
    whole: bool = False
    problems: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    events: int = 0
    device: str | None = None
    """The device that the file names; ``on_device`` says whether work of it is in the file."""
    on_device: bool = False
    device_events: int = 0
    kernels: int = 0
    streams: int = 0
    layout: str = ""
    server: str | None = None
    text_bytes: int = 0
    base_ns: int = 0
    method: str = ""
    groups: dict[tuple[str, int | None], list[Step]] = field(default_factory=dict)
    steady_group: tuple[str, int | None] | None = None
    dropped: int = 0
    steady: list[Step] = field(default_factory=list)
    whole_window: Occupancy | None = None
    occupancy: list[Occupancy] = field(default_factory=list)
    """Of all work inside a step's wall time, whichever step it belongs to."""
    others: list[int] = field(default_factory=list)
    """Of each step's busy time, the ns in which only work of other steps ran."""
    rows: list[KernelRow] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    collectives: dict[str, CollectiveCalls] = field(default_factory=dict)
    categories: list[str] = field(default_factory=list)
    """What the entries of an Occupancy's lists stand for."""
    unplaced: int = 0
    """Pieces of work that belong to no step."""
    busy: int = 0
    sum: int = 0
    window: int = 0
    extent: tuple[int, int] | None = None
    """When the first work begins and the last ends, on the file's own clock."""


def analyse_file(path: Path, categories: Categories | None = None) -> RankResult:
    """Read and analyse one file. Raises OSError where it cannot be opened."""
    table = categories or default_categories()
    return analyse_trace(read_file(path, table), table)


def analyse_trace(file: TraceFile, categories: Categories) -> RankResult:
    """Analyse a file that was read."""
    columns = file.columns
    kernels = {index for index, (kind, _) in enumerate(columns.names) if kind.lower() == "kernel"}
    by_name = totals(columns.device.name, None, len(columns.names))
    result = RankResult(
        path=file.path,
        rank=file.rank,
        world_size=file.metadata.world_size,
        front_end=file.front_end,
        whole=file.whole,
        problems=list(file.problems),
        repairs=list(file.repairs),
        events=columns.events,
        device=file.metadata.device,
        on_device=file.on_device,
        device_events=len(columns.device),
        kernels=sum(by_name[index] for index in kernels),
        streams=_streams(columns, kernels),
        layout=file.layout,
        server=file.metadata.server,
        text_bytes=file.text_bytes,
        base_ns=file.metadata.base_ns,
        categories=list(categories.order),
    )
    work = work_of(file, categories)
    if len(work):
        _measure(result, file, work, categories)
    return result


def _streams(columns: Columns, kernels: set[int]) -> int:
    is_kernel = [int(name in kernels) for name in range(len(columns.names))]
    kernels_on = totals(columns.device.lane, pick(is_kernel, columns.device.name), len(columns.lanes))
    return sum(1 for count in kernels_on if count)


def _measure(result: RankResult, file: TraceFile, work: Work, categories: Categories) -> None:
    """Fill in steps, occupancy, kernels and collectives."""
    names = file.columns.names
    order = {name: index for index, name in enumerate(categories.order)}
    kind_of_name = [order[categories.category(*name)] for name in names]
    kinds = pick(kind_of_name, work.name)
    nought = array("b", bytes(len(work)))
    first, last = extents(nought, work.start, work.duration)[0]
    result.extent, result.window = (first, last), last - first
    result.busy = union(work.start, work.duration)
    result.sum = total(work.duration)

    stepping = find_steps(file, work, categories)
    result.method = stepping.method
    placed = totals(stepping.step_of, None, len(stepping.steps))
    result.unplaced = len(work) - sum(placed)
    _choose_steady(result, stepping)
    place = {id(step): index for index, step in enumerate(result.steady)}
    table = [place.get(id(step), NO_STEP) for step in stepping.steps]
    steady_of = pick([*table, NO_STEP], stepping.step_of)  # NO_STEP is -1: the table's last entry
    _occupy(result, work, kinds, steady_of, len(order))
    if result.steady_group and result.steady_group[0] == TRAINING and work.on_device:
        result.phases = training_phases(file, work, steady_of, len(result.steady))
    if not result.steady:
        result.whole_window = occupancy(Intervals(nought, work.start, work.duration, kinds), 1, len(order))[0]
    result.rows = _rows(names, [categories.order[kind] for kind in kind_of_name], work, steady_of)
    _collect(result, file, work, stepping, categories)


def _occupy(result: RankResult, work: Work, kinds: Sequence[int], steady_of: Sequence[int], classes: int) -> None:
    """Fill in what each steady step's wall time is busy with: work is cut at the step's ends, whoever launched it."""
    steps = result.steady
    order = sorted(range(len(steps)), key=lambda index: steps[index].first)
    begins = [steps[index].first for index in order]
    ends = [steps[index].first + (steps[index].wall or steps[index].span) for index in order]
    ends = [min(end, following) for end, following in zip(ends, [*begins[1:], *ends[-1:]])]
    place, piece, start, duration = clipped(work.start, work.duration, begins, ends)
    group = pick(order, place)
    inside = Intervals(group, start, duration, pick(kinds, piece))
    result.occupancy = occupancy(inside, len(steps), classes)
    result.others = [0] * len(steps)
    owner = pick(steady_of, piece)
    if differ(group, owner):
        own = occupancy(Intervals(where_equal(group, owner), start, duration, [0] * len(start)), len(steps), 1)
        result.others = [both.busy - alone.busy for both, alone in zip(result.occupancy, own)]


def _choose_steady(result: RankResult, stepping: Stepping) -> None:
    """Choose the steps that figures rest on: of decode, else of the next kind that occurs, the most frequent batch."""
    for step in stepping.steps:
        result.groups.setdefault((step.kind, step.batch), []).append(step)
    for kind in (DECODE, TRAINING, OTHER_KIND, PREFILL, MIXED):
        known = {group: steps for group, steps in result.groups.items() if group[0] == kind}
        if known:
            result.steady_group = max(known, key=lambda group: (len(known[group]), group[1] or 0))
            steps = known[result.steady_group]
            result.dropped = unsteady_at_first([step.span for step in steps])
            result.steady = steps[result.dropped :]
            return


def _rows(names: list[tuple[str, str]], categories: list[str], work: Work, steady_of: Sequence[int]) -> list[KernelRow]:
    size = len(names)
    calls, sums = totals(work.name, work.calls, size), totals(work.name, work.duration, size)
    rows = [
        KernelRow(kind, name, category, calls[index], sums[index])
        for index, ((kind, name), category) in enumerate(zip(names, categories))
    ]
    steady_name = where_known(steady_of, work.name)
    step_calls, step_sums = totals(steady_name, work.calls, size), totals(steady_name, work.duration, size)
    for row, number, ns in zip(rows, step_calls, step_sums):
        row.step_calls, row.step_sum = number, ns
    for (_, name), value in totals_of_pairs(steady_of, work.name, work.duration, size).items():
        rows[name].step_squares += value * value
    return [row for row in rows if row.calls]


def _collect(result: RankResult, file: TraceFile, work: Work, stepping: Stepping, categories: Categories) -> None:
    """Sort the file's collectives by operation, each with the steady step that it belongs to."""
    if not work.collectives:
        return
    names, steady = file.columns.names, {id(step): index for index, step in enumerate(result.steady)}
    wanted = [categories.is_collective(*name) for name in names]
    step_at = {
        (start, lane, name): number
        for start, lane, name, number in zip(work.start, work.lane, work.name, stepping.step_of)
        if wanted[name]
    }
    asked = asked_operations(file, work, categories)
    for start, duration, lane, name in work.collectives:
        number = step_at.get((start, lane, name), NO_STEP)
        message = file.columns.messages.get((start, lane, name))
        operation = asked.get((start, lane, name)) or categories.collective(*names[name]) or ""
        calls = result.collectives.setdefault(operation, CollectiveCalls())
        calls.starts.append(start)
        calls.durations.append(duration)
        calls.steps.append(NO_STEP if number == NO_STEP else steady.get(id(stepping.steps[number]), NO_STEP))
        if names[name][1] not in calls.names:
            calls.names.append(names[name][1])
        if message:
            count, total_ns = calls.messages.get(message, (0, 0))
            calls.messages[message] = count + 1, total_ns + max(0, duration)

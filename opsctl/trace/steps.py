"""Where a step of the model begins and ends, and of which kind it is.

The methods, the best first: the server's own markers; ``ProfilerStep#``; replays of CUDA graphs; gaps. A
marker lies on the host, and its kernels run later: they are found by the launch (correlation) that lies
between this marker and the next.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from opsctl.trace.categories import Categories
from opsctl.trace.events import Role
from opsctl.trace.grouping import extents, look_up, pick, sorted_places
from opsctl.trace.markers import DECODE, OTHER_KIND, SCHEDULE, TRAINING, Marker, read_marker
from opsctl.trace.reading import TraceFile
from opsctl.trace.work import Work

NO_STEP = -1
_LEAST_REPLAYED = 0.5
_GAP_RATIO = 3.0
_SAMPLES = re.compile(r"arg_?max|sampl|multinomial|top_?[kp]|gumbel|rejection", re.IGNORECASE)
_TRAINS = re.compile(r"backward|[_a-z]bwd|multi_tensor_apply|adam|^Optimizer\.step", re.IGNORECASE)


@dataclass
class Step:
    """One step. ``first`` and ``last`` are when its work begins and ends; ``wall`` is the time to the next step.

    ``wall`` is None where the next step is of another kind or batch, or where there is none: what lies
    between may be idle time. All in ns.
    """

    kind: str
    batch: int | None
    first: int
    last: int
    wall: int | None = None

    @property
    def span(self) -> int:
        """Return the time from the first to the last of its work."""
        return self.last - self.first


@dataclass
class Stepping:
    """The steps of a file, in order, and the step of each piece of work (NO_STEP: of none)."""

    method: str
    steps: list[Step] = field(default_factory=list)
    step_of: Sequence[int] = ()


def find_steps(file: TraceFile, work: Work, categories: Categories) -> Stepping:
    """Return the steps by the best method that finds any."""
    markers = _markers(file)
    server = [(start, marker) for start, marker in markers if marker.source != SCHEDULE]
    attempts: tuple[Callable[[], Stepping | None], ...] = (
        lambda: _by_markers(file, work, server),
        lambda: _by_markers(file, work, markers),
        lambda: _by_replays(file, work, categories),
        lambda: _by_gaps(work),
    )
    for attempt in attempts:
        found = attempt()
        if found is not None and found.steps:
            return found
    return Stepping("none: no markers, no graph replays, no regular gaps", [], [NO_STEP] * len(work))


def _markers(file: TraceFile) -> list[tuple[int, Marker]]:
    spans = file.columns.spans[Role.ANNOTATION]
    known = [read_marker(name) for _, name in file.columns.names]
    if any(_TRAINS.search(name) for _, name in file.columns.names):
        known = [replace(marker, kind=TRAINING) if marker and marker.source == SCHEDULE else marker for marker in known]
    found = [(start, marker) for name, start in zip(spans.name, spans.start) if (marker := known[name]) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _by_markers(file: TraceFile, work: Work, markers: list[tuple[int, Marker]]) -> Stepping | None:
    if not markers:
        return None
    begins = [start for start, _ in markers]
    if work.on_device:
        launches = file.columns.spans[Role.LAUNCH]
        steps = sorted_places(begins, launches.start)
        number = {correlation: step for correlation, step in zip(launches.correlation, steps) if correlation >= 0}
        of = look_up(number, work.key, NO_STEP)
    else:
        of = sorted_places(begins, work.key)
    method = markers[0][1].source + (", kernels by the launch that caused them" if work.on_device else "")
    return _stepping(method, work, of, [(marker.kind, marker.batch) for _, marker in markers])


def _by_replays(file: TraceFile, work: Work, categories: Categories) -> Stepping | None:
    """Steps by replays of CUDA graphs: one begins at the first replay after tokens were sampled or fetched.

    Graphs cut at attention (vLLM's piecewise ones) replay dozens of times a step, so a replay alone is none.
    """
    if not work.on_device:
        return None
    names = file.columns.names
    launches = file.columns.spans[Role.LAUNCH]
    is_replay = ["graphlaunch" in name.lower() for _, name in names]
    replays = {
        correlation
        for name, correlation in zip(launches.name, launches.correlation)
        if is_replay[name] and correlation >= 0
    }
    inside = sum(1 for key in work.key if key in replays)
    if len(replays) < 2 or inside < _LEAST_REPLAYED * len(work):
        return None
    sampled = [categories.category(*name) == "sampling" or "dtoh" in name[1].lower().replace(" ", "") for name in names]
    order = sorted(range(len(work)), key=lambda index: (work.start[index], work.key[index]))
    ends_seen = any(sampled[work.name[index]] for index in order if work.key[index] not in replays)
    of = [NO_STEP] * len(work)
    step, replay, ended = NO_STEP, None, True
    for index in order:
        key = work.key[index]
        if key in replays:
            if key != replay and (ended or not ends_seen):
                step, ended = step + 1, False
            replay = key
        elif sampled[work.name[index]]:
            ended = True
        of[index] = step
    sizes = Counter(number for number in of if number != NO_STEP)
    usual = Counter(sizes.values()).most_common(1)[0][0]
    # Only what samples tokens is decode: diffusion and other loops replay graphs, too.
    kind = DECODE if any(_SAMPLES.search(names[name][1]) for name in set(work.name)) else OTHER_KIND
    kinds = [(kind if sizes[number] == usual else OTHER_KIND, None) for number in range(step + 1)]
    return _stepping("replays of CUDA graphs", work, of, kinds)


def _by_gaps(work: Work) -> Stepping | None:
    """Steps by the pauses between them: those clearly longer than all other pauses."""
    order = sorted(range(len(work)), key=lambda index: work.start[index])
    pauses: list[tuple[int, int]] = []
    reached = None
    for position, index in enumerate(order):
        if reached is not None and work.start[index] > reached:
            pauses.append((work.start[index] - reached, position))
        end = work.start[index] + work.duration[index]
        reached = end if reached is None else max(reached, end)
    pauses.sort(reverse=True)
    lengths = [length for length, _ in pauses[: max(8, len(pauses) // 4)]]
    ratios = [(before / after, count) for count, (before, after) in enumerate(zip(lengths, lengths[1:]), 1)]
    ratio, count = max((pair for pair in ratios if pair[1] >= 3), default=(0.0, 0))
    if ratio < _GAP_RATIO:
        return None
    begins = sorted(position for _, position in pauses[:count])
    of = [NO_STEP] * len(work)
    for position, index in enumerate(order):
        of[index] = bisect_right(begins, position)
    return _stepping("pauses of the device", work, of, [(OTHER_KIND, None)] * (count + 1))


def _stepping(method: str, work: Work, of: Sequence[int], kinds: Sequence[tuple[str, int | None]]) -> Stepping:
    """Number the steps that have work, in order, and find their extent and the time to the next."""
    extent = extents(of, work.start, work.duration)
    order = sorted(extent)
    renumbered = {number: index for index, number in enumerate(order)}
    steps = [Step(*kinds[number], *extent[number]) for number in order]
    for number, (step, following) in zip(order, zip(steps, steps[1:])):
        adjacent = renumbered.get(number + 1) == renumbered[number] + 1
        if adjacent and (following.kind, following.batch) == (step.kind, step.batch) and following.first > step.first:
            step.wall = following.first - step.first
    table = [renumbered.get(number, NO_STEP) for number in range(len(kinds))]
    return Stepping(method, steps, pick([*table, NO_STEP], of))  # NO_STEP is -1: the table's last entry


def unsteady_at_first(times: Sequence[int]) -> int:
    """Return how many of the first steps differ from the rest: by over a tenth, and by over 4 usual deviations.

    The usual deviation is the median of all steps' distances from their median. At most half are dropped.
    """
    if len(times) < 4:
        return 0
    middle = median(times)
    usual = median(abs(time - middle) for time in times)
    dropped = 0
    while dropped < len(times) // 2 and abs(times[dropped] - middle) > max(0.1 * middle, 4 * usual):
        dropped += 1
    return dropped

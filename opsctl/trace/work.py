"""The work of a file as one list of pieces: device events, or (without a GPU) what operators did themselves."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opsctl.trace.categories import Categories
from opsctl.trace.events import Role, Spans
from opsctl.trace.reading import TraceFile


@dataclass
class Work:
    """Pieces of work by columns: name (into the file's names), lane, start and duration in ns.

    ``calls`` is 1 for a piece that counts as a call; of an operator that was interrupted by others, only its
    first piece does. ``key`` is what a launch is found by: the correlation, or the start on the host.
    """

    on_device: bool
    name: Sequence[int]
    lane: Sequence[int]
    start: Sequence[int]
    duration: Sequence[int]
    calls: Sequence[int]
    key: Sequence[int]
    collectives: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Of each collective: start, duration, lane, name; sorted."""

    def __len__(self) -> int:
        return len(self.start)


def work_of(file: TraceFile, categories: Categories) -> Work:
    """Return the work of a file: of its GPU where it has any, else of the host's operators."""
    wanted = [categories.is_collective(*name) for name in file.columns.names]
    if file.on_device:
        spans = file.columns.device
        work = Work(
            on_device=True,
            name=spans.name,
            lane=spans.lane,
            start=spans.start,
            duration=spans.duration,
            calls=array("b", bytes([1])) * len(spans),
            key=spans.correlation,
        )
        work.collectives = _collectives(spans, wanted)
    else:
        work = _self_times(file, categories)
        # gloo's stand as annotations, beside the operators that asked for them; vLLM's over shared memory as operators.
        work.collectives = _collectives(file.columns.spans[Role.ANNOTATION], wanted) or _innermost(
            _collectives(file.columns.spans[Role.OPERATION], wanted)
        )
    return work


def _collectives(spans: Spans, wanted: list[bool]) -> list[tuple[int, int, int, int]]:
    if not any(wanted):
        return []
    return sorted(
        (start, duration, lane, name)
        for name, start, duration, lane in zip(spans.name, spans.start, spans.duration, spans.lane)
        if wanted[name]
    )


def _innermost(calls: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Leave out calls during which another began on the same thread: they only passed it on."""
    kept: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: (call[0], -call[1])):
        own = kept[call[2]]
        while own and call[0] < own[-1][0] + own[-1][1]:
            own.pop()
        own.append(call)
    return sorted(call for own in kept.values() for call in own)


def _self_times(file: TraceFile, categories: Categories) -> Work:
    """Return the pieces of each operator during which none that it called ran, on the same thread.

    Spans that stand for a collective (gloo's, which run on a thread of their own) are work too.
    """
    lanes: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    columns = file.columns
    for role in (Role.OPERATION, Role.ANNOTATION):
        spans = columns.spans[role]
        wanted = [role is Role.OPERATION or categories.is_collective(*name) for name in columns.names]
        for name, lane, start, end in _ends(spans):
            if wanted[name]:
                lanes[lane].append((start, -end, name))
    out = Work(False, array("i"), array("i"), array("q"), array("q"), array("b"), array("q"))
    for lane, ops in lanes.items():
        ops.sort()
        _pieces(lane, ops, out)
    return out


def _ends(spans: Spans) -> Iterator[tuple[int, int, int, int]]:
    for name, lane, start, duration in zip(spans.name, spans.lane, spans.start, spans.duration):
        yield name, lane, start, start + max(0, duration)


def _pieces(lane: int, ops: list[tuple[int, int, int]], out: Work) -> None:
    """Append the pieces of one thread's operators, given as (start, -end, name) in order."""
    stack: list[list[int]] = []  # [end, name, from where on it works itself, whether it has a piece yet]

    def close(until: int) -> None:
        while stack and stack[-1][0] <= until:
            end, name, since, begun = stack.pop()
            _piece(out, (lane, name), since, end, 1 - begun)
            if stack:
                stack[-1][2] = max(stack[-1][2], end)

    for start, minus_end, name in ops:
        close(start)
        end = -minus_end
        if stack:
            parent = stack[-1]
            # An operator that outlasts the one it began in (clocks of the profiler are not perfect) is cut there.
            end = min(end, parent[0])
            if start > parent[2]:
                _piece(out, (lane, parent[1]), parent[2], start, 1 - parent[3])
                parent[3] = 1
        stack.append([end, name, start, 0])
    close(1 << 63)


def _piece(out: Work, whose: tuple[int, int], start: int, end: int, calls: int) -> None:
    if end > start or calls:
        for column, value in (
            (out.lane, whose[0]),
            (out.name, whose[1]),
            (out.start, start),
            (out.duration, max(0, end - start)),
            (out.calls, calls),
            (out.key, start),
        ):
            column.append(value)  # type: ignore[attr-defined]

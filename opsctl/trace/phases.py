"""Forward, backward and optimizer of a training step: by the thread that launched the work, and torch's annotation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from opsctl.trace.document import Phase
from opsctl.trace.events import Role
from opsctl.trace.figures import us
from opsctl.trace.intervals import Intervals, occupancy
from opsctl.trace.markers import SCHEDULE, read_marker
from opsctl.trace.reading import TraceFile
from opsctl.trace.work import Work

_NAMES = ("forward", "backward", "optimizer")
_FORWARD, _BACKWARD, _OPTIMIZER = range(3)


def training_phases(file: TraceFile, work: Work, step_of: Sequence[int], steps: int) -> list[Phase]:
    """Return the phases that occur; ``step_of`` numbers the steady step of each piece of work (below 0: none).

    torch's autograd launches the backward pass from a thread of its own. ``Optimizer.step`` spans hold the optimizer's
    launches. What else is launched is forward (with a first backward on the same thread, where autograd runs there).
    """
    names, spans = file.columns.names, file.columns.spans
    notes = spans[Role.ANNOTATION]
    markers = [(marker := read_marker(name)) is not None and marker.source == SCHEDULE for _, name in names]
    own = {lane for name, lane in zip(notes.name, notes.lane) if markers[name]}
    optimizing = sorted(
        (start, start + duration)
        for name, start, duration in zip(notes.name, notes.start, notes.duration)
        if names[name][1].startswith("Optimizer.step")
    )
    phase: dict[int, int] = {}
    launches = spans[Role.LAUNCH]
    for correlation, lane, start in zip(launches.correlation, launches.lane, launches.start):
        before = bisect_right(optimizing, (start, 1 << 62)) - 1
        inside = before >= 0 and start <= optimizing[before][1]
        phase[correlation] = _OPTIMIZER if inside else _FORWARD if lane in own else _BACKWARD
    kinds = [phase.get(key, _FORWARD) for key in work.key]
    found = occupancy(Intervals(step_of, work.start, work.duration, kinds), steps, len(_NAMES))
    busy = [sum(item.union[kind] for item in found) for kind in range(len(_NAMES))]
    return [Phase(name, us(ns / steps)) for name, ns in zip(_NAMES, busy) if ns]

"""Which collective a kernel carries out, where its own name does not tell: by its arguments, else by who launched it.

RCCL runs every collective as one generic kernel, and NCCL runs all-to-all as send and receive. The profiler's
arguments (``Collective name``), or else the annotation (``nccl:all_to_all``) around the launch, name the operation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from opsctl.trace.categories import Categories, operation_said
from opsctl.trace.events import Role
from opsctl.trace.reading import TraceFile
from opsctl.trace.work import Work

_VAGUE = {"collective", "send_recv"}


def asked_operations(file: TraceFile, work: Work, categories: Categories) -> dict[tuple[int, int, int], str]:
    """Return the operation that was asked for, by (start, lane, name) of the collectives of which it is known."""
    columns = file.columns
    found = {}
    for place, message in columns.messages.items():
        operation = operation_said(message.op)
        if operation:
            found[place] = operation
    vague = {
        name for name, known in enumerate(columns.names) if categories.collective(*known) in _VAGUE and work.on_device
    }
    if vague and any(name in vague and (start, lane, name) not in found for start, _, lane, name in work.collectives):
        found.update({place: op for place, op in _by_annotation(file, work, vague) if place not in found})
    return found


def _by_annotation(file: TraceFile, work: Work, vague: set[int]) -> list[tuple[tuple[int, int, int], str]]:
    """Return the operation of each vague kernel whose launch lies in an annotation that names a collective."""
    spans = file.columns.spans
    notes: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    own = spans[Role.ANNOTATION]
    for name, lane, start, duration in zip(own.name, own.lane, own.start, own.duration):
        text = file.columns.names[name][1]
        operation = operation_said(text) if ":" in text else None
        if operation:
            notes[lane].append((start, start + duration, operation))
    for around in notes.values():
        around.sort()
    wanted = {
        key: (start, lane, name)
        for key, start, lane, name in zip(work.key, work.start, work.lane, work.name)
        if name in vague and key >= 0
    }
    found = []
    launches = spans[Role.LAUNCH]
    for key, start, lane in zip(launches.correlation, launches.start, launches.lane):
        place = wanted.get(key)
        around = notes.get(lane, [])
        before = bisect_right(around, (start, 1 << 62, "")) - 1 if place else -1
        if place and before >= 0 and around[before][1] >= start:
            found.append((place, around[before][2]))
    return found

"""What is kept of a trace file: a few numbers an event, in columns, whatever the file's spelling was.

Times are whole nanoseconds (Kineto writes microseconds with three decimals), so sums do not depend on the
order of events, on the reader, or on what is installed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from opsctl.trace.markers import read_marker


class Role(IntEnum):
    """What an event is to the analysis."""

    IGNORED = 0
    DEVICE = 1
    """Work on a GPU: a kernel, a copy, a fill."""
    LAUNCH = 2
    """A runtime or driver call that may have launched device work (its ``correlation`` says which)."""
    ANNOTATION = 3
    """A host span that somebody named: step markers, gloo's collectives."""
    OPERATION = 4
    """An operator on the host (``cpu_op``)."""


_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events", "hpu_op"}
_ROLES = {
    "user_annotation": Role.ANNOTATION,
    "annotation": Role.ANNOTATION,
    "cpu_op": Role.OPERATION,
    "operator": Role.OPERATION,
    "runtime": Role.LAUNCH,
}
WINDOW_END = "Record Window End"


def role_of(phase: str, category: str, name: str = "") -> Role:
    """Return the role of an event by its ``ph`` and ``cat`` (torch before 1.12 wrote ``Kernel``, ``Operator``).

    Old Kineto wrote markers of steps as operators, so there the name tells.
    """
    if phase != "X":
        return Role.IGNORED
    lower = category.lower()
    if lower in _DEVICE:
        return Role.DEVICE
    if lower.endswith(("_runtime", "_driver")):
        return Role.LAUNCH
    if lower == "operator" and read_marker(name) is not None:
        return Role.ANNOTATION
    return _ROLES.get(lower, Role.IGNORED)


@dataclass
class Spans:
    """Events of one role, column by column: name (into Columns.names), lane, start and duration in ns, correlation."""

    name: array[int] = field(default_factory=lambda: array("i"))
    lane: array[int] = field(default_factory=lambda: array("i"))
    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.start)

    def add(self, name: int, lane: int, start: int, duration: int, correlation: int) -> None:
        """Append one event."""
        self.name.append(name)
        self.lane.append(lane)
        self.start.append(start)
        self.duration.append(duration)
        self.correlation.append(correlation)

    def remove(self, places: set[int]) -> None:
        """Take out the events at the given places."""
        for column in (self.name, self.lane, self.start, self.duration, self.correlation):
            kept = [value for place, value in enumerate(column) if place not in places]
            column[:] = array(column.typecode, kept)


@dataclass(frozen=True)
class Message:
    """What a collective's kernel says of itself: the op, elements sent, their type, ranks, elements received, group."""

    op: str
    elements: int
    dtype: str
    group_size: int
    received: int = 0
    group: str = ""


@dataclass
class Columns:
    """Everything that is kept of one file. ``names`` holds (category of the file, name); ``lanes`` (pid, tid)."""

    names: list[tuple[str, str]] = field(default_factory=list)
    lanes: list[tuple[str, str]] = field(default_factory=list)
    spans: dict[Role, Spans] = field(default_factory=lambda: {role: Spans() for role in Role if role})
    messages: dict[tuple[int, int, int], Message] = field(default_factory=dict)
    """Of collectives that say their size, by (start, lane, name)."""
    events: int = 0
    """Events of any kind, also those that are not kept."""
    window_end: bool = False
    unreadable: int = 0
    """Events of which nothing could be used."""
    quoted_times: int = 0
    """Kept events whose time is a string."""
    picked: int = 0
    """Events that are no JSON, of which the fields needed were read by name."""
    bad_names: int = 0
    """Kept events whose name was not valid JSON text."""
    roles: frozenset[Role] = frozenset({Role.DEVICE, Role.LAUNCH, Role.ANNOTATION})
    _name_ids: dict[tuple[str, str], int] = field(default_factory=dict)
    _lane_ids: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def device(self) -> Spans:
        """Return the device work."""
        return self.spans[Role.DEVICE]

    def name_id(self, category: str, name: str) -> int:
        """Return the number that stands for a name."""
        return _intern(self.names, self._name_ids, (category, name))

    def lane_id(self, pid: str, tid: str) -> int:
        """Return the number that stands for a stream or a thread."""
        return _intern(self.lanes, self._lane_ids, (pid, tid))


def _intern(table: list[tuple[str, str]], ids: dict[tuple[str, str], int], key: tuple[str, str]) -> int:
    number = ids.get(key)
    if number is None:
        number = ids[key] = len(table)
        table.append(key)
    return number

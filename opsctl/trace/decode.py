"""The reader that knows every spelling of the JSON, valid or not quite.

Text arrives in blocks that begin at an event. Where a block can be cut is found by trying: a prefix that
starts outside any string and parses as a whole array was cut between two events, wherever its commas stand.
A block that does not parse is taken apart at whatever looks like the gap between two events, and each piece
is read on its own; of a piece that is not JSON the fields needed are picked out by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any, Optional

from opsctl.trace.events import WINDOW_END, Columns, Message, Role, role_of
from opsctl.trace.speedups import optional
from opsctl.trace.text import lane_text, name_text, nanoseconds, printable

GAP = re.compile(rb"\}\s*,\s*\{")
_KEYS = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:'
LIKELY_GAP = re.compile(rb"(?<=\})\s*,\s*(?=\{\s*" + _KEYS + rb")")
_END_OF_ARRAY = re.compile(rb"\s*\]")
_TRIES = 4
_MERGED_AT_MOST = 8
_LOOK_BACK = 1 << 16
_FIELD = {
    "ph": re.compile(rb'"ph"\s*:\s*"(.)"'),
    "cat": re.compile(rb'"cat"\s*:\s*"([^"]*)"'),
    "name": re.compile(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*' + _KEYS + rb"|\}\s*$)", re.DOTALL),
    "pid": re.compile(rb'"pid"\s*:\s*(-?\d+|"[^"]*")'),
    "tid": re.compile(rb'"tid"\s*:\s*(-?\d+|"[^"]*")'),
    "ts": re.compile(rb'"ts"\s*:\s*("?[-+.\deE]+)'),
    "dur": re.compile(rb'"dur"\s*:\s*("?[-+.\deE]+)'),
    "correlation": re.compile(rb'"correlation"\s*:\s*(\d+)'),
}
_role_of = lru_cache(maxsize=1024)(role_of)


class _Wanted(dict[tuple[str, str], bool]):
    """Whether an event of a (ph, cat) is looked at: its role is kept, or it may mark the window's end."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns

    def __missing__(self, key: tuple[str, str]) -> bool:
        # An old file's operators are looked at: a marker of a step may be among them.
        old = key[0] == "X" and key[1].lower() == "operator"
        self[key] = wanted = key[0] == "i" or old or _role_of(*key) in self.columns.roles
        return wanted


def _strict_decoder(wanted: _Wanted) -> Callable[[bytes], list[Any]]:
    """Return a function from the text of an array of events to events, by msgspec where there is one.

    It raises ValueError for what is not JSON. An event is ``(ph, cat, name, pid, tid, ts, dur, args)``, or None
    where it is not looked at; ``args`` is None or what the names in ``_argument`` can be read from.
    """
    msgspec = optional("msgspec")
    if msgspec is None:
        return _decode_with_json
    raw, blank = msgspec.Raw, msgspec.Raw(b"")
    arguments = msgspec.defstruct(
        "Arguments",
        [
            ("correlation", Any, None),
            ("collective", Any, msgspec.field(name="Collective name", default=None)),
            ("elements", Any, msgspec.field(name="In msg nelems", default=None)),
            ("dtype", Any, None),
            ("size", Any, msgspec.field(name="Group size", default=None)),
            ("received", Any, msgspec.field(name="Out msg nelems", default=None)),
            ("group", Any, msgspec.field(name="Process Group Name", default=None)),
        ],
    )
    event = msgspec.defstruct(
        "Event",
        [("ph", str, ""), ("cat", str, ""), ("name", str, "")]
        + [(field, raw, blank) for field in ("pid", "tid", "ts", "dur")]
        + [("args", Optional[arguments], None)],
    )
    decoder = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]

    def decode(text: bytes) -> list[Any]:
        try:
            return [
                (e.ph, e.cat, e.name, bytes(e.pid), bytes(e.tid), bytes(e.ts), bytes(e.dur), e.args)
                if wanted[e.ph, e.cat]
                else None
                for e in decoder.decode(text)
            ]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from error

    return decode


class _Number(str):
    """A number with a point, as it is spelled: float64 cannot hold every time."""

    __slots__ = ()


_json = json.JSONDecoder(parse_float=_Number)
_ABSENT = object()


def _decode_with_json(text: bytes) -> list[Any]:
    return [_fields(event) for event in _json.decode(text.decode("utf-8"))]


def _fields(event: Any) -> tuple[Any, ...]:
    """Return the fields of an event that the json module read. Raises ValueError where it is no event."""
    if not isinstance(event, dict):
        raise ValueError(f"wanted an event, found {type(event).__name__}")  # noqa: TRY004 (not JSON of a trace)
    texts = []
    for key in ("ph", "cat", "name"):
        value = event.get(key, "")
        if not isinstance(value, str) or isinstance(value, _Number):
            raise ValueError(f"{key} is no text")  # noqa: TRY004 (not JSON of a trace)
        texts.append(value)
    numbers = [_as_spelled(event.get(key, _ABSENT)) for key in ("pid", "tid", "ts", "dur")]
    arguments = event.get("args")
    if arguments is not None and not isinstance(arguments, dict):
        raise ValueError("args is no object")
    return (*texts, *numbers, arguments)


def _as_spelled(value: Any) -> bytes:
    if value is _ABSENT:
        return b""
    return value.encode() if isinstance(value, _Number) else json.dumps(value).encode()


_ARGUMENTS = {
    "collective": "Collective name",
    "elements": "In msg nelems",
    "size": "Group size",
    "received": "Out msg nelems",
    "group": "Process Group Name",
}


def _argument(arguments: Any, name: str) -> Any:
    if isinstance(arguments, dict):
        return arguments.get(_ARGUMENTS.get(name, name))
    return getattr(arguments, name, None)


class Decoder:
    """Reads text of any spelling into ``columns``. ``ended`` is set once the array of events has closed."""

    def __init__(self, columns: Columns, collectives: Callable[[str, str], bool]) -> None:
        """``collectives(category, name)`` says whether a name is a collective whose message size is worth reading."""
        self.columns = columns
        self.ended = False
        self.tail = b""
        self._lanes: dict[tuple[bytes, bytes], int] = {}
        self._collectives = lru_cache(maxsize=None)(collectives)

    @cached_property
    def _strict(self) -> Callable[[bytes], list[Any]]:
        # A file in Kineto's own layout never needs it, and msgspec takes a while to load.
        return _strict_decoder(_Wanted(self.columns))

    def decode(self, text: bytes) -> bytes:
        """Take the whole events of ``text``, which begins at an event; return what is left of it."""
        for cut in self._cuts(text):
            try:
                events = self._strict(b"[" + text[: cut.start() + 1] + b"]")
            except ValueError:
                continue
            for event in events:
                self._take(event)
            return text[cut.end() - 1 :]
        return self._walk(text, last=False)

    def whole(self, text: bytes) -> None:
        """Take a text that holds whole events and nothing else (the scanner could not)."""
        rest = self._walk(text, last=False)
        if not self._read_from([rest], 0):
            self._salvage(rest)

    def finish(self, text: bytes) -> bytes:
        """Take the last text of the file. Returns what could not be used: an event that is cut short, or nothing."""
        return b"" if self.ended else self._walk(text, last=True)

    def _cuts(self, text: bytes) -> Iterator[re.Match[bytes]]:
        """Yield the last few places at which two events may meet, the last first."""
        found = list(GAP.finditer(text, max(0, len(text) - _LOOK_BACK)))
        yield from found[: -_TRIES - 1 : -1]

    def _walk(self, text: bytes, *, last: bool) -> bytes:
        """Take events one by one; return the text of the one that is not whole yet."""
        pieces = LIKELY_GAP.split(text)
        at = 0
        while at < len(pieces):
            is_last = at == len(pieces) - 1
            if is_last and not last:
                return pieces[at]
            merged = self._read_from(pieces, at)
            if merged:
                at += merged
                continue
            if not last and at + _MERGED_AT_MOST >= len(pieces) and not _balanced(pieces[at]):
                # The rest of it may lie in the piece that is not whole yet.
                return b",".join(pieces[at:])
            taken, rest = self._read_before_rest(pieces[at])
            if taken and (_END_OF_ARRAY.match(rest) or not is_last):
                at += 1
                if _END_OF_ARRAY.match(rest):
                    self.ended, self.tail = True, b",".join([rest.lstrip()[1:], *pieces[at:]])
                    return b""
                continue
            if taken:
                return rest
            if is_last:
                return self._read_last(pieces[at])
            self._salvage(pieces[at])
            at += 1
        return b""

    def _read_from(self, pieces: list[bytes], at: int) -> int:
        """Return how many pieces make one event that parses (a list of objects in args looks like a gap), or 0."""
        for count in range(1, min(_MERGED_AT_MOST, len(pieces) - at) + 1):
            try:
                events = self._strict_or_json(b",".join(pieces[at : at + count]))
            except ValueError:
                if count == 1 and _balanced(pieces[at]):
                    return 0
                continue
            for event in events:
                self._take(event)
            return count
        return 0

    def _strict_or_json(self, text: bytes) -> list[Any]:
        """Decode one event; what msgspec refuses and the json module reads (NaN, half an escape) is read."""
        array = b"[" + text.strip(b", \r\n\t") + b"]"
        try:
            return self._strict(array)
        except ValueError:
            return _decode_with_json(array)

    def _read_before_rest(self, piece: bytes) -> tuple[bool, bytes]:
        """Take the event that a piece begins with; return whether there was one, and what follows it."""
        text = piece.lstrip(b", \r\n\t").decode("utf-8", "surrogateescape")
        try:
            event, end = _json.raw_decode(text)
            fields = _fields(event)
        except (ValueError, RecursionError):
            return False, piece
        if not fields[0]:
            return False, piece  # an object from inside an event that is broken
        self._take(fields)
        return True, text[end:].encode("utf-8", "surrogateescape")

    def _read_last(self, piece: bytes) -> bytes:
        """Take the file's last piece, which is no JSON: an odd event before the end, or one that is cut short."""
        if _END_OF_ARRAY.match(piece):
            self.ended, self.tail = True, piece.lstrip()[1:]
            return b""
        closing = re.search(rb"\}\s*\]\s*(?:,|\}|$)", piece)
        if closing is None:
            return piece.strip(b", \r\n\t")
        self._salvage(piece[: closing.start() + 1])
        self.ended, self.tail = True, piece[piece.index(b"]", closing.start()) + 1 :]
        return b""

    def _take(self, event: tuple[Any, ...] | None) -> None:
        columns = self.columns
        columns.events += 1
        if event is None:
            return
        phase, category, name, pid, tid, ts, duration, arguments = event
        role = _role_of(phase, category, name if category in ("Operator", "operator") else "")
        if role not in columns.roles:
            if name == WINDOW_END:
                columns.window_end = True
            return
        start, length = nanoseconds(ts), nanoseconds(duration)
        if start is None or length is None:
            columns.unreadable += 1
            return
        columns.quoted_times += ts[:1] == b'"' or duration[:1] == b'"'
        correlation = _argument(arguments, "correlation")
        number = columns.name_id(category, printable(name))
        lane = self._lane(pid, tid)
        whole = correlation if type(correlation) is int and -1 <= correlation < 1 << 62 else -1
        columns.spans[role].add(number, lane, start, length, whole)
        if role is Role.DEVICE and self._collectives(category, name):
            op, elements = _argument(arguments, "collective"), _argument(arguments, "elements")
            if isinstance(op, str) and type(elements) is int:
                texts = [_argument(arguments, key) for key in ("dtype", "group")]
                dtype, group = (text if isinstance(text, str) else "" for text in texts)
                counts = [_argument(arguments, key) for key in ("size", "received")]
                size, received = (count if type(count) is int else 0 for count in counts)
                columns.messages[start, lane, number] = Message(op, elements, dtype, size, received, group)

    def _lane(self, pid: bytes, tid: bytes) -> int:
        lane = self._lanes.get((pid, tid))
        if lane is None:
            lane = self._lanes[pid, tid] = self.columns.lane_id(lane_text(pid), lane_text(tid))
        return lane

    def _salvage(self, piece: bytes) -> None:
        """Pick the fields needed out of a piece that is no JSON."""
        found = {key: match[1] for key, pattern in _FIELD.items() if (match := pattern.search(piece))}
        columns = self.columns
        columns.events += 1
        role = _role_of(found.get("ph", b"").decode("latin-1"), found.get("cat", b"").decode("utf-8", "replace"))
        if found and "ph" in found and role not in columns.roles:
            return
        start, length = nanoseconds(found.get("ts", b"")), nanoseconds(found.get("dur", b""))
        if start is None or length is None or not found.keys() >= {"ph", "cat", "name"}:
            columns.unreadable += 1
            return
        name, valid = name_text(found["name"])
        columns.bad_names += not valid
        columns.picked += valid
        columns.spans[role].add(
            columns.name_id(found["cat"].decode("utf-8", "replace"), name),
            self._lane(found.get("pid", b""), found.get("tid", b"")),
            start,
            length,
            int(found.get("correlation", b"-1")[:18]),
        )


def _balanced(piece: bytes) -> bool:
    """Whether a piece has as many opening as closing braces and brackets, strings aside or not."""
    return piece.count(b"{") == piece.count(b"}") and piece.count(b"[") == piece.count(b"]")

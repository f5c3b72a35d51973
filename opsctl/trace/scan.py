"""The fast reader: files in Kineto's own layout, scanned with numpy, a thousand events a step.

Kineto writes an event as ``␣␣{``, then lines indented by four blanks that begin with ``"ph"``, ``"cat"``,
``"name"``, ``"pid"``, ``"tid"`` (on one line up to torch 2.11, on a line each since), then a line that
begins with ``"ts"``. So all that is said *before* the time (the head) is a run of bytes that repeats for
every call of a kernel (``heads.py``), and times and correlations are digits at known places, turned into numbers
a block at a time.

Anything that is not exactly so raises :class:`Unfamiliar` before the block has left a trace in the columns;
the caller hands that block to ``decode``, which knows every spelling.
"""

from __future__ import annotations

import re
from typing import Any

from opsctl.trace.event_prefixes import TIME, Heads, Unfamiliar, word
from opsctl.trace.events import Columns, Message, Role
from opsctl.trace.speedups import optional

BOUNDARY = b"\n  },\n  {\n"
_TILE = 1 << 17
"""Bytes compared at a time: they and what comes of them stay in the cache."""
_FLUSH = 1 << 17
"""Events that wait to be sorted by role together: many blocks at once cost little more than one."""
MARGIN = 32
"""How many bytes must stand behind a text, so that eight can be read at every place of interest."""
_NEWLINE = ord("\n")
_MESSAGE = re.compile(
    rb'"Collective name": "(?P<op>[^"]*)"|"In msg nelems": (?P<elements>\d+)|"dtype": "(?P<dtype>[^"]*)"'
    rb'|"Group size": (?P<size>\d+)|"Out msg nelems": (?P<received>\d+)|"Process Group Name": "(?P<group>[^"]*)"'
)


def _words(np: Any, block: bytes) -> Any:
    """Return the eight bytes that begin at every byte of the block, as numbers, without a copy."""
    return np.ndarray((len(block) - 7,), dtype="<u8", buffer=block, strides=(1,))


_numpy = optional("numpy")
_EVENT_LINE, _FOUR = word(b"  {\n"), word(b"\xff" * 4)
_TIME_LINE = word(TIME[:8])
_SPAN_OF, _OPERATOR, _SEVEN = b'    "ph": "X", "cat": "', word(b'cpu_op"'), word(b"\xff" * 7)
_COMMA, _ONE, _BYTE = word(b","), word(b"\xff"), word(b"\x08")
_DOT, _DOT_BEFORE_THREE = word(b"\0\0\0\0."), word(b"\0\0\0\0\xff")
_THREE_LAST = word(b"\0\0\0\0\0\xff\xff\xff")
_ZEROS, _HIGH_BITS = word(b"0" * 8), word(b"\x80" * 8)
_LAST_BYTES = _numpy and _numpy.array([word(b"\0" * (8 - count) + b"\xff" * count) for count in range(9)])
_STOPS = _numpy and _numpy.array([word(b"\0" * count + b"\x80") for count in range(8)])
_ONE_BIT = word(b"\x01")
_DURATION, _CORRELATION = b', "dur": ', b'"correlation": '
_DURATION_LINE = word(b' "dur": ')
_NINE_TO_HIGH = word(b"\x76" * 8)
"""Added to a byte of 0…9 it leaves the high bit alone; to 10…127 it sets it."""
_PARALLEL = [
    (word(b"\x08"), word(b"\x0a"), word(b"\xff\x00" * 4)),
    (word(b"\x10"), word(b"\x64"), word(b"\xff\xff\x00\x00" * 2)),
    (word(b"\x20"), word(b"\x10\x27"), word(b"\xff" * 4)),
]


def is_kineto_layout(text: bytes) -> bool:
    """Whether the text after ``"traceEvents": [`` begins in Kineto's own layout."""
    return re.match(rb'\s*?\n  \{\n    "ph": "', text) is not None


def message_in(arguments: bytes) -> Message | None:
    """Return what a collective's ``args`` say of its message, if they do."""
    found: dict[str, bytes] = {}
    for match in _MESSAGE.finditer(arguments):
        if match.lastgroup:
            found.setdefault(match.lastgroup, match[match.lastgroup])
    if "op" not in found or "elements" not in found:
        return None
    return Message(
        op=found["op"].decode("utf-8", "replace"),
        elements=int(found["elements"]),
        dtype=found.get("dtype", b"").decode("utf-8", "replace"),
        group_size=int(found.get("size", b"0")),
        received=int(found.get("received", b"0")),
        group=found.get("group", b"").decode("utf-8", "replace"),
    )


class Scanner:
    """Reads blocks of whole events into ``columns``. Needs numpy: make one only where :func:`available`."""

    def __init__(self, columns: Columns, collectives: Any) -> None:
        """``collectives(category, name)`` says whether a name is a collective whose message size is worth reading."""
        self.columns = columns
        self._numpy = _numpy
        self._heads = Heads(columns)
        self._collectives = collectives
        self._is_collective: list[bool] = []
        self._says_message = _numpy.zeros(0, dtype=bool)
        self._taken: list[tuple[Any, Any, Any, Any]] = []
        """Of each block that waits for flush(): heads' numbers, starts, durations, correlations."""
        self._waiting = 0
        self._tile = _numpy.empty(_TILE, dtype=bool)

    def scan(self, block: bytes, begin: int, end: int) -> None:
        """Take what stands at [begin, end): from a ``␣␣{`` to after an event. MARGIN bytes must stand behind it.

        Raises Unfamiliar, with nothing taken.
        """
        np = self._numpy
        words = _words(np, block)
        ends = self._newlines(np.frombuffer(block, dtype=np.uint8), begin, end)
        starts = np.empty_like(ends)
        starts[:1] = begin
        starts[1:] = ends[:-1] + 1
        begins = words[starts]
        opening = np.flatnonzero((begins & _FOUR) == _EVENT_LINE)
        timed = np.flatnonzero(begins == _TIME_LINE)
        if not len(opening) or opening[0] != 0:
            raise Unfamiliar
        event = np.searchsorted(opening, timed) - 1
        if len(event) and (event[0] < 0 or (np.diff(event) <= 0).any()):
            raise Unfamiliar
        head = starts[opening[event] + 1]
        if Role.OPERATION not in self.columns.roles:
            # Half of all events may be operators: they need not be cut out to be seen and left.
            other = np.flatnonzero(words[head + len(_SPAN_OF)] & _SEVEN != _OPERATOR)
            timed, event, head = timed[other], event[other], head[other]
        numbers = self._heads.numbers(block, words, head, starts[timed])
        kept = np.flatnonzero(self._heads.tables()[0][numbers])
        if len(kept):
            rows = _Rows(block, words, self._heads)
            rows.at(starts, ends, timed[kept], numbers[kept])
            start, duration = rows.times()
            following = np.append(starts[opening], end)[event[kept] + 1]
            correlation = rows.correlations(following)
            self._taken.append((numbers[kept], start, duration, correlation))
            self._waiting += len(kept)
            self._take_messages(block, numbers[kept], start, rows.line_end, following)
        self.columns.events += len(opening)
        if self._waiting >= _FLUSH:
            self.flush()

    def _newlines(self, text: Any, begin: int, end: int) -> Any:
        """Return where lines end; in tiles, so that what is compared is still in the cache when it is counted."""
        np = self._numpy
        found = []
        for place in range(begin, end, _TILE):
            tile = text[place : min(place + _TILE, end)]
            found.append(np.equal(tile, _NEWLINE, out=self._tile[: len(tile)]).nonzero()[0] + place)
        return np.concatenate(found)

    def flush(self) -> None:
        """Append to the columns what was scanned and waits: before anything else is, and at the end."""
        if not self._taken:
            return
        np, columns = self._numpy, self.columns
        numbers, start, duration, correlation = map(np.concatenate, zip(*self._taken))
        self._taken, self._waiting = [], 0
        roles, names, lanes = self._heads.tables()
        role_of_row = roles[numbers]
        for role in columns.roles:
            chosen = np.flatnonzero(role_of_row == role)
            if not len(chosen):
                continue
            spans, own = columns.spans[role], numbers[chosen]
            spans.name.frombytes(names[own].tobytes())
            spans.lane.frombytes(lanes[own].tobytes())
            spans.start.frombytes(start[chosen].tobytes())
            spans.duration.frombytes(duration[chosen].tobytes())
            spans.correlation.frombytes(correlation[chosen].tobytes())
        if self._heads.flawed:
            columns.bad_names += int(np.isin(numbers, list(self._heads.flawed)).sum())

    def _take_messages(self, block: bytes, numbers: Any, start: Any, first: Any, last: Any) -> None:
        """Read the messages of collectives that say them, from [first, last) of each event."""
        heads, columns, known = self._heads, self.columns, self._says_message
        if len(known) < len(heads.role):
            for category, name in columns.names[len(self._is_collective) :]:
                self._is_collective.append(self._collectives(category, name))
            more = zip(heads.role[len(known) :], heads.name[len(known) :])
            wanted = [role == Role.DEVICE and self._is_collective[name] for role, name in more]
            known = self._says_message = self._numpy.append(known, wanted).astype(bool)
        for row in self._numpy.flatnonzero(known[numbers]).tolist():
            message = message_in(block[int(first[row]) : int(last[row])])
            if message:
                number = int(numbers[row])
                columns.messages[int(start[row]), heads.lane[number], heads.name[number]] = message


class _Rows:
    """The kept events of a block: where their lines are, and the numbers on them."""

    def __init__(self, block: bytes, words: Any, heads: Heads) -> None:
        self.np, self.block, self.words, self.heads = _numpy, block, words, heads

    def at(self, starts: Any, ends: Any, lines: Any, numbers: Any) -> None:
        """Set where all lines begin and end, which of them hold the events' times, and the events' heads."""
        self.starts, self.ends, self.lines, self.line_end = starts, ends, lines, ends[lines]
        self.numbers = numbers

    def times(self) -> tuple[Any, Any]:
        """Return start and duration in ns."""
        time_at = self.starts[self.lines] + len(TIME)
        until = self._before_comma(self.line_end)
        following = self.np.minimum(self.lines + 1, len(self.starts) - 1)
        next_line = self.starts[following]
        own_line = self.words[next_line + 3] == _DURATION_LINE
        if own_line.all():
            duration_at = next_line + len('    "dur": ')
            return self._decimals(time_at, until), self._decimals(duration_at, self._before_comma(self.ends[following]))
        comma = self._places(time_at, until, _DURATION)
        if (comma < 0).any():
            raise Unfamiliar
        return self._decimals(time_at, comma), self._decimals(comma + len(_DURATION), until)

    def correlations(self, following: Any) -> Any:
        """Return each event's correlation, -1 where it has none; ``following`` is where the next event begins."""
        np = self.np
        found = self._places(self.line_end, following, _CORRELATION)
        have = found >= 0
        at = np.where(have, found + len(_CORRELATION), 0)
        width = self._digits(at)
        long = width == 8
        if long.any():
            width[long] += self._digits(at[long] + 8)
        if ((width == 0) | (width == 16))[have].any():
            raise Unfamiliar
        values = np.full(len(found), -1, dtype=np.int64)
        if have.any():
            values[have] = self._integers(at[have], (at + width)[have])
        return values

    def _digits(self, at: Any) -> Any:
        """Return how many of the eight bytes at ``at`` are digits before the first that is none."""
        here = self.words[self.np.minimum(at, len(self.words) - 1)] ^ _ZEROS
        stop = ((here + _NINE_TO_HIGH) | here) & _HIGH_BITS
        return self.np.searchsorted(_STOPS, stop & (~stop + _ONE_BIT)) * (stop != 0) + 8 * (stop == 0)

    def _before_comma(self, end: Any) -> Any:
        return end - ((self.words[end - 1] & _ONE) == _COMMA)

    def _places(self, from_: Any, until: Any, literal: bytes) -> Any:
        """Return where ``literal`` stands in each row's [from_, until), -1 where it does not.

        It mostly stands as far off as it did in the last event of the same head, so that is looked at first.
        """
        np = self.np
        first, last, further = word(literal[:8]), word(literal[-8:]), len(literal) - 8
        distance = self.heads.distances(literal)
        places = np.minimum(from_ + distance[self.numbers], len(self.words) - len(literal))
        hit = (self.words[places] == first) & (self.words[places + further] == last) & (places < until)
        for row in np.flatnonzero(~hit).tolist():
            begin = int(from_[row])
            places[row] = place = self.block.find(literal, begin, int(until[row]))
            if place >= 0:
                distance[self.numbers[row]] = place - begin
        return places

    def _decimals(self, start: Any, end: Any) -> Any:
        """Return ns for texts ``1234.567`` or ``1234`` in µs that stand at [start, end)."""
        np = self.np
        width = end - start
        last = self.words[end - 8]
        dotted = (width >= 5) & ((last & _DOT_BEFORE_THREE) == _DOT)
        if not dotted.all():
            if dotted.any():
                raise Unfamiliar
            return self._integers(start, end) * 1000
        value = self._number((last & _THREE_LAST) | ((last & _FOUR) << _BYTE), np.minimum(width - 1, 7))
        longer = width > 8
        if longer.all():
            value += self._integers(start, end - 8) * 10_000_000
        elif longer.any():
            value[longer] += self._integers(start[longer], end[longer] - 8) * 10_000_000
        return value

    def _integers(self, start: Any, end: Any) -> Any:
        """Return the integers of up to 16 digits that stand at [start, end)."""
        width = end - start
        widest = int(width.max())
        if widest > 16 or int(width.min()) < 1:
            raise Unfamiliar
        value = self._number(self.words[end - 8], self.np.minimum(width, 8))
        if widest > 8:
            value += self._number(self.words[end - 16], self.np.maximum(width - 8, 0)) * 100_000_000
        return value

    def _number(self, digits: Any, count: Any) -> Any:
        """Return the numbers that the last ``count`` bytes of each word spell, ``count`` being 0 to 8.

        The digits are added up in parallel inside a 64-bit word: pairs, then fours, then eight (the usual
        trick; a text's last digit is a little-endian word's highest byte).
        """
        digits = (digits ^ _ZEROS) & _LAST_BYTES[count]
        if (((digits + _NINE_TO_HIGH) | digits) & _HIGH_BITS).any():
            raise Unfamiliar
        if (digits == digits[0]).all():
            # The upper digits of times mostly are: then one is worked out for all.
            return self.np.full(len(digits), self._parallel(digits[:1])[0])
        return self._parallel(digits)

    def _parallel(self, digits: Any) -> Any:
        for shift, factor, mask in _PARALLEL:
            digits = (digits * factor + (digits >> shift)) & mask
        return digits.astype(self.np.int64)


def available() -> bool:
    """Whether this Python can scan."""
    return _numpy is not None

"""What stands before an event's time (its head), numbered: the same bytes for every call of a kernel.

A head is parsed once. After that it is guessed from its length and a few of its bytes, and compared.
"""

from __future__ import annotations

import re
from typing import Any

from opsctl.trace.events import Columns, role_of
from opsctl.trace.speedups import optional
from opsctl.trace.text import lane_text, name_text

_HEAD = re.compile(
    rb'    "ph": "(?P<ph>.)",\s+(?:"cat": "(?P<cat>[^"]*)",\s+)?"name": "(?P<name>.*)",'
    rb'\s+"pid": (?P<pid>-?\d+|"[^"]*"),\s+"tid": (?P<tid>-?\d+|"[^"]*"),\n',
    re.DOTALL,
)
_MOST_HEADS = 1 << 17
_numpy = optional("numpy")


class Unfamiliar(Exception):
    """The block is not in Kineto's own layout."""


def word(literal: bytes) -> Any:
    """Return up to eight bytes as the number that a little-endian word of them is."""
    number = int.from_bytes(literal, "little")
    return number if _numpy is None else _numpy.uint64(number)


TIME = b'    "ts": '
"""What a line that holds an event's time begins with."""
_SLOT_BITS = 16
_SLOT_SHIFT = _numpy and _numpy.uint64(64 - _SLOT_BITS)
_MIX = [
    word(number.to_bytes(8, "little"))
    for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
]
"""Odd numbers of many bits: what is multiplied with them is spread over the upper bits."""


class Heads(dict[bytes, int]):
    """From the bytes before an event's time to a number; the ``role`` of one that is not kept is 0."""

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        self.columns = columns
        self.role: list[int] = [0]
        self.name: list[int] = [0]
        self.lane: list[int] = [0]
        self.flawed: set[int] = set()
        self._texts: list[bytes] = [b"\0"]
        """Each head with the line of the time begun; the first is what no event begins with."""
        self._text_array = _numpy.array(self._texts, dtype=object)
        self._guesses = _numpy.zeros(1 << _SLOT_BITS, dtype=_numpy.int64)
        self._arrays: tuple[Any, Any, Any] | None = None
        self._distances: dict[bytes, Any] = {}

    def numbers(self, block: bytes, words: Any, begin: Any, end: Any) -> Any:
        """Return the numbers of the heads at [begin, end).

        Guessed from a head's length and a few bytes of it, then compared; only what was guessed wrong is cut out
        and looked up, which takes three times as long.
        """
        np = _numpy
        if len(self._text_array) != len(self._texts):
            self._text_array = np.array(self._texts, dtype=object)
        length, last = end - begin, len(words) - 1
        slot = length.astype(np.uint64) * _MIX[0]
        # A name's beginning, middle and end, and the thread or stream.
        for place, factor in zip((begin + 40, begin + (length >> 1), end - 32, end - 10), _MIX[1:]):
            slot ^= words[np.minimum(place, last)] * factor
        slot >>= _SLOT_SHIFT
        guess = self._guesses[slot]
        texts = self._text_array[guess].tolist()
        right = np.fromiter(map(block.startswith, texts, begin.tolist()), dtype=bool, count=len(texts))
        for row in np.flatnonzero(~right).tolist():
            guess[row] = number = self[block[int(begin[row]) : int(end[row])]]
            self._guesses[slot[row]] = number
        return guess

    def distances(self, literal: bytes) -> Any:
        """Return by number how far off a literal stood last time, to be read and written."""
        known = self._distances.get(literal)
        if known is None or len(known) < len(self.role):
            grown = _numpy.zeros(len(self.role) + 1024, dtype="i8")
            if known is not None:
                grown[: len(known)] = known
            known = self._distances[literal] = grown
        return known

    def tables(self) -> tuple[Any, Any, Any]:
        """Return role, name and lane by number, as arrays."""
        if self._arrays is None or len(self._arrays[0]) != len(self.role):
            self._arrays = tuple(_numpy.array(table, dtype="i4") for table in (self.role, self.name, self.lane))
        return self._arrays

    def __missing__(self, head: bytes) -> int:
        match = _HEAD.fullmatch(head)
        if match is None:
            if head.startswith(b'    "ph": "X"'):
                raise Unfamiliar
            return 0
        category = (match["cat"] or b"").decode("utf-8", "replace")
        name, valid = name_text(match["name"])
        role = role_of(match["ph"].decode("latin-1"), category, name)
        # Heads that never come again (a name of its own for every event) are not kept.
        remembered = len(self) < _MOST_HEADS
        number = len(self.role)
        if role in self.columns.roles:
            self.role.append(role)
            self.name.append(self.columns.name_id(category, name))
            self.lane.append(self.columns.lane_id(lane_text(match["pid"]), lane_text(match["tid"])))
            if not valid:
                self.flawed.add(number)
        elif match["ph"] == b"X" and remembered:
            for table in (self.role, self.name, self.lane):
                table.append(0)
        else:
            return 0
        if remembered:
            self[head] = number
        self._texts.append(head + TIME if remembered else self._texts[0])
        return number

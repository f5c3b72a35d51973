"""One trace file, read once from front to back: columns, metadata, and everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.trace import scan
from opsctl.trace.categories import Categories, default_categories
from opsctl.trace.decode import Decoder
from opsctl.trace.event_prefixes import Unfamiliar
from opsctl.trace.events import Columns, Role
from opsctl.trace.inflate import Source
from opsctl.trace.metadata import Metadata, read_metadata
from opsctl.trace.names import is_front_end, rank_in_name
from opsctl.trace.repairs import repair

EVENTS_BEGIN = re.compile(rb'"traceEvents"\s*:\s*\[')
_NO_DEVICE = re.compile(rb'"deviceProperties"\s*:\s*\[\s*\]')
_LONGEST_HEAD = 64 << 20
_LONGEST_EVENT = 64 << 20
_LONGEST_TAIL = 16 << 20
_SEAMS, _LONGEST_SEAMS = 64, 1 << 20
_HOST_ROLES = frozenset({Role.ANNOTATION, Role.OPERATION})
_DEVICE_ROLES = frozenset({Role.DEVICE, Role.LAUNCH, Role.ANNOTATION})


@dataclass
class TraceFile:
    """What one file holds. ``problems`` are for a person; ``whole`` is true where nothing of it was cut or broken."""

    path: Path
    columns: Columns
    metadata: Metadata
    whole: bool
    problems: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)
    """What was wrong and could be put right with certainty, for a person."""
    file_bytes: int = 0
    text_bytes: int = 0
    layout: str = ""
    """``kineto`` where the fast reader took it, else ``any``."""

    @property
    def front_end(self) -> bool:
        """Whether the file is of a server's front end, which is no rank."""
        return is_front_end(self.path.name)

    @property
    def rank(self) -> int | None:
        """Return the rank that the file tells, or else its name."""
        return self.metadata.rank if self.metadata.rank is not None else rank_in_name(self.path.name)

    @property
    def on_device(self) -> bool:
        """Whether the file holds work of a GPU."""
        return len(self.columns.device) > 0


class _Reader:
    """Feeds blocks of text to a scanner, or to the decoder, whatever the file is."""

    def __init__(self, columns: Columns, categories: Categories) -> None:
        self.columns = columns
        self.head = b""
        self.pending = b""
        self.seams: list[bytes] = []
        self.tail: list[bytes] = []
        self.begun = False
        self.bare_array = False
        self.layout = ""
        self.decoder = Decoder(columns, categories.is_collective)
        self.scanner = scan.Scanner(columns, categories.is_collective) if scan.available() else None

    def feed(self, block: bytes) -> None:
        """Take the next block of text."""
        if not self.begun:
            block = self._begin(block)
            if not self.begun:
                return
        if self.decoder.ended:
            if sum(map(len, self.tail)) < _LONGEST_TAIL:
                self.tail.append(block)
        elif self.scanner is not None and self.layout == "kineto":
            self._scan(block)
        else:
            text = self.pending + block
            self.pending = self.decoder.decode(text)
            self._limit()

    def finish(self) -> bytes:
        """Take what is left; return the text of an event that is cut short."""
        if self.scanner is not None:
            self._take_seams()
            self.scanner.flush()
        return self.decoder.finish(self.pending) if self.begun else b""

    def _begin(self, block: bytes) -> bytes:
        self.head += block
        match = EVENTS_BEGIN.search(self.head)
        if match:
            rest, self.head = self.head[match.end() :], self.head[: match.start()]
        elif self.head.lstrip()[:1] == b"[":
            rest, self.head, self.bare_array = self.head.lstrip()[1:], b"", True
        else:
            if len(self.head) > _LONGEST_HEAD:
                self.head = self.head[:_LONGEST_HEAD]
            return b""
        self.begun = True
        if _NO_DEVICE.search(self.head):
            self.columns.roles |= _HOST_ROLES
        self.layout = "kineto" if scan.is_kineto_layout(rest) else "any"
        if self.layout == "kineto":
            rest = rest[rest.index(b"  {") :]
        return rest

    def _scan(self, block: bytes) -> None:
        """Hand the scanner all events that are whole.

        Those that lie across the seam of two blocks wait to be scanned together: a block is never copied.
        """
        cut = block.rfind(scan.BOUNDARY, 0, -scan.MARGIN)
        if cut < 0:
            # The gap may lie across the seam, too.
            block, self.pending = self.pending + block, b""
            cut = block.rfind(scan.BOUNDARY, 0, -scan.MARGIN)
            if cut < 0:
                self.pending = block
                self._limit()
                return
        begin, end = 0, cut + _TO_NEXT_EVENT
        if self.pending:
            begin = block.find(scan.BOUNDARY) + _TO_NEXT_EVENT
            self.seams.append(self.pending + block[:begin])
        self.pending = block[end:]
        if begin < end:
            self._take(block, begin, end)
        if len(self.seams) >= _SEAMS or sum(map(len, self.seams)) >= _LONGEST_SEAMS:
            self._take_seams()

    def _take_seams(self) -> None:
        text, self.seams = b"".join(self.seams), []
        if text:
            self._take(text + b" " * scan.MARGIN, 0, len(text))

    def _take(self, block: bytes, begin: int, end: int) -> None:
        """Hand the scanner events; hand what it does not know to the decoder."""
        scanner = self.scanner
        assert scanner is not None  # noqa: S101 (for mypy: feed() saw to it)
        try:
            scanner.scan(block, begin, end)
        except Unfamiliar:
            scanner.flush()
            self.decoder.whole(block[begin:end])
            if self.decoder.ended:
                self.tail.append(self.pending)
                self.pending = b""

    def _limit(self) -> None:
        """Give up on an event that is longer than any real one, so that memory stays bounded."""
        if len(self.pending) > _LONGEST_EVENT:
            self.pending = self.pending[-4096:]
            self.columns.unreadable += 1


_TO_NEXT_EVENT = len(b"\n  },\n")


def read_file(path: Path, categories: Categories | None = None) -> TraceFile:
    """Read a trace file, whole or broken. Raises OSError where it cannot be opened.

    Of a file with device work, that work, its launches and the host's annotations are kept; of one without
    (a CPU-only server, a profiler that saw no kernels) the operators of the host.
    """
    table = categories or default_categories()
    file = _read(path, Columns(roles=_DEVICE_ROLES), table)
    if not file.on_device and file.columns.events and not file.columns.roles >= _HOST_ROLES:
        file = _read(path, Columns(roles=_HOST_ROLES), table)
    file.repairs += [*repair(file.columns), *_respelled(file)]
    return file


def _respelled(file: TraceFile) -> Iterator[str]:
    """Yield what is wrong with the spelling of a file and cost nothing."""
    columns = file.columns
    if columns.quoted_times:
        yield f"{columns.quoted_times} events have times that are strings: read as numbers"
    if columns.picked:
        yield f"{columns.picked} events are not valid JSON (inf, a control byte): the fields needed were read by name"
    if not file.metadata.sound:
        yield "the text after the events is not valid JSON (unescaped quotes): it was read field by field"


def _read(path: Path, columns: Columns, categories: Categories) -> TraceFile:
    source, reader = Source(path), _Reader(columns, categories)
    for block in source.blocks():
        reader.feed(block)
    left = reader.finish()
    metadata = read_metadata(
        reader.head,
        reader.decoder.tail + b"".join(reader.tail),
        closed_array=reader.decoder.ended,
        bare_array=reader.bare_array,
    )
    problems = list(_problems(source, reader, metadata, left))
    return TraceFile(
        path=path,
        columns=columns,
        metadata=metadata,
        whole=not problems,
        problems=problems,
        file_bytes=source.file_bytes,
        text_bytes=source.text_bytes,
        layout=reader.layout,
    )


def _problems(source: Source, reader: _Reader, metadata: Metadata, left: bytes) -> Iterator[str]:
    columns = reader.columns
    salvaged = f"{columns.events} whole events were salvaged"
    if source.file_bytes == 0:
        yield "the file is empty (0 bytes): the profiler has not written it, or could not"
        return
    if source.grew:
        yield "the file changed while it was read: it is still being written; read it again when its size is stable"
    if source.cut:
        yield f"{source.cut} after {source.text_bytes} bytes of text: {salvaged}"
    if not reader.begun:
        yield 'this is no Kineto trace: wanted JSON with "traceEvents", found ' + repr(reader.head[:40])
        return
    if not metadata.closed and not source.cut:
        after = f" in the middle of an event ({left[:60]!r})" if left else ""
        yield f"the JSON does not close: the file is cut short{after}; {salvaged}"
    if columns.unreadable:
        yield f"{columns.unreadable} of {columns.events} events could not be read and are left out"
    if columns.bad_names:
        yield f"{columns.bad_names} events have names that are not valid JSON text: they are shown as they are written"
    if not columns.window_end and metadata.closed and not reader.bare_array:
        yield "there is no 'Record Window End': the profiler did not finish, or another program rewrote the file"
    if columns.events == 0 and metadata.closed:
        yield "the file holds no events"

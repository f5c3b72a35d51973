"""From a file to blocks of text: gzip or plain, whole or cut short, in bounded memory."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opsctl.trace.speedups import optional

BLOCK = 1 << 22
"""Bytes of text a block: it stays in the processor's cache between inflating and scanning (4x on one core)."""
_INPUT = 1 << 17
_BITE_OF_BROKEN_FILES = 64
"""An error loses what its own call had inflated, so a broken file is fed in small bites."""
_GZIP = b"\x1f\x8b"
_ANY_GZIP = 31


class Source:
    """A trace file read once, front to back.

    After :meth:`blocks` is exhausted, ``cut`` says why the text ends early (None: it does not), and
    ``text_bytes`` how much there was. ``grew`` is true where the file changed while it was read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file_bytes = 0
        self.text_bytes = 0
        self.cut: str | None = None
        self.grew = False
        self.gzipped = False

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks of about BLOCK bytes. Raises OSError where the file cannot be read."""
        with self.path.open("rb") as file:
            before = os.fstat(file.fileno())
            self.file_bytes = before.st_size
            self.gzipped = file.read(2) == _GZIP
            file.seek(0)
            for block in self._inflated(file) if self.gzipped else iter(lambda: file.read(BLOCK), b""):
                self.text_bytes += len(block)
                yield block
            after = os.fstat(file.fileno())
        self.grew = (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns)

    def _inflated(self, file: Any) -> Iterator[bytes]:
        library = optional("isal.isal_zlib", "isal") or zlib
        try:
            yield from self._members(file, library, bite=_INPUT)
        except library.error:
            self.cut = "damaged"
        if self.cut is not None:
            # Broken files are read again by zlib: how much two libraries salvage before a break may differ,
            # and what is salvaged must not depend on what is installed.
            self.cut = None
            file.seek(0)
            yield from self._salvaged(file, skip=self.text_bytes)

    def _salvaged(self, file: Any, skip: int) -> Iterator[bytes]:
        """Yield what zlib can still inflate of a broken file, after the first ``skip`` bytes of text."""
        pieces: list[bytes] = []
        gathered = 0
        try:
            for piece in self._members(file, zlib, bite=_BITE_OF_BROKEN_FILES, skip=skip):
                pieces.append(piece)
                gathered += len(piece)
                if gathered >= BLOCK:
                    yield b"".join(pieces)
                    pieces, gathered = [], 0
        except zlib.error as error:
            self.cut = f"the gzip data is damaged ({error})"
        if pieces:
            yield b"".join(pieces)

    def _members(self, file: Any, library: Any, *, bite: int, skip: int = 0) -> Iterator[bytes]:
        """Yield inflated text, after the first ``skip`` bytes of it; note a missing end in ``cut``."""
        pending, first = file.read(bite), True
        while pending and (first or pending[:2] == _GZIP):
            stream, first = library.decompressobj(_ANY_GZIP), False
            while not stream.eof:
                block = stream.decompress(pending, BLOCK)
                pending = stream.unconsumed_tail or (b"" if stream.eof else file.read(bite))
                if not pending and not block and not stream.eof:
                    self.cut = "the gzip data ends without its trailer"
                    return
                if skip:
                    block, skip = block[skip:], max(0, skip - len(block))
                if block:
                    yield block
            pending = stream.unused_data or file.read(bite)
            if len(pending) == 1:
                pending += file.read(1)

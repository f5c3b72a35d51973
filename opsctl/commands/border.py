"""The border between this program and its readers: all that is printed has its secrets blanked and obeys no log.

Rich writes its own colours, so its consoles (``terminal.py``) clean what they are given and write past this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from opsctl.redaction import printable, redact


class CleanStream:
    """A text stream that cleans what is written to it; anything else is the stream's own."""

    def __init__(self, stream: IO[str]) -> None:
        self.behind = stream

    def write(self, text: str) -> int:
        """Write the text, cleaned."""
        self.behind.write(clean(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def clean(text: str) -> str:
    """Return the text as it may leave the program."""
    return printable(redact(text))


def behind(stream: IO[str]) -> IO[str]:
    """Return the stream that lies behind the border."""
    return stream.behind if isinstance(stream, CleanStream) else stream


@contextmanager
def clean_output() -> Iterator[None]:
    """Put the border around standard output and standard error."""
    _fill_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = CleanStream(sys.stdout), CleanStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _fill_closed() -> None:
    """Put /dev/null where a standard stream was closed (``>&-``): else the journal is opened under its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    # Python has no object for a stream that was closed when it began.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)

"""Output: lines for a person on standard error, documents for a program on standard output, secrets blanked in both.

Rich writes its own colours, so its consoles (``terminal.py``) clean what they are given and write past this.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from opsctl.errors import OpsctlError
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
    """Return the stream that a clean stream writes to."""
    return stream.behind if isinstance(stream, CleanStream) else stream


@contextmanager
def clean_output() -> Iterator[None]:
    """Clean all that is written to standard output and standard error."""
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


def tell(line: str, out: IO[str] | None = None) -> None:
    """Print a line, on standard error by default. A reader that has gone is no reason to stop what is at work."""
    stream = out or sys.stderr
    try:
        print(line, file=stream, flush=True)
    except OSError:
        forget_reader(stream)


def forget_reader(stream: IO[str]) -> None:
    """Send what is still printed nowhere: the interpreter would end with a status of its own over it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def flush_all() -> None:
    """Flush what was printed, whoever still reads it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            forget_reader(stream)


def say_error(error: OpsctlError, *, as_json: bool) -> None:
    """Print an error for the person, and as one JSON document where a program reads."""
    for line in error.lines():
        tell(redact(line))
    if as_json:
        document = {
            "error": type(error).__name__,
            "message": redact(error.message),
            "exit_code": int(error.exit_code),
            "details": [redact(line) for line in error.lines()],
        }
        tell(json.dumps(document), sys.stdout)

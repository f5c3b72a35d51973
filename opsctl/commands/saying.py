"""Lines for a person on standard error, documents for a program on standard output; either reader may have gone."""

from __future__ import annotations

import json
import os
import sys
from typing import IO

from opsctl.errors import OpsctlError


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
    from opsctl.redaction import redact

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

"""Errors, as a person reads them on standard error and a program on standard output."""

from __future__ import annotations

import json
import sys

from opsctl.errors import OpsctlError


def say_error(error: OpsctlError, *, as_json: bool) -> None:
    """Print an error for the person, and as one JSON document where a program reads."""
    from opsctl.redaction import redact

    for line in error.lines():
        print(redact(line), file=sys.stderr)
    if as_json:
        document = {
            "error": type(error).__name__,
            "message": redact(error.message),
            "exit_code": int(error.exit_code),
            "details": [redact(line) for line in error.lines()],
        }
        print(json.dumps(document), flush=True)

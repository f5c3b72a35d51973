"""The optional packages that make reading faster, and never different.

Core modules run on the standard library alone, in whatever Python serves the model (3.10 or later).
numpy (which torch brings) lets files in Kineto's own layout be scanned, msgspec decodes any other spelling,
isal inflates. orjson is not used: it turns times into float64, which cannot hold an epoch time in
nanoseconds. ``OPSCTL_TRACE_WITHOUT`` (names, comma separated) leaves some out; the tests use it to prove
that the answers stay the same.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def optional(name: str, package: str | None = None) -> Any:
    """Return the module ``name``, or None where it is missing, broken or left out by the environment."""
    left_out = os.environ.get("OPSCTL_TRACE_WITHOUT", "").split(",")
    if (package or name) in left_out:
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):
        return None

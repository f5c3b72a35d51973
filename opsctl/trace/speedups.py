"""The optional packages that make reading faster, and never different.

Core modules run on the standard library alone, in whatever Python serves the model (3.9 or later).
numpy (which torch brings) lets files in Kineto's own layout be scanned, msgspec decodes any other spelling,
isal inflates. orjson is not used: it turns times into float64, which cannot hold an epoch time in
nanoseconds. ``OPSCTL_TRACE_WITHOUT`` (names, comma separated) leaves some out; the tests use it to prove
that the answers stay the same.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from functools import lru_cache
from typing import Any

# mallopt(3), of glibc: from which size on memory comes from mmap, and how much freed memory is kept.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_KEPT = 64 << 20


def optional(name: str, package: str | None = None) -> Any:
    """Return the module ``name``, or None where it is missing, broken or left out by the environment."""
    left_out = os.environ.get("OPSCTL_TRACE_WITHOUT", "").split(",")
    if (package or name) in left_out:
        return None
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):
        return None


@lru_cache(maxsize=1)
def keep_freed_memory() -> bool:
    """Have this process use its freed memory again, where the C library can: a fifth of a reader's time is page faults.

    Blocks of text come and go by the thousand; glibc would give each back to the kernel. Returns whether it does so.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEPT)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT))

"""Edges: the instants just before and just after each commit and each mutation, where chaos tests strike.

``OPSCTL_EDGE=N:kill`` ends this process with SIGKILL at the N-th edge; ``N:pause`` stops it with SIGSTOP. In place of
N stands also ``NAME#K``: the K-th edge of that name. ``OPSCTL_EDGE_LOG=FILE`` writes every edge's name, a line each.
Unset, an edge is one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

_ORDER = os.environ.get("OPSCTL_EDGE")
_LOG = os.environ.get("OPSCTL_EDGE_LOG")
_lock = threading.Lock()
_seen: Counter[str] = Counter()


def edge(name: str) -> None:
    """Mark an instant at which the controller may die."""
    if _ORDER is None and _LOG is None:
        return
    with _lock:
        _seen[name] += 1
        _seen[""] += 1
        number = _seen[""]
        names = {str(number), f"{name}#{_seen[name]}"}
        if _LOG:
            with Path(_LOG).open("a") as log:
                log.write(f"{number} {name}\n")
                log.flush()
                os.fsync(log.fileno())
        at, _, how = (_ORDER or "").rpartition(":")
        if at in names:
            os.kill(os.getpid(), signal.SIGSTOP if how == "pause" else signal.SIGKILL)

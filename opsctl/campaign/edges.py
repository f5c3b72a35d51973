"""Edges: the instants just before and just after each commit and each mutation, where chaos tests strike.

``OPSCTL_EDGE=N:kill`` ends this process with SIGKILL at the N-th edge; ``N:pause`` stops it with SIGSTOP;
``OPSCTL_EDGE_LOG=FILE`` writes every edge's name, a line each. Unset, an edge is one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

_ORDER = os.environ.get("OPSCTL_EDGE")
_LOG = os.environ.get("OPSCTL_EDGE_LOG")
_count = itertools.count(1)


def edge(name: str) -> None:
    """Mark an instant at which the controller may die."""
    if _ORDER is None and _LOG is None:
        return
    number = next(_count)
    if _LOG:
        with Path(_LOG).open("a") as log:
            log.write(f"{number} {name}\n")
            log.flush()
            os.fsync(log.fileno())
    if _ORDER:
        at, _, how = _ORDER.partition(":")
        if number == int(at):
            os.kill(os.getpid(), signal.SIGSTOP if how == "pause" else signal.SIGKILL)

"""Strike points, where chaos tests strike: around each commit and mutation, and before each call that moves a unit.

``OPSCTL_STRIKE=N:kill`` ends this process with SIGKILL at the N-th strike point, ``N:pause`` stops it with SIGSTOP.
``NAME#K`` in place of N means the K-th strike point of that name. ``OPSCTL_STRIKE_LOG=FILE`` writes the name of every
strike point, one per line. When unset, a strike point costs one comparison.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

_ORDER = os.environ.get("OPSCTL_STRIKE")
_LOG = os.environ.get("OPSCTL_STRIKE_LOG")
_lock = threading.Lock()
_seen: Counter[str] = Counter()


def strike_point(name: str) -> None:
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

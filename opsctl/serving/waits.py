"""Small things that every wait in this room shares: evidence with its time, cancelling."""

from __future__ import annotations

import time
from collections.abc import Callable

from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import Interrupted
from opsctl.results import Evidence

CALL_LIMIT = 20.0
"""Seconds for one reading of a host."""
TICK = 0.05
"""Longest sleep of a loop that watches for a cancel."""


def evidence(asked: str, observed: str) -> Evidence:
    """Return an observation with the time of now."""
    return Evidence(asked=asked, observed=observed, time=now())


def never() -> bool:
    """Return False: the wait cannot be cancelled."""
    return False


def check_cancelled(cancelled: Callable[[], bool], what: str) -> None:
    """Raise Interrupted once somebody asked for the end."""
    if cancelled():
        raise Interrupted(f"{what} was interrupted")


def pause(seconds: float, *, deadline: Deadline, cancelled: Callable[[], bool], what: str) -> None:
    """Sleep, in slices, never past the deadline. Raises Interrupted."""
    until = time.monotonic() + min(seconds, deadline.remaining())
    while (left := until - time.monotonic()) > 0:
        check_cancelled(cancelled, what)
        time.sleep(min(TICK, left))

"""The clock of one process: a step of the machine's wall clock changes no duration in the record.

The time of day is read once, when the process starts; from then on it is that reading plus the time that passed,
suspended time included. A laptop whose clock is set right in the middle of a campaign writes no step of a day.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def boot_clock() -> float:
    """Return seconds on a clock that counts suspended time (on macOS the monotonic clock does)."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_STARTED = time.time() - boot_clock()


def instant() -> datetime:
    """Return the time of day by this process's clock, in UTC."""
    return datetime.fromtimestamp(_STARTED + boot_clock(), UTC)


def now() -> str:
    """Return the time as every record holds it: UTC, ISO 8601, milliseconds."""
    return instant().isoformat(timespec="milliseconds")

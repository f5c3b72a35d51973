"""Deadlines: one object that is passed down, instead of numbers that each callee starts anew."""

from __future__ import annotations

import time
from collections.abc import Callable

from opsctl.errors import DeadlineExceeded


class Deadline:
    """A point in time on the monotonic clock, and what it is the limit of.

    >>> deadline = Deadline(45 * 60, "load of vllm-kimi-k25-int4")
    >>> deadline.within(5, "one probe").remaining() <= 5
    True
    """

    def __init__(self, seconds: float, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.what = what
        self._clock = clock
        self._end = clock() + seconds

    def remaining(self) -> float:
        """Return the seconds left, never below 0."""
        return max(0.0, self._end - self._clock())

    @property
    def expired(self) -> bool:
        """Whether the limit is reached."""
        return self._clock() >= self._end

    def within(self, seconds: float, what: str) -> Deadline:
        """Return a deadline at most ``seconds`` from now that never outlasts this one."""
        return Deadline(min(seconds, self.remaining()), what, clock=self._clock)

    def check(self, *, seen: str | None = None, where: str | None = None, hint: str | None = None) -> None:
        """Raise DeadlineExceeded once the limit is reached, with what was last seen."""
        if self.expired:
            raise DeadlineExceeded(
                f"{self.what} did not end within {self.seconds:g} s",
                seen=seen,
                where=where,
                hint=hint,
            )

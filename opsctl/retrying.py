"""The one way in which anything is tried again (tenacity's own defaults retry without limit or pause)."""

from __future__ import annotations

import tenacity

from opsctl.deadline import Deadline


def retrying(
    *errors: type[Exception],
    deadline: Deadline,
    first: float = 0.2,
    longest: float = 5.0,
) -> tenacity.Retrying:
    """Return a retrier: only the listed errors, exponential waits with jitter, never past the deadline.

    The last error is raised as it is. A Ctrl-C is not an Exception and is never retried. ``first`` and
    ``longest`` are seconds.

    >>> for attempt in retrying(TransportLost, deadline=deadline):
    ...     with attempt:
    ...         host.boot_id()
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(errors),
        wait=tenacity.wait_exponential_jitter(multiplier=first, max=longest, jitter=first),
        stop=tenacity.stop_before_delay(deadline.remaining()),
        reraise=True,
    )

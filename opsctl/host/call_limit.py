"""Ending a library's call that has no limit of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opsctl.deadline import Deadline


@contextmanager
def cut_at(deadline: Deadline, cut: Callable[[], object], *, where: str | None = None) -> Iterator[None]:
    """Call ``cut`` when the deadline passes while the block runs, and raise DeadlineExceeded then.

    ``cut`` must make the blocked call fail: close its channel, socket or transport. It runs in a thread
    of its own, since the one that waits is the one that hangs.
    """
    deadline.check(where=where)
    fired = threading.Event()

    def fire() -> None:
        fired.set()
        cut()

    timer = threading.Timer(deadline.remaining(), fire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if fired.is_set():
            deadline.check(where=where)
        raise
    finally:
        timer.cancel()
        timer.join()
    if fired.is_set():
        deadline.check(where=where)

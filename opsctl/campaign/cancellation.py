"""Cancellation: a state of the run, checked before each step and in each wait."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

from opsctl.errors import ExitCode, Interrupted

Result = TypeVar("Result")

_LOOK_EVERY = 0.1
_WORDS = 1.0
"""Seconds that a terminal has to take what a signal's handler says."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Cancellation:
    """Whether, and why, a run should stop. Once asked for it stays so."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self.reason = ""
        self.by_signal = False

    def request(self, reason: str, *, by_signal: bool = False) -> None:
        """Ask the run to stop; the first reason is kept, a person's word is remembered."""
        with self._lock:
            self.by_signal = self.by_signal or by_signal
            if not self._event.is_set():
                self.reason = reason
            self._event.set()

    @property
    def requested(self) -> bool:
        """Whether the run should stop."""
        return self._event.is_set()

    def __call__(self) -> bool:
        """Return whether the run should stop: what waits in other rooms ask."""
        return self.requested

    def check(self) -> None:
        """Raise Interrupted once the run should stop."""
        if self.requested:
            raise Interrupted(self.reason)

    def wait(self, seconds: float) -> bool:
        """Wait, at most so long; return whether the run should stop."""
        return self._event.wait(seconds)

    def during(self, work: Callable[[], Result]) -> Result:
        """Return what ``work`` gives; raise Interrupted as soon as the run should stop.

        ``work`` runs in a thread of its own and is then left behind: it may only read, such as a connection that is
        being made.
        """
        done: Future[Result] = Future()

        def carry_out() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                done.set_exception(error)

        threading.Thread(target=carry_out, name="read only", daemon=True).start()
        while not wait([done], _LOOK_EVERY).done:
            self.check()
        return done.result()


@contextmanager
def listening_for_signals(
    cancellation: Cancellation, leaving_notice: Callable[[], str], leaving: Callable[[str], object]
) -> Iterator[None]:
    """Map INT, TERM and HUP: the first asks the run to stop and restore, the second leaves at once with exit 3.

    ``leaving_notice`` says when the guard acts, ``leaving`` is told the signal by which the run is left; neither may
    block. Only the main thread may call this.
    """
    seen = 0

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen == 1:
            cancellation.request(f"{name} received", by_signal=True)
            _write(f"\n{name}: stopping; production is restored and verified first (again: leave at once)\n")
            return
        leaving(name)
        _write(f"\n{name} again: leaving now. {leaving_notice()}\n")
        os._exit(int(ExitCode.PRODUCTION_NOT_VERIFIED))

    # A signal that was ignored when we were started (nohup) stays ignored.
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(text: str) -> None:
    """Write to standard error from a signal handler; a terminal that is gone or stopped must not end a restore."""

    def write() -> None:
        with suppress(OSError, ValueError):
            os.write(sys.stderr.fileno(), text.encode())

    writer = threading.Thread(target=write, name="words of a signal", daemon=True)
    writer.start()
    writer.join(_WORDS)

"""A run as it goes: a view that is drawn anew on a terminal, plain lines in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live

from opsctl.record import RunRecord
from opsctl.runs.events import Event
from opsctl.runs.live_file import Ephemeral
from opsctl.terminal.run_view import draw

_REFRESH = 0.5
_PASSING_EVERY = 10.0
_LOUD = {"production.down", "production.appeared", "host.lost", "lease.lost", "service.failed", "restore.attempt"}


class PlainLines:
    """A line an event; ephemeral progress at most every ten seconds a host."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[tuple[str, str], float] = {}

    def show(self, event: Event) -> None:
        """Print the event, unless it is progress that came too soon after the last."""
        if event.ephemeral:
            key = (event.host, event.event)
            if (
                event.event == "lease.renewed"
                or time.monotonic() - self._last.get(key, -_PASSING_EVERY) < _PASSING_EVERY
            ):
                return
            self._last[key] = time.monotonic()
        clock = event.time[11:19]
        style = "red" if event.event in _LOUD else None
        self._console.print(
            f"{clock} {event.host or '-':<10} {event.message}",
            style=style,
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def close(self) -> None:
        """Nothing to end."""


class LiveView:
    """A view that is drawn anew twice a second from the journal, with ephemeral progress over it.

    Drawing happens in a thread of its own: a slow terminal (SSH) must not slow the campaign down.
    """

    def __init__(self, console: Console, read: Callable[[], RunRecord]) -> None:
        self._read = read
        self._passing = Ephemeral()
        self._stop = threading.Event()
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="ellipsis")
        self._thread = threading.Thread(target=self._draw_until_stopped, name="live view", daemon=True)
        self._started = False

    def show(self, event: Event) -> None:
        """Take an event; what passes stands under its host until something else does."""
        if not self._started:
            self._started = True
            self._live.start()
            self._thread.start()
        self._passing.take(event)
        if event.event in _LOUD and not event.ephemeral:
            self._live.console.print(
                f"{event.time[11:19]} {event.host} {event.message}", style="red", markup=False, highlight=False
            )

    def close(self) -> None:
        """Draw the last state and leave it on the screen."""
        if not self._started:
            return
        self._stop.set()
        self._thread.join(timeout=5)
        self._draw()
        self._live.stop()

    def _draw_until_stopped(self) -> None:
        while not self._stop.wait(_REFRESH):
            self._draw()

    def _draw(self) -> None:
        self._live.update(draw(self._read(), dict(self._passing.progress), dict(self._passing.leases)), refresh=True)

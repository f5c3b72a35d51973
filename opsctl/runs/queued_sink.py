"""Events passed on in a thread of their own, so that a terminal that takes nothing holds up no campaign.

A terminal stops taking output by Ctrl-S, a pipe when its reader is stopped. Whoever writes then waits, and a campaign
that waits renews no lease.
"""

from __future__ import annotations

import queue
import threading
import time

from opsctl.runs.events import Event, Sink

_PATIENCE = 60.0
"""Seconds without one event passed on, after which the end of the run waits no longer for the reader."""
_BACKLOG = 1000
"""Events that wait before progress, which later progress replaces anyway, is left out."""


class QueuedSink:
    """A sink whose ``show`` never waits. Nothing but progress is left out, however long the reader takes."""

    def __init__(self, sink: Sink, patience: float = _PATIENCE) -> None:
        self._sink = sink
        self._patience = patience
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pass_on, name="events", daemon=True)
        self._started = False
        self._passed_at = time.monotonic()
        self._gone: OSError | None = None
        self._defect: Exception | None = None
        self._abandoned = False

    def show(self, event: Event) -> None:
        """Take one event. Raises OSError once the reader is known to have gone."""
        if self._gone is not None:
            raise self._gone
        if self._defect is not None:
            return
        if event.ephemeral and self._events.qsize() >= _BACKLOG:
            return
        if not self._started:
            self._started = True
            self._thread.start()
        self._events.put(event)

    def close(self) -> None:
        """Wait until all is passed on and the sink is closed, or until the reader takes nothing for too long.

        Raises what the sink raised, other than OSError.
        """
        if self._started:
            self._events.put(None)
            self._passed_at = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - self._passed_at < self._patience:
                self._thread.join(0.1)
            self._abandoned = True
        if self._defect is not None:
            raise self._defect

    def _pass_on(self) -> None:
        try:
            while (event := self._events.get()) is not None and not self._abandoned:
                if self._defect is None:
                    self._show(event)
                self._passed_at = time.monotonic()
            if not self._abandoned:
                self._sink.close()
        except OSError as error:
            self._gone = error
        except Exception as error:  # noqa: BLE001 - raised when the sink is closed: no view ends a campaign
            self._defect = self._defect or error

    def _show(self, event: Event) -> None:
        try:
            self._sink.show(event)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self._defect = error

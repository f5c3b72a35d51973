"""Events of a run: what the terminal, ``--json`` and the journal are told, in one shape.

The names are a promise (tests pin them)::

    run.begun run.resolved run.failing run.ended
    host.connected host.lost host.back
    preflight.check preflight.passed
    production.found production.down production.appeared production.verified
    lease.armed lease.renewed lease.lost lease.released
    variant.installed variant.removed
    service.stopping service.stopped service.starting service.loading service.ready service.failed
    gpus.free
    phase.begun phase.ended
    step.begun step.progress step.cell step.ended
    restore.begun restore.attempt restore.ended
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Protocol

from opsctl.clock import now
from opsctl.redaction import printable, redact, redact_value
from opsctl.runs.journal import Journal


@dataclass(frozen=True)
class Event:
    """One thing that happened. ``ephemeral`` events (progress) are shown but not kept."""

    time: str
    run: str
    event: str
    host: str = ""
    phase: str = ""
    step: str = ""
    message: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    ephemeral: bool = False

    def document(self) -> dict[str, Any]:
        """Return the event as ``--json`` prints it."""
        return {
            "time": self.time,
            "run": self.run,
            "host": self.host,
            "phase": self.phase,
            "step": self.step,
            "event": self.event,
            "message": self.message,
            **({"data": self.data} if self.data else {}),
        }


class Sink(Protocol):
    """Where events go."""

    def show(self, event: Event) -> None:
        """Take one event. Raises OSError when its reader has gone: it is not told of more."""
        ...

    def close(self) -> None:
        """End the showing."""
        ...


class JsonLines:
    """``--json``: one event a line on standard output."""

    def __init__(self, out: IO[str] | None = None) -> None:
        self._out = out or sys.stdout

    def show(self, event: Event) -> None:
        """Print the event."""
        self._out.write(json.dumps(event.document()) + "\n")
        self._out.flush()

    def close(self) -> None:
        """Nothing to end."""


class Recorder:
    """Tells the journal and every sink of what happens in one run, secrets blanked."""

    def __init__(self, run: str, journal: Journal, sinks: Sequence[Sink]) -> None:
        self.run = run
        self.journal = journal
        self._sinks = list(sinks)
        self._lock = threading.Lock()

    def say(self, event: str, message: str, *, host: str = "", phase: str = "", step: str = "", **data: Any) -> None:
        """Record and show an event."""
        made = self._make(event, message, (host, phase, step), data, ephemeral=False)
        self.journal.event(
            self.run,
            made.time,
            event,
            host=host,
            phase=phase,
            step=step,
            message=made.message,
            data=made.data,
        )
        self._show(made)

    def progress(
        self, event: str, message: str, *, host: str = "", phase: str = "", step: str = "", **data: Any
    ) -> None:
        """Show an ephemeral event without keeping it."""
        self._show(self._make(event, message, (host, phase, step), data, ephemeral=True))

    def _make(
        self,
        event: str,
        message: str,
        where: tuple[str, str, str],
        data: dict[str, Any],
        *,
        ephemeral: bool,
    ) -> Event:
        return Event(now(), self.run, event, *where, printable(redact(message)), redact_value(data), ephemeral)

    def _show(self, event: Event) -> None:
        with self._lock:
            for sink in tuple(self._sinks):
                try:
                    sink.show(event)
                except OSError:
                    # The reader went away (opsctl run … | head). The run, and production with it, matters more.
                    self._sinks.remove(sink)

"""Ephemeral events of a run, kept beside its journal for another terminal: ``runs/<run>/live.json``.

Progress and lease renewals are worth no committed write, but ``opsctl status --watch`` should show what the run's
own terminal shows. So the newest words of each host are written to a small file, twice a second at most; a reader
takes them for true only while the controller lives.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.runs.events import Event

NAME = "live.json"
_EVERY = 0.5
_LEASE = {"lease.armed": "armed", "lease.renewed": "held", "lease.released": "released", "lease.lost": "LOST"}
_DONE = {"step.ended", "service.ready", "phase.ended", "production.verified", "gpus.free", "host.back", "run.ended"}


@dataclass
class Ephemeral:
    """The ephemeral words of a run by host: what is at work, and what is known of the lease."""

    progress: dict[str, str] = field(default_factory=dict)
    leases: dict[str, str] = field(default_factory=dict)

    def take(self, event: Event) -> bool:
        """Take an event in; return whether anything changed."""
        before = (self.progress.get(event.host), self.leases.get(event.host))
        if event.event in _LEASE:
            self.leases[event.host] = _LEASE[event.event]
        elif event.ephemeral or event.event == "host.lost":
            self.progress[event.host] = event.message
        elif event.event in _DONE:
            self.progress.pop(event.host, None)
        return before != (self.progress.get(event.host), self.leases.get(event.host))


class LiveFile:
    """A sink that writes what passes. Its errors are OSError: the recorder then tells it no more."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._passing = Ephemeral()
        self._written = -_EVERY

    def show(self, event: Event) -> None:
        """Take an event; write, unless only progress changed and the last write is fresh."""
        if not self._passing.take(event):
            return
        if event.ephemeral and time.monotonic() - self._written < _EVERY:
            return
        self._written = time.monotonic()
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"progress": self._passing.progress, "leases": self._passing.leases}))
        new.replace(self._path)

    def close(self) -> None:
        """Remove the file: the run sends no more events."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_live(folder: Path) -> Ephemeral:
    """Return what a run wrote last; nothing where it wrote nothing."""
    try:
        said = json.loads((folder / NAME).read_text())
        return Ephemeral(_words(said["progress"]), _words(said["leases"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Ephemeral()


def _words(said: Mapping[str, object]) -> dict[str, str]:
    return {str(host): str(words) for host, words in said.items()}

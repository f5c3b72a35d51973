"""Measuring production only while it serves no other requests: wait for quiet, and notice when it ends.

What the server itself counts decides: requests running and waiting between our rounds, more of them than ours
during a round, and more finished requests after a cell than we sent. A server without these counters counts as busy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opsctl.payload.errors import PayloadError
from opsctl.payload.output import Output
from opsctl.payload.server import Server
from opsctl.payload.serving_spec import Metrics, QuietSpec

_LOOK_EVERY = 1.0


class NeverQuiet(PayloadError):
    """The server did not get quiet within the wait that the playbook allows."""


class Disturbed(PayloadError):
    """Somebody else's requests came in the middle of a measurement."""


def _first(metrics: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((metrics[name] for name in names if name in metrics), None)


class QuietWatch:
    """Watches one server. Without a spec every method returns at once."""

    def __init__(self, spec: QuietSpec | None, names: Metrics, server: Server, output: Output) -> None:
        self.spec = spec
        self.names = names
        self.server = server
        self.output = output
        self.allowed = spec.running if spec else 0
        self._finished: float | None = None
        self._looked = 0.0

    def busy(self) -> float | None:
        """Return requests running and waiting; None where the server does not count them."""
        metrics = self.server.metrics()
        running = _first(metrics, self.names.running)
        return None if running is None else running + (_first(metrics, self.names.waiting) or 0.0)

    def await_quiet(self) -> None:
        """Return once the server was quiet for ``stable``. Raises NeverQuiet with what was seen."""
        if self.spec is None:
            return
        wait, stable = self.spec.wait, self.spec.stable
        began = time.monotonic()
        since: float | None = None
        while True:
            busy, now = self.busy(), time.monotonic()
            if busy is None:
                msg = f"it is not known whether {self.server.url} is quiet: /metrics does not count running requests"
                raise NeverQuiet(msg)
            since = (now if since is None else since) if busy <= self.allowed else None
            if since is not None and now - since >= stable:
                self.output.evidence(
                    "quiet server",
                    f"at most {self.allowed} requests in flight for {stable:g} s, after {now - began:.0f} s",
                )
                return
            if now - began >= wait:
                msg = (
                    f"the server was not quiet for {stable:g} s within {wait:g} s: {busy:g} requests in flight at last"
                )
                raise NeverQuiet(msg)
            self.output.progress(f"waiting for a quiet server: {busy:g} in flight", now - began, wait, every=10.0)
            time.sleep(min(_LOOK_EVERY, max(0.05, stable / 4)))

    def begin(self) -> None:
        """Take the counter of finished requests before a cell."""
        if self.spec is not None:
            self._finished = _first(self.server.metrics(), self.names.finished)

    def look(self, ours: int) -> None:
        """Look during a round with ``ours`` requests in flight, at most once a second. Raises Disturbed."""
        if self.spec is None or ours <= 0 or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        busy = self.busy()
        if busy is None or busy > ours + self.allowed:
            seen = "its counters went away" if busy is None else f"{busy:g} requests in flight, {ours} of them ours"
            msg = f"other traffic came: {seen}"
            raise Disturbed(msg)

    def end(self, sent: int) -> None:
        """Compare the counter after a cell in which we sent ``sent`` requests. Raises Disturbed."""
        if self.spec is None or self._finished is None:
            return
        finished = _first(self.server.metrics(), self.names.finished)
        others = (finished or 0.0) - self._finished - sent
        if finished is None or others > self.allowed:
            msg = f"other traffic came: {others:g} requests of others finished meanwhile"
            raise Disturbed(msg)

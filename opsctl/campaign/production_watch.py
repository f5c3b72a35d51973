"""Watching production while it is down: a timer, a socket or a person may start it in the middle of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from opsctl.campaign.cancellation import Cancellation
from opsctl.deadline import Deadline
from opsctl.errors import BusError, DeadlineExceeded, ProductionAppeared, TransportLost
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.unitstate import came_up, describe_unit, last_started

_LOOK_EVERY = 1.0


class Watched(Protocol):
    """What the watch asks of a borrowed host."""

    host: Host
    cancellation: Cancellation
    restoring: bool

    @property
    def name(self) -> str:
        """The host's name."""
        ...

    @property
    def production(self) -> ResolvedService:
        """The service that is watched."""
        ...

    @property
    def lease(self) -> Lease:
        """The lease. Raises LeaseLost."""
        ...

    def say(self, event: str, message: str, **data: Any) -> None:
        """Record an event."""
        ...

    def call(self, what: str) -> Deadline:
        """Return the deadline of one remote call."""
        ...

    def persist(self, what: str, action: Callable[[], None]) -> None:
        """Do something through losses of the link."""
        ...


class ProductionWatch:
    """Compares production with how it was seen stopped. Without such a reading (it serves, or loads) nothing is judged.

    Nor is anything judged in a restore, which starts production itself and stops none that answers.
    """

    def __init__(self) -> None:
        self.appeared = ""
        """What showed that production was started by somebody else; "" as long as nothing does."""
        self._stopped: UnitStatus | None = None
        self._looked = 0.0
        self._came_up = False
        """Whether a wait was ended since production came up."""

    def is_down(self, status: UnitStatus) -> None:
        """Take how production is while it is stopped: from here on nobody but the campaign starts it."""
        self._stopped = status
        self._came_up = False

    def is_wanted(self) -> None:
        """Expect production to run: the campaign starts it itself."""
        self._stopped = None

    def check(self, b: Watched, *, since: UnitStatus | None = None) -> None:
        """Raise ProductionAppeared where somebody started production; ``since``: a unit that began after its stop.

        Raises LeaseLost where that somebody is the guard, TransportLost.
        """
        if not b.restoring and (self.appeared or self._stopped is not None or since is not None):
            b.persist("a look at production", lambda: self._look(b, since))

    def check_after(self, b: Watched, error: Exception) -> None:
        """Raise ProductionAppeared where that explains an error; what cannot be read explains nothing.

        Raises LeaseLost where the guard started production; TransportLost where a wait ended since production came up.
        """
        if self._stopped is None or b.restoring or b.cancellation.requested:
            return
        if self._came_up:
            b.persist("a look at production", lambda: self._look(b, None, error))
            return
        with suppress(TransportLost, BusError, DeadlineExceeded):
            self._look(b, None, error)

    def seems_up(self, b: Watched) -> bool:
        """Whether a wait should end since production came up. Looks once a second at most, and raises nothing."""
        if self._stopped is None or b.restoring or not self._due():
            return False
        with suppress(TransportLost, BusError, DeadlineExceeded):
            self._came_up = came_up(self._stopped, _status(b)) is not None
        return self._came_up

    def check_now_and_then(self, b: Watched) -> None:
        """Check, once a second at most. Raises as ``check`` does."""
        if self._stopped is not None and self._due():
            self.check(b)

    def _due(self) -> bool:
        due = time.monotonic() - self._looked >= _LOOK_EVERY
        if due:
            self._looked = time.monotonic()
        return due

    def _look(self, b: Watched, since: UnitStatus | None, error: Exception | None = None) -> None:
        now = _status(b)
        words = self.appeared or (came_up(self._stopped, now) if self._stopped is not None else None)
        if not words and since is not None and last_started(now) > last_started(since):
            words = f"{now.name} was started after {since.name} had begun: {describe_unit(now)}"
        if not words:
            return
        # The guard restores production too: then the lease is gone, and that is what is to be said.
        control.renew(b.host, b.lease, deadline=b.call("renewal of the lease"))
        if not self.appeared:
            b.say("production.appeared", f"{words}; it is not stopped: the campaign on {b.name} ends", unit=now.name)
        self.appeared = words
        raise ProductionAppeared(
            f"production was started by somebody else in mid-campaign: {words}",
            wanted=f"{now.name} stopped until the campaign gives {b.name} back",
            where=f"{now.name} on {b.name}",
            hint=f"a timer, socket, path, unit that upholds it, or a person: journalctl -u {now.name};"
            f" systemctl list-dependencies --reverse {now.name}",
        ) from error


def _status(b: Watched) -> UnitStatus:
    return b.host.systemd().status(b.production.unit, deadline=b.call("a look at production"))

"""Small things that every wait in this room shares: evidence with its time, cancelling, a link that comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import HostUnreachable, Interrupted, TransportLost
from opsctl.host.protocol import Host
from opsctl.results import Evidence
from opsctl.retrying import retrying

Result = TypeVar("Result")

CALL_LIMIT = 20.0
"""Seconds for one reading of a host."""
LINK_BUDGET = 300.0
"""Seconds that a lost link may take to come back within one wait (a budget of its own)."""
TICK = 0.05
"""Longest sleep of a loop that watches for a cancel."""


def evidence(asked: str, observed: str) -> Evidence:
    """Return an observation with the time of now."""
    return Evidence(asked=asked, observed=observed, time=now())


def never() -> bool:
    """Return False: the wait cannot be cancelled."""
    return False


def check_cancelled(cancelled: Callable[[], bool], what: str) -> None:
    """Raise Interrupted once somebody asked for the end."""
    if cancelled():
        raise Interrupted(f"{what} was interrupted")


def pause(seconds: float, *, deadline: Deadline, cancelled: Callable[[], bool], what: str) -> None:
    """Sleep, in slices, never past the deadline. Raises Interrupted."""
    until = time.monotonic() + min(seconds, deadline.remaining())
    while (left := until - time.monotonic()) > 0:
        check_cancelled(cancelled, what)
        time.sleep(min(TICK, left))


class Link:
    """Reads a host through lost links, until their budget is spent.

    A link that is lost costs its own budget, not the patience with the server: pitfall ansible 81583.
    """

    def __init__(self, host: Host, *, deadline: Deadline, budget: float = LINK_BUDGET) -> None:
        self.host = host
        self.lost = 0
        self._deadline = deadline
        self._left = budget

    def read(self, reading: Callable[[], Result], *, renewed: Callable[[], None] | None = None) -> Result:
        """Return what a reading gives. On a lost link: connect again, call ``renewed``, read again.

        Raises TransportLost once the budget is spent, HostRebooted when the host is no longer the same.
        """
        while True:
            try:
                return reading()
            except TransportLost:
                self.renew()
                if renewed is not None:
                    renewed()

    def renew(self) -> None:
        """Connect again within what is left of the budget. Raises TransportLost or HostRebooted."""
        self.lost += 1
        began = time.monotonic()
        budget = self._deadline.within(self._left, f"the link to {self.host.name}")
        if budget.expired:
            raise TransportLost(
                f"the link to {self.host.name} was lost and did not come back",
                where=f"host {self.host.name}",
                hint="the guard on the host restores production by itself when the lease runs out",
            )
        for attempt in retrying(TransportLost, HostUnreachable, deadline=budget):
            with attempt:
                self.host.reconnect(deadline=budget)
        self._left -= time.monotonic() - began

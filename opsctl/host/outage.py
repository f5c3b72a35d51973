"""Lost links: the one place that connects again and tries again, and the one budget that this may cost.

The budget counts from the loss, once for all that waits for the host: a wait inside another one adds nothing to it.
It is a budget of its own, which costs nothing of the patience with the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from opsctl.deadline import Deadline
from opsctl.errors import HostRebooted, HostUnreachable, TransportLost
from opsctl.quantities import format_duration
from opsctl.retrying import retrying

Result = TypeVar("Result")

BUDGET = 300.0
"""Seconds that a lost link may take to come back, where its user says nothing else."""
CONNECT = 30.0
"""Seconds for one try, log-in included."""
LAST_TRY = 5.0
"""Seconds for a try after the budget was spent: something else may find the host back."""


class Outage:
    """Since when a host's link is lost, if it is. ``budget`` is in seconds."""

    def __init__(self) -> None:
        self.budget = BUDGET
        self.since: float | None = None

    @property
    def left(self) -> float:
        """Seconds for which the link is still waited for; all of the budget while it stands."""
        gone = 0.0 if self.since is None else time.monotonic() - self.since
        return max(0.0, self.budget - gone)


class Reachable(Protocol):
    """What is needed of a host here."""

    name: str
    outage: Outage

    def reconnect(self, *, deadline: Deadline) -> None:
        """Make the link anew. Raises HostRebooted when boot_id changed."""
        ...


def ride_out(
    host: Reachable,
    action: Callable[[], Result],
    *,
    deadline: Deadline | None = None,
    lost: Callable[[TransportLost], object] | None = None,
    back: Callable[[], object] | None = None,
) -> Result:
    """Return what an action gives that may be done twice; on a lost link, connect again and do it again.

    ``lost`` is called once an outage, ``back`` when the link stands again; what they raise is raised. Raises
    TransportLost once the budget (or the deadline) is spent, HostRebooted where the host is no longer the same.
    """
    outage = host.outage
    if outage.since is None:
        try:
            return action()
        except TransportLost as error:
            _begin(outage, error, lost)
    for attempt in retrying(TransportLost, deadline=_patience(host, deadline), first=0.5, longest=5.0):
        with attempt:
            if outage.since is not None:
                _connect_again(host, deadline)
                if back is not None:
                    back()
            try:
                return action()
            except TransportLost as error:
                _begin(outage, error, lost)
                raise
    raise AssertionError  # unreachable: retrying either returns, or raises the last error


def reconnect(host: Reachable, *, deadline: Deadline | None = None) -> None:
    """Connect again, after somebody else met the loss. Raises as ``ride_out`` does."""
    if host.outage.since is None:
        host.outage.since = time.monotonic()
    for attempt in retrying(TransportLost, deadline=_patience(host, deadline), first=0.5, longest=5.0):
        with attempt:
            _connect_again(host, deadline)


def _begin(outage: Outage, error: TransportLost, lost: Callable[[TransportLost], object] | None) -> None:
    if outage.since is None:
        outage.since = time.monotonic()
        if lost is not None:
            lost(error)


def _patience(host: Reachable, deadline: Deadline | None) -> Deadline:
    what = f"the lost link to {host.name}"
    return deadline.within(host.outage.left, what) if deadline else Deadline(host.outage.left, what)


def _connect_again(host: Reachable, deadline: Deadline | None) -> None:
    patience = min(CONNECT, max(LAST_TRY, host.outage.left), *([deadline.remaining()] if deadline else []))
    try:
        host.reconnect(deadline=Deadline(max(0.1, patience), f"reconnect to {host.name}"))
    except (HostUnreachable, TransportLost) as error:
        # A host that boots refuses connections for a while: as good a reason to try again as silence.
        raise TransportLost(
            f"the link to {host.name} was lost, and did not come back within {format_duration(host.outage.budget)}",
            seen=error.seen or error.message,
            where=error.where or host.name,
            hint=f"where a lease is armed, the guard restores production by itself: opsctl lease show {host.name}",
        ) from error
    except HostRebooted:
        host.outage.since = None  # the link stands, to a host that has begun anew
        raise
    host.outage.since = None

"""Watching the guard bring production back: reads only, through losses of the link, until it is done."""

from __future__ import annotations

import time
from collections.abc import Callable

from opsctl.campaign import limits
from opsctl.deadline import Deadline
from opsctl.errors import HostRebooted
from opsctl.host.guard import control
from opsctl.host.guard.control import LeaseView
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService

_LOOK_EVERY = 0.5
_LINK_BUDGET = 60.0
_LOADS = 3
"""How many complete loads a watcher waits for: the guard itself has no limit."""


def watch_guard(
    host: Host,
    production: ResolvedService,
    say: Callable[[str], object],
    *,
    patience: float = _LINK_BUDGET,
) -> LeaseView | None:
    """Watch until the lease is closed, or the guard says that it cannot see production serve; say what moves.

    Returns the last look; None where there is no guard. Raises DeadlineExceeded after three loads' time, and
    HostError once the link is gone for ``patience`` seconds: a host that boots is unreachable for a while.
    """
    budget = production.stop.limit + production.stop.gpu_limit + _LOADS * production.readiness.limit
    deadline = Deadline(budget, f"the guard's restore of {production.name} on {host.name}")
    host.outage.budget = patience
    if host.outage.since is not None:
        host.outage.since = time.monotonic()  # what the campaign waited for the link is no part of this
    said = ""
    while True:
        view = _look(host)
        if view is None or not view.live:
            return view
        if view.describe() != said:
            said = view.describe()
            say(said)
        if view.unverified:
            return view
        deadline.check(seen=said, where=host.name, hint=f"the guard goes on trying; opsctl lease show {host.name}")
        time.sleep(_LOOK_EVERY)


def _look(host: Host) -> LeaseView | None:
    def look() -> LeaseView | None:
        return control.show(host, deadline=Deadline(limits.CALL, f"the lease of {host.name}"))

    try:
        return ride_out(host, look)
    except HostRebooted:
        return ride_out(host, look)  # the guard goes on after a boot, and so does the watching

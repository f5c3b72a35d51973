"""Lost links are ridden out in one place, under one budget that nested waits share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import HostRebooted, HostUnreachable, TransportLost
from opsctl.host.outage import Outage, ride_out
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit


class Flaky:
    """A host whose link comes back at the n-th try; nothing else of a host is needed here."""

    name = "gpu1"

    def __init__(self, tries: int, error: Exception | None = None) -> None:
        self.outage = Outage()
        self.tries, self.error = tries, error
        self.asked = 0
        self.up = False

    def reconnect(self, *, deadline: Deadline) -> None:  # noqa: ARG002 - the protocol's
        self.asked += 1
        if self.asked < self.tries:
            raise HostUnreachable("no connection", seen="refused")
        self.up = True
        if self.error:
            raise self.error

    def act(self) -> str:
        if not self.up:
            raise TransportLost("gone")
        return "done"


def test_an_action_is_done_again_once_the_link_stands() -> None:
    flaky, said = Flaky(2), []
    done = ride_out(flaky, flaky.act, lost=lambda _: said.append("lost"), back=lambda: said.append("back"))
    assert (done, said, flaky.asked) == ("done", ["lost", "back"], 2)
    assert flaky.outage.since is None


def test_a_wait_in_a_wait_adds_nothing_to_the_budget() -> None:
    flaky = Flaky(10**6)
    flaky.outage.budget = 1.0
    began = time.monotonic()
    with pytest.raises(TransportLost, match=r"did not come back within 1.0 s") as raised:
        ride_out(flaky, lambda: ride_out(flaky, flaky.act))
    assert time.monotonic() - began < 2.0
    assert raised.value.seen == "refused"
    assert "where a lease is armed" in str(raised.value.hint)


def test_a_reboot_is_told_and_the_link_stands() -> None:
    flaky = Flaky(1, HostRebooted("rebooted"))
    with pytest.raises(HostRebooted):
        ride_out(flaky, flaky.act)
    assert flaky.outage.since is None
    assert ride_out(flaky, flaky.act) == "done"


@pytest.mark.lab
def test_a_real_link_that_is_cut_and_heals(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.cut()
    threading.Timer(2.0, fresh_lab_host.heal).start()
    said = ride_out(host, lambda: host.run(("echo", "here"), deadline=limit(30)).text)
    assert said == "here"
    assert host.outage.since is None

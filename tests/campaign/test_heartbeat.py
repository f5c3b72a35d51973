"""The heartbeat against a real guard: renewing, losing the link, waking up late, and a guard that fell silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from opsctl.campaign.heartbeat import Heartbeat
from opsctl.clock import boot_clock
from opsctl.deadline import Deadline
from opsctl.errors import GuardSilent, LeaseLost
from opsctl.host import connect
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from tests.guard.site import Site, until

pytestmark = pytest.mark.lab

Beating = Callable[..., tuple[Heartbeat, Lease]]


class Clock:
    """The boot clock, which a suspended laptop finds further on."""

    def __init__(self) -> None:
        self.slept = 0.0

    def __call__(self) -> float:
        return boot_clock() + self.slept


@pytest.fixture
def site(fresh_lab_host: LabHost) -> Iterator[Site]:
    built = Site.build(fresh_lab_host)
    built.serve()
    built.install()
    yield built
    built.host.close()


@pytest.fixture
def beating(site: Site) -> Iterator[Beating]:
    """Return a function that arms a lease and starts its heartbeat."""
    made: list[Heartbeat] = []

    def start(*, ttl: float = 300, clock: Callable[[], float] = boot_clock,
              on_renewed: Callable[[float], object] | None = None) -> tuple[Heartbeat, Lease]:  # fmt: skip
        lease = site.arm(site.terms(ttl=ttl))

        def reach() -> Host:
            return connect(site.lab.name, site.entry, deadline=Deadline(5, "heartbeat's connection"))

        heartbeat = Heartbeat(reach, lease, ttl=ttl, clock=clock, on_renewed=on_renewed)
        heartbeat.start()
        made.append(heartbeat)
        return heartbeat, lease

    yield start
    for heartbeat in made:
        heartbeat.stop()


def test_it_holds_the_lease_beyond_its_ttl(site: Site, beating: Beating) -> None:
    renewed: list[float] = []
    heartbeat, lease = beating(ttl=4, on_renewed=renewed.append)
    began = time.monotonic()
    until(lambda: time.monotonic() - began > 9, 20, "two ttls")
    heartbeat.check()
    assert not heartbeat.lost
    assert control.holds(site.host, lease.token, deadline=Deadline(10, "holds"))
    assert len(renewed) >= 3
    assert all(0 < seconds <= 4 for seconds in renewed)
    assert "restores production in" in heartbeat.when_the_guard_acts()


def test_stop_ends_its_thread_and_connection_and_leaves_the_lease(site: Site, beating: Beating) -> None:
    renewed = threading.Event()
    heartbeat, lease = beating(ttl=5, on_renewed=lambda _: renewed.set())
    assert renewed.wait(10)
    heartbeat.stop()
    assert not [t for t in threading.enumerate() if t.name == f"opsctl-heartbeat-{lease.token}"]
    assert site.field("state") == "held"


def test_a_cut_link_is_a_lost_lease_after_its_ttl_and_the_guard_is_quoted_once_it_heals(
    site: Site, beating: Beating
) -> None:
    heartbeat, _ = beating(ttl=4)
    site.lab.cut()
    until(lambda: heartbeat.lost, 10, "the end of the lease")
    with pytest.raises(LeaseLost, match="could not be asked"):
        heartbeat.check()
    site.lab.heal()
    with pytest.raises(LeaseLost):  # once lost it stays lost: nothing may be touched again
        heartbeat.check()
    site.await_closed()
    site.assert_restored()


def test_waking_up_late_asks_the_host_before_anything_else(site: Site, beating: Beating) -> None:
    """The laptop slept; the guard has acted meanwhile; the first check says who restored what and when."""
    clock = Clock()
    heartbeat, _ = beating(clock=clock)
    control.break_(site.host, by="guard's own deadline", deadline=Deadline(10, "break"))
    site.await_closed()
    heartbeat.check()  # it does not know yet: the lease holds for minutes on its clock
    clock.slept = 301.0
    assert heartbeat.lost
    with pytest.raises(LeaseLost, match="closed by guard at 20") as caught:
        heartbeat.check()
    assert "lease closed by guard" in "\n".join(caught.value.lines())
    assert "closed by guard" in heartbeat.when_the_guard_acts()


def test_waking_up_to_a_lease_that_still_holds_goes_on(beating: Beating) -> None:
    clock = Clock()
    heartbeat, _ = beating(clock=clock)
    clock.slept = 301.0
    assert heartbeat.lost
    heartbeat.check()
    assert not heartbeat.lost
    assert heartbeat.remaining > 290


def test_a_broken_lease_wakes_whoever_waits(site: Site, beating: Beating) -> None:
    heartbeat, _ = beating(ttl=5)
    site.guard("break", "bob@desk")
    assert heartbeat.wait(20)
    with pytest.raises(LeaseLost, match="broken by bob@desk"):
        heartbeat.check()


def test_a_silent_guard_is_said_once_and_the_restore_may_go_on(site: Site, beating: Beating) -> None:
    renewed = threading.Event()
    heartbeat, _ = beating(ttl=8, on_renewed=lambda _: renewed.set())
    site.lab.exec("sh", "-c", "mv /etc/systemd/system/opsctl-guard.service /root/; systemctl stop opsctl-guard; true")
    now = int(site.field("now"))
    site.lab.write_file("/run/opsctl/tick", f"1 {now - 40} x\n")
    renewed.clear()
    assert renewed.wait(20)
    until(lambda: heartbeat._silent is not None, 10, "a renewal that sees it")
    with pytest.raises(GuardSilent, match="would not be restored"):
        heartbeat.check()
    site.lab.write_file("/run/opsctl/tick", f"1 {now} x\n")
    assert not heartbeat.lost

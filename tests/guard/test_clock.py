"""The guard under a wall clock that leaps a day each way: deadlines are kept to the second of the boot clock."""

from __future__ import annotations

import time

import pytest

from opsctl.deadline import Deadline
from opsctl.host.guard import control
from tests.guard.site import GUARD, Site

pytestmark = pytest.mark.lab

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


@pytest.mark.parametrize("step", ["+1d", "-1d"])
def test_a_stepped_wall_clock_moves_no_deadline(site: Site, step: str) -> None:
    """The guard's loop, and all that it starts, sees the stepped clock from the middle of the lease on."""
    if not site.lab.exists(FAKETIME):
        pytest.skip("no libfaketime here")
    site.lab.write_file("/etc/faketimerc", "+0d\n")
    environment = f"Environment=LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE=/etc/faketimerc FAKETIME_NO_CACHE=1"
    drop_in = f"[Service]\n{environment} DONT_FAKE_MONOTONIC=1\n"
    site.lab.write_file("/etc/systemd/system/opsctl-guard.service.d/clock.conf", drop_in)
    site.lab.systemctl("daemon-reload")
    lease = site.arm(site.terms(ttl=6))
    began = time.monotonic()
    site.variant(lease.token)
    site.lab.write_file("/etc/faketimerc", f"{step}\n")
    stepped = site.lab.exec(
        "env", f"LD_PRELOAD={FAKETIME}", "FAKETIME_TIMESTAMP_FILE=/etc/faketimerc", "FAKETIME_NO_CACHE=1", "date", "+%s"
    ).stdout
    assert abs(abs(int(stepped) - time.time()) - 86400) < 60
    assert control.holds(site.host, lease.token, deadline=Deadline(20, "holds"))
    site.await_closed()
    assert time.monotonic() - began >= 5.9
    site.assert_restored()
    times = [line.split()[0] for line in site.lab.read_file("/var/lib/opsctl/log").splitlines()]
    assert times[0][:10] != times[-1][:10], "the guard did see another day"


def test_renewals_with_a_stepped_clock(site: Site) -> None:
    """Every call of a controller, under a clock of its own, means the same seconds."""
    lease = site.arm(site.terms(ttl=30))
    for step in ("+1d", "-1d", "+400d"):
        argv = ["env", f"LD_PRELOAD={FAKETIME}", f"FAKETIME={step}", "DONT_FAKE_MONOTONIC=1", "sh", GUARD, "renew"]
        shown = site.lab.exec(*argv, str(lease.token)).stdout.splitlines()
        assert "remaining=30" in shown

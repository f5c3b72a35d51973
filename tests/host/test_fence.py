"""The fenced bridge: it lives in the lease's session on the host, and dies with the token, at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from opsctl.errors import HostError, LeaseLost, TransportLost
from opsctl.host.guard import control
from opsctl.host.guard.terms import LeaseTerms
from opsctl.host.machine import ConnectedHost
from opsctl.host.protocol import Host, TransientUnit
from opsctl.host.systemctl import open_commands
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from tests.host.conftest import limit
from tests.labfixtures import MakeLabHost

pytestmark = pytest.mark.lab
SLOW = "[Service]\nType=oneshot\nExecStart=/bin/sleep 60\nTimeoutStopSec=1\n"


def held(host: Host) -> int:
    control.install(host, deadline=limit(60))
    terms = LeaseTerms(run="r1", holder="a test", ttl=300, service=None)
    return control.arm(host, terms, deadline=limit(60)).token


def end_session(lab_host: LabHost) -> None:
    lab_host.systemctl("kill", "--signal=KILL", "opsctl-session-*.scope")


def test_a_session_that_is_ended_fails_the_very_next_call(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    token = held(host)
    fenced = host.fenced_systemd(token)
    assert fenced.status("ssh", deadline=limit()).active
    assert fresh_lab_host.systemctl("list-units", "--plain", "--no-legend", f"opsctl-session-{token}-*.scope")
    end_session(fresh_lab_host)
    started = time.monotonic()
    with pytest.raises(LeaseLost, match=f"token {token}"):
        fenced.stop("ssh.service", deadline=limit())
    assert time.monotonic() - started < 1.0
    with pytest.raises(LeaseLost):
        host.fenced_systemd(token).stop("ssh.service", deadline=limit())
    assert host.systemd().status("ssh", deadline=limit()).active, "reading goes on, and nothing was stopped"


def test_a_wait_for_a_job_ends_with_the_session(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.write_file("/etc/systemd/system/slow.service", SLOW)
    fresh_lab_host.systemctl("daemon-reload")
    fenced = host.fenced_systemd(held(host))
    threading.Timer(0.5, end_session, [fresh_lab_host]).start()
    started = time.monotonic()
    with pytest.raises(LeaseLost):
        fenced.start("slow", deadline=limit(60))
    assert time.monotonic() - started < 3.0


def test_a_token_that_does_not_hold_opens_nothing(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    token = held(host)
    with pytest.raises(LeaseLost):
        host.fenced_systemd(token + 1)
    control.break_(host, by="a test", deadline=limit(60))
    with pytest.raises(LeaseLost):
        host.fenced_systemd(token)


def test_a_host_without_the_guard_is_not_called_a_lost_lease(
    fresh_lab_host: LabHost, reach: Callable[..., Host]
) -> None:
    with pytest.raises(HostError, match="session of token 1") as caught:
        reach(fresh_lab_host).fenced_systemd(1)
    assert "guard show" in (caught.value.hint or "")


def test_a_link_that_dies_is_no_lost_lease(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    fenced = host.fenced_systemd(held(host))
    fresh_lab_host.off()
    with pytest.raises(TransportLost):
        fenced.start("ssh", deadline=limit(60))


def test_a_new_bridge_of_the_same_token_after_a_lost_link(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    token = held(host)
    old = host.fenced_systemd(token)
    host.reconnect(deadline=limit())
    fenced = host.fenced_systemd(token)
    assert fenced is not old
    assert fenced.start_transient(TransientUnit("opsctl-x", ("/bin/sleep", "9")), deadline=limit()).result == "done"


@pytest.mark.parametrize("scope", ["system", "user"])
def test_with_sudo_and_in_user_scope(make_lab_host: MakeLabHost, reach: Callable[..., Host], scope: str) -> None:
    lab_host = make_lab_host(HostSpec(login="ops", linger=("ops",)))
    if scope == "user":
        lab_host.exec("install", "-d", "-o", "ops", "/var/lib/opsctl")
    host = reach(lab_host, scope=scope, become=scope == "system")
    token = held(host)
    fenced = host.fenced_systemd(token)
    unit = TransientUnit("opsctl-mine", ("/bin/sleep", "1000"))
    assert fenced.start_transient(unit, deadline=limit()).result == "done"
    group = fenced.status("opsctl-mine", deadline=limit()).control_group
    assert ("user@" in group) == (scope == "user")
    control.break_(host, by="a test", deadline=limit(60))
    with pytest.raises(LeaseLost):
        fenced.stop("opsctl-mine", deadline=limit())


def test_the_fence_holds_for_commands_too(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    assert isinstance(host, ConnectedHost)
    token = held(host)
    fenced = open_commands(host, token=token)
    fresh_lab_host.write_file("/etc/systemd/system/slow.service", SLOW)
    fenced.daemon_reload(deadline=limit())
    unit = TransientUnit("opsctl-mine", ("/bin/sleep", "1000"))
    assert fenced.start_transient(unit, deadline=limit()).result == "done"
    assert fenced.stop("opsctl-mine", deadline=limit()).result == "done"
    threading.Timer(1.0, end_session, [fresh_lab_host]).start()
    with pytest.raises(LeaseLost):
        fenced.start("slow", deadline=limit(60))
    control.break_(host, by="a test", deadline=limit(60))
    with pytest.raises(LeaseLost):
        fenced.stop("ssh.service", deadline=limit())
    assert fenced.status("ssh", deadline=limit()).active
    with pytest.raises(LeaseLost):
        open_commands(host, token=token)

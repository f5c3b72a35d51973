"""The load balancer's commands, run on a real host."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.errors import CommandFailed
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from opsctl.playbook.models import Traffic
from opsctl.serving.traffic import run_traffic
from tests.serving.conftest import limit, service_for

pytestmark = pytest.mark.lab


@pytest.fixture
def host(lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    lab_host.write_file(
        "/opt/lb", '#!/bin/sh\necho "$@" >>/run/lb\n[ "$1" != broken ] || { echo no such pool; exit 3; }\n', 0o755
    )
    lab_host.exec("rm", "-f", "/run/lb")
    return reach(lab_host)


def test_out_and_in_are_run_and_checked(lab_host: LabHost, host: Host) -> None:
    traffic = Traffic(
        out=("/opt/lb", "drain", "a b; ${HOME}", "$HOME", "%n"), in_=("/opt/lb", "enable"), check=("/opt/lb", "check")
    )
    service = service_for(Standin(), traffic=traffic)
    out = run_traffic(host.systemd(), host, service, "out", deadline=limit())
    back = run_traffic(host.systemd(), host, service, "in", deadline=limit())
    assert lab_host.read_file("/run/lb").splitlines() == ["drain a b; ${HOME} $HOME %n", "check", "enable", "check"]
    assert [len(record.evidence) for record in (out, back)] == [2, 2]


def test_what_is_not_named_is_not_run(lab_host: LabHost, host: Host) -> None:
    record = run_traffic(host.systemd(), host, service_for(Standin()), "out", deadline=limit())
    assert (record.argv, record.evidence) == ((), ())
    assert not lab_host.exists("/run/lb")


def test_a_command_that_fails_is_quoted(lab_host: LabHost, host: Host) -> None:
    service = service_for(Standin(), traffic=Traffic(out=("/opt/lb", "broken")))
    with pytest.raises(CommandFailed, match="traffic out") as raised:
        run_traffic(host.systemd(), host, service, "out", deadline=limit())
    assert "no such pool" in str(raised.value.seen)
    assert "production still gets traffic" in str(raised.value.hint)
    assert lab_host.exec("sh", "-c", "ls /var/lib/opsctl/ 2>/dev/null | grep traffic", check=False).stdout == ""


def test_a_command_that_hangs_is_ended_on_the_host(lab_host: LabHost, host: Host) -> None:
    service = service_for(Standin(), traffic=Traffic(out=("/bin/sleep", "600"), limit=1.0))
    with pytest.raises(CommandFailed):
        run_traffic(host.systemd(), host, service, "out", deadline=limit())
    units = lab_host.systemctl("list-units", "opsctl-traffic-*", "--state=activating", "--no-legend")
    assert units == ""

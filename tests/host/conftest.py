"""A connection to the shared lab host, and how other lab hosts are reached."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opsctl.deadline import Deadline
from opsctl.host import connect
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry


def limit(seconds: float = 20.0) -> Deadline:
    return Deadline(seconds, "a test's call")


def entry_of(lab_host: LabHost, **changes: Any) -> HostEntry:
    return HostEntry(
        **{
            "address": lab_host.address,
            "user": lab_host.spec.login,
            "identity_file": str(lab_host.identity_file),
            "known_hosts": str(lab_host.known_hosts),
            **changes,
        },
    )


@pytest.fixture(scope="module")
def host(lab_host: LabHost) -> Iterator[Host]:
    connected = connect(lab_host.name, entry_of(lab_host), deadline=limit())
    yield connected
    connected.close()


@pytest.fixture(scope="module", params=["ssh", "local"])
def either(request: pytest.FixtureRequest, lab_host: LabHost) -> Iterator[Host]:
    """A host over each link: what is promised of one is promised of both."""
    entry = entry_of(lab_host) if request.param == "ssh" else HostEntry(transport="local")
    connected = connect("either", entry, deadline=limit())
    yield connected
    connected.close()


@pytest.fixture
def reach() -> Iterator[Callable[..., Host]]:
    """Connect to a lab host; closed at the end of the test."""
    opened: list[Host] = []

    def make(lab_host: LabHost, **changes: Any) -> Host:
        connected = connect(lab_host.name, entry_of(lab_host, **changes), deadline=limit())
        opened.append(connected)
        return connected

    yield make
    for connected in opened:
        connected.close()


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail where a thread that the test began outlives it."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(2.0)
    assert [thread.name for thread in left if thread.is_alive()] == []

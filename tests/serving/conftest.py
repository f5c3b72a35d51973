"""What several tests of this room need: a real host with a stand-in server, and services that describe it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.deadline import Deadline
from opsctl.host import connect
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from opsctl.playbook.models import HostEntry, Readiness, Role
from opsctl.playbook.resolved import ResolvedService

DATA = Path(__file__).parents[1] / "data"


def limit(seconds: float = 20.0) -> Deadline:
    return Deadline(seconds, "a test's call")


def service_for(standin: Standin, **changes: Any) -> ResolvedService:
    """Return the service that an inventory would resolve for a stand-in; it settles fast, so that tests do."""
    described: dict[str, Any] = {
        "name": standin.unit,
        "host": "lab",
        "unit": standin.service_name,
        "role": Role.PRODUCTION,
        "url": standin.url,
        "model": standin.served,
        "readiness": Readiness(settle=0.3, request_limit=5.0, completions=3),
        **changes,
    }
    return ResolvedService(**described)


@pytest.fixture(scope="session")
def startup_log() -> list[str]:
    """Return the lines of the real log up to the moment when the server answers."""
    lines = (DATA / "logs" / "vllm-0.32-cpu-tp2-startup.log").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if "Application startup complete" in line)
    return lines[: end + 1]


@pytest.fixture
def reach() -> Iterator[Callable[..., Host]]:
    """Connect to lab hosts; closed at the end of the test."""
    opened: list[Host] = []

    def make(lab_host: LabHost, **changes: Any) -> Host:
        described: dict[str, Any] = {
            "address": lab_host.address,
            "user": lab_host.spec.login,
            "identity_file": str(lab_host.identity_file),
            "known_hosts": str(lab_host.known_hosts),
            **changes,
        }
        connected = connect(lab_host.name, HostEntry(**described), deadline=limit())
        opened.append(connected)
        return connected

    yield make
    for host in opened:
        host.close()

"""Fixtures for tests on lab hosts: `lab_host`, `fresh_lab_host`, `lab_hosts`, `make_lab_host`,
`standin_unit`, `standin_host`.

Each pytest worker has a lab of its own. It is stale as soon as the worker is gone, and the next session takes
stale ones down, so a killed test run leaves nothing behind for long.

A test that uses any of these is marked ``lab``.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from opsctl.errors import UnfitError
from opsctl.lab import releases
from opsctl.lab.hosts import LabHost
from opsctl.lab.lab import Lab, check_machine, reap
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import Standin, install


def as_login(user: str, *command: str) -> list[str]:
    """Return the argv of a command in that user's own session, for root inside a host."""
    session = 'export XDG_RUNTIME_DIR=/run/user/$(id -u); exec "$@"'
    login = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
    return [*login, "env", f"HOME=/home/{user}", f"USER={user}", "sh", "-c", session, "sh", *command]


class MakeLabHost(Protocol):
    """Boots one more host, of any kind; it goes at the end of the test."""

    def __call__(self, spec: HostSpec | None = None, *, name: str | None = None) -> LabHost: ...


class InstallStandin(Protocol):
    """Puts stand-in services on a host, started and answering unless not ``start``."""

    def __call__(
        self, host: LabHost, *standins: Standin, gpus: GpuConfig | None = None, start: bool = True
    ) -> None: ...


_NUMBERS = itertools.count(1)
_RELEASE = os.environ.get("OPSCTL_LAB_RELEASE", "")
"""The Debian release that lab hosts run (script/test-releases sets it), "" for this machine's own system."""


def of_release(spec: HostSpec | None = None) -> HostSpec:
    """Return a spec whose host runs the release under test, unless it names one itself."""
    spec = spec or HostSpec()
    return spec if spec.release or not _RELEASE else replace(spec, release=releases.find(_RELEASE).name)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Return this worker's lab."""
    try:
        check_machine()
    except UnfitError as error:
        pytest.skip(f"{error}: {error.seen or error.hint}")
    reap()
    folder = Path(tempfile.mkdtemp(prefix="opsctl-test-lab-"))
    opened = Lab.open(folder, owner=os.getpid())
    yield opened
    opened.down()


@pytest.fixture(scope="module")
def lab_host(lab: Lab) -> Iterator[LabHost]:
    """Return a host that the tests of one module share: for tests that leave it as they found it."""
    host = lab.up(f"shared{next(_NUMBERS)}", of_release())
    yield host
    lab.down(host.name)


@pytest.fixture
def fresh_lab_host(make_lab_host: MakeLabHost) -> LabHost:
    """Return a host of the test's own: for tests that break it (1.2 s to boot)."""
    return make_lab_host()


@pytest.fixture
def make_lab_host(lab: Lab) -> Iterator[MakeLabHost]:
    """Return a function that boots hosts of any HostSpec for this test."""
    made: list[LabHost] = []

    def make(spec: HostSpec | None = None, *, name: str | None = None) -> LabHost:
        host = lab.create(name or f"host{next(_NUMBERS)}", of_release(spec))
        made.append(host)
        host.boot()
        return host

    yield make
    for host in made:
        lab.down(host.name)


@pytest.fixture
def lab_hosts(lab: Lab) -> Iterator[Callable[[int], list[LabHost]]]:
    """Return a function that boots N plain hosts at once for this test."""
    made: list[LabHost] = []

    def boot(count: int) -> list[LabHost]:
        hosts = lab.up_all([f"host{next(_NUMBERS)}" for _ in range(count)], of_release())
        made.extend(hosts)
        return hosts

    yield boot
    for host in made:
        lab.down(host.name)


@pytest.fixture
def standin_unit() -> InstallStandin:
    """Return the function that installs stand-in services on a host (opsctl.lab.units.install)."""
    return install


@pytest.fixture
def standin_host(fresh_lab_host: LabHost, standin_unit: InstallStandin) -> LabHost:
    """Return a host of the test's own on which production, a paced stand-in, serves."""
    standin_unit(fresh_lab_host, Standin())
    return fresh_lab_host

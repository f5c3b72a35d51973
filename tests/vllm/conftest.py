"""A lab host that serves by a real vLLM. Needs what script/vllm-cpu installs; script/test-vllm runs these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import UnfitError
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import as_yaml, inventory
from opsctl.lab.lab import Lab
from opsctl.lab.real import RealVllm
from opsctl.lab.spec import HostSpec
from opsctl.lab.units import await_answer


@pytest.fixture(scope="session")
def vllm_host(lab: Lab) -> Iterator[LabHost]:
    """Return a host whose production is a real vLLM at TP=2; the lab's inventory is written for it."""
    server = RealVllm()
    try:
        binds = server.binds()
    except UnfitError as error:
        pytest.skip(f"{error}: {error.hint}")
    host = lab.up("vllm", HostSpec(disk="4G", binds=binds, files=server.files()))
    await_answer(host, server, Deadline(server.load_seconds, "load of the real vLLM"))
    lab.inventory.write_text(as_yaml(inventory([host], server, python=server.python)))
    yield host
    lab.down(host.name)

"""A lab host that serves by a real llama.cpp; script/llama-cpp installs it, script/test-llama-cpp runs these tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import UnfitError
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import host_entry
from opsctl.lab.lab import Lab
from opsctl.lab.real import RealLlamaCpp
from opsctl.lab.spec import HostSpec
from opsctl.lab.units import await_answer

SERVER = RealLlamaCpp()


@pytest.fixture(scope="session")
def llama_host(lab: Lab) -> Iterator[LabHost]:
    """Return a host whose production is a real llama.cpp server."""
    try:
        binds = SERVER.binds()
    except UnfitError as error:
        pytest.skip(f"{error}: {error.hint}")
    host = lab.up("llama", HostSpec(binds=binds, files=SERVER.files()))
    await_answer(host, SERVER, Deadline(SERVER.load_seconds, "load of the real llama.cpp"))
    yield host
    lab.down(host.name)


@pytest.fixture(scope="session")
def inventory(llama_host: LabHost) -> dict[str, Any]:
    """Return the inventory: production, and a variant with one slot instead of four."""
    limits = {"readiness": {"limit": "120s", "settle": "1s"}, "stop": {"limit": "40s", "gpu-limit": "20s"}}
    production = {"url": SERVER.url, "model": SERVER.served, "engine": "llama.cpp", **limits}
    one_slot = {"role": "variant", "of": SERVER.unit, "args": {"replace": {"--parallel": "1"}}}
    return {
        "hosts": {llama_host.name: host_entry(llama_host, python=SERVER.python, gpus=None)},
        "groups": {"llamas": [llama_host.name]},
        "services": {SERVER.unit: production, f"{SERVER.unit}-one-slot": one_slot},
    }

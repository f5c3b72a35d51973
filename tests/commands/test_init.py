from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.testing

from opsctl.cli import build_app
from opsctl.errors import UnfitError
from opsctl.playbook.inventory import load_inventory
from opsctl.playbook.models import HostEntry
from opsctl.serving.discovery import FoundServer, HostFound
from opsctl.serving.inventory_draft import inventory_text
from tests.commands.looking import units_of

if TYPE_CHECKING:
    from opsctl.lab.hosts import LabHost

SERVER = FoundServer(
    unit="vllm-a.service",
    engine="vllm",
    active=True,
    url="http://127.0.0.1:8000",
    model="org/a: b",
    tensor_parallel=8,
    python="/opt/v/bin/python",
    answered="/v1/models lists it",
    serving=True,
)


def loaded(folder: Path, found: HostFound, entry: HostEntry | None = None) -> Any:
    path = folder / "inventory.yml"
    path.write_text(inventory_text("gpu1", "kimi", entry or HostEntry(address="10.0.0.1", user="ops"), found))
    return load_inventory(path)


def test_what_is_written_is_fit_and_says_what_was_found(tmp_path: Path) -> None:
    inventory = loaded(tmp_path, HostFound((SERVER,), gpus=8))
    (service,) = inventory.production_of("gpu1")
    assert (service.unit, service.model, service.tensor_parallel) == ("vllm-a.service", "org/a: b", 8)
    assert inventory.service_on("vllm-a-profiler", "gpu1").profiler == "torch"
    entry = inventory.host("gpu1")
    assert (entry.address, entry.user, entry.python, entry.gpus) == ("10.0.0.1", "ops", "/opt/v/bin/python", 8)
    assert inventory.hosts_of("kimi") == ("gpu1",)


def test_several_servers_and_one_that_does_not_run(tmp_path: Path) -> None:
    second = FoundServer("sgl@b.service", "sglang", True, "http://127.0.0.1:30000", "m", 4)
    idle = FoundServer("vllm-old.service", "vllm", False, "http://127.0.0.1:8000", "m", 1)
    inventory = loaded(tmp_path, HostFound((SERVER, second, idle), gpus=None))
    assert [service.name for service in inventory.production_of("gpu1")] == ["vllm-a"]
    assert inventory.service_on("sgl-b", "gpu1").unit == "sgl@b.service"
    assert inventory.service_on("sgl-b", "gpu1").engine == "sglang"
    assert "# vllm-old.service does not run" in (tmp_path / "inventory.yml").read_text()


def test_a_server_that_wants_a_key_gets_a_file_to_fill(tmp_path: Path) -> None:
    locked = FoundServer("v.service", "vllm", True, "http://127.0.0.1:8000", "m", 1, needs_key=True)
    assert loaded(tmp_path, HostFound((locked,), gpus=1)).service_on("v", "gpu1").api_key_file == "/etc/vllm/api-key"


def test_a_host_without_servers_is_still_an_inventory(tmp_path: Path) -> None:
    assert loaded(tmp_path, HostFound((), gpus=8)).services_of("gpu1") == ()


def test_the_machine_itself(tmp_path: Path) -> None:
    inventory = loaded(tmp_path, HostFound((SERVER,), gpus=8), HostEntry(transport="local"))
    assert inventory.host("gpu1").transport == "local"


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    path.write_text("mine")
    result = typer.testing.CliRunner().invoke(build_app("init"), ["init", "nowhere.invalid", "-o", str(path)])
    assert isinstance(result.exception, UnfitError)
    assert path.read_text() == "mine"


@pytest.mark.lab
def test_a_real_host_is_asked_and_nothing_on_it_is_changed(standin_host: LabHost, tmp_path: Path) -> None:
    path = tmp_path / "inventory.yml"
    before = units_of(standin_host)
    result = typer.testing.CliRunner().invoke(
        build_app("init"),
        [
            *("init", standin_host.address, "--user", "root", "--name", "lab", "-o", str(path), "--json"),
            *("--identity-file", str(standin_host.identity_file), "--known-hosts", str(standin_host.known_hosts)),
        ],
    )
    assert result.exit_code == 0, result.output
    assert units_of(standin_host) == before
    told = json.loads(result.stdout)
    (server,) = told["servers"]
    assert (server["service"], server["model"], server["serving"]) == ("vllm-kimi-k25-int4", "kimi-k2.5", True)
    inventory = load_inventory(path)
    (service,) = inventory.production_of("lab")
    assert (service.unit, service.url, service.model) == (
        "vllm-kimi-k25-int4.service",
        "http://127.0.0.1:8000",
        "kimi-k2.5",
    )

"""``opsctl plan`` against a real host: it sees what is there, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.testing

from opsctl.cli import build_app
from opsctl.lab.inventory import as_yaml
from opsctl.lab.inventory import inventory as lab_inventory
from opsctl.lab.units import Standin
from tests.commands.looking import units_of

if TYPE_CHECKING:
    from opsctl.lab.hosts import LabHost

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]


def plan(inventory: Path, *more: str) -> Any:
    playbook = str(ROOT / "playbooks" / "profile-campaign.yml")
    return typer.testing.CliRunner().invoke(build_app("plan"), ["plan", playbook, "-i", str(inventory), *more])


@pytest.fixture
def inventory(standin_host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "inventory.yml"
    path.write_text(as_yaml(lab_inventory([standin_host], Standin())))
    return path


def test_a_plan_sees_the_host_and_changes_nothing(standin_host: LabHost, inventory: Path) -> None:
    before = units_of(standin_host)
    result = plan(inventory, "--json")
    assert result.exit_code == 0, result.output
    assert units_of(standin_host) == before
    told = json.loads(result.stdout)
    (host,) = told["hosts"]
    assert host["found"][0].startswith("production vllm-kimi-k25-int4: serving (vllm ")
    assert host["found"][1:] == ["GPUs: 2", "lease: nobody"]
    assert host["stops"] == []
    assert told["loads"] == 2
    steps = [action for action in host["actions"] if action["action"] == "measure"]
    assert all(step["cells"] for step in steps)
    assert "load of vllm-kimi-k25-int4" in host["downtime"]["unknown"]


def test_production_that_is_down_would_be_refused(standin_host: LabHost, inventory: Path) -> None:
    standin_host.systemctl("stop", "vllm-kimi-k25-int4.service")
    result = plan(inventory)
    assert result.exit_code == 2
    assert "a run would be refused now: production vllm-kimi-k25-int4 was not serving before" in result.stdout
    again = plan(inventory, "--if-down", "restore")
    assert again.exit_code == 0, again.output
    assert "a run would be refused" not in again.stdout


def test_a_unit_that_the_host_does_not_have(inventory: Path) -> None:
    inventory.write_text(
        inventory.read_text().replace("  vllm-kimi-k25-int4:", "  vllm-kimi-k25-int4:\n    unit: nope")
    )
    result = plan(inventory)
    assert result.exit_code == 2
    assert "has no unit nope.service" in result.output

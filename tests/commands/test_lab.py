"""``opsctl lab``, as a person calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.errors import UnfitError
from opsctl.lab.lab import Lab, check_machine
from opsctl.playbook.inventory import load_inventory
from tests.labfixtures import MakeLabHost

pytestmark = pytest.mark.lab


def opsctl(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "opsctl", "lab", *arguments]
    environment = {**os.environ, "OPSCTL_LAB": str(folder), "TERM": "dumb", "COLUMNS": "200"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=110, env=environment)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of a lab with one host, up by the command, and down by it."""
    folder = tmp_path_factory.mktemp("lab") / "l"
    done = opsctl(folder, "up", "--engine", "paced", "--load", "0.1s", "--router")
    assert (done.returncode, done.stdout) == (0, f"{folder}/inventory.yml\n"), done.stderr
    yield folder
    assert opsctl(folder, "down").returncode == 0
    assert not folder.exists()


def test_the_inventory_is_fit(up: Path) -> None:
    inventory = load_inventory(up / "inventory.yml").inventory
    assert inventory.hosts["lab1"].gpus == 2
    assert set(inventory.services) == {"vllm-kimi-k25-int4", "vllm-kimi-k25-int4-profiler"}
    assert Path(inventory.hosts["lab1"].known_hosts or "").exists()


def test_list_names_hosts_of_every_lab(up: Path, lab: Lab, make_lab_host: MakeLabHost) -> None:
    other = make_lab_host()
    rows = json.loads(opsctl(up, "list", "--json").stdout)
    mine = next(row for row in rows if row["lab"] == str(up))
    assert (mine["name"], mine["state"], mine["stale"]) == ("lab1", "up", False)
    assert {(str(lab.folder), other.name), (str(up), "lab1")} <= {(row["lab"], row["name"]) for row in rows}
    assert mine["address"] in opsctl(up, "list").stdout


def test_ssh_and_exec_run_what_is_given_and_end_as_it_ends(up: Path) -> None:
    assert opsctl(up, "ssh", "lab1", "hostname").stdout == "lab1\n"
    assert opsctl(up, "ssh", "lab1", "exit", "7").returncode == 7
    assert opsctl(up, "exec", "lab1", "sh", "-c", "exit 5").returncode == 5
    active = opsctl(up, "exec", "lab1", "systemctl", "is-active", "vllm-kimi-k25-int4", "vllm-router")
    assert active.stdout.split() == ["active", "active"]


def test_cut_and_heal(up: Path) -> None:
    assert opsctl(up, "cut", "lab1").returncode == 0
    assert opsctl(up, "exec", "lab1", "cat", "/sys/class/net/eth0/carrier").stdout == "0\n"
    assert opsctl(up, "heal", "lab1").returncode == 0
    assert opsctl(up, "ssh", "lab1", "true").returncode == 0


def test_reboot_says_the_new_boot_id(up: Path) -> None:
    before = json.loads(opsctl(up, "list", "--json").stdout)
    done = opsctl(up, "reboot", "lab1")
    assert done.returncode == 0
    assert done.stdout.split()[-1] not in {row["boot_id"] for row in before}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ssh", "nobody"), "the lab has no host nobody"),
        (("exec", "lab1"), "needs a command"),
        (("up", "--load", "soon"), "wanted a duration"),
        (("up", "--fault", "stuck-at-shrad=2"), "did you mean stuck-at-shard"),
    ],
)
def test_mistakes_are_exit_2_with_what_was_wanted(up: Path, arguments: tuple[str, ...], says: str) -> None:
    done = opsctl(up, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_lab_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = opsctl(tmp_path / "none", "reboot", "lab1")
    assert done.returncode == 2
    assert "opsctl lab up" in done.stderr


def test_without_root_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match="needs root"):
        check_machine(user=1000)

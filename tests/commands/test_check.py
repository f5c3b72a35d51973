from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.commands.check import _note, _row
from opsctl.host.protocol import UnitStatus
from opsctl.lab.hosts import LabHost


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-W", "error", "-m", "opsctl", "check", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def inventory(lab_host: LabHost, tmp_path: Path) -> str:
    host = {
        "address": lab_host.address,
        "user": "root",
        "identity-file": str(lab_host.identity_file),
        "known-hosts": str(lab_host.known_hosts),
    }
    services = {"ssh": {"url": "http://127.0.0.1:8000", "model": "m"}}
    (tmp_path / "inventory.yml").write_text(json.dumps({"hosts": {"gpu1": host}, "services": services}))
    return str(tmp_path / "inventory.yml")


@pytest.mark.lab
def test_what_runs_and_what_does_not(inventory: str) -> None:
    done = check("gpu1", "ssh", "absent.service", "--json", "-i", inventory)
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["units"]
    assert [(row["host"], row["unit"], row["up"], row["load_state"]) for row in rows] == [
        ("gpu1", "ssh.service", True, "loaded"),
        ("gpu1", "absent.service", False, "not-found"),
    ]
    assert done.stderr == ""


@pytest.mark.lab
def test_the_hosts_services_by_default(inventory: str) -> None:
    done = check("gpu1", "-i", inventory, "--settle", "0.2s")
    assert (done.returncode, done.stderr) == (0, "")
    assert "ssh.service" in done.stdout
    assert "active (running)" in done.stdout


@pytest.mark.lab
def test_a_variant_that_no_campaign_runs_is_no_fault(inventory: str) -> None:
    said = json.loads(Path(inventory).read_text())
    said["services"]["ssh-variant"] = {"role": "variant", "of": "ssh", "args": {"add": ["--x"]}}
    Path(inventory).write_text(json.dumps(said))
    done = check("gpu1", "-i", inventory)
    assert (done.returncode, done.stderr) == (0, "")
    assert "–" in next(line for line in done.stdout.splitlines() if "ssh-variant" in line)
    assert check("gpu1", "ssh-variant", "-i", inventory).returncode == 1, "asked for by name it should run"


@pytest.mark.lab
def test_a_host_that_cannot_be_reached_is_exit_2(inventory: str, lab_host: LabHost) -> None:
    text = Path(inventory).read_text().replace(lab_host.address, "127.0.0.1").replace('"user"', '"port": 9, "user"')
    Path(inventory).write_text(text)
    done = check("gpu1", "-i", inventory)
    assert done.returncode == 2
    assert "no connection to 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def status(**changes: Any) -> UnitStatus:
    said: dict[str, Any] = {
        "name": "x.service",
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "invocation_id": "a",
        **changes,
    }
    return UnitStatus(**said)


@pytest.mark.parametrize(
    ("before", "after", "up", "note"),
    [
        (status(), status(), True, ""),
        (status(), status(invocation_id="b"), False, "restarted while it was watched"),
        (status(), status(n_restarts=1), False, "restarted while it was watched"),
        (status(), status(active_state="failed", result="exit-code"), False, "exit-code"),
        (status(active_state="activating"), status(), False, ""),
        (status(), status(need_daemon_reload=True), True, "its file changed since it was loaded"),
    ],
)
def test_up_means_up_all_the_while(before: UnitStatus, after: UnitStatus, up: bool, note: str) -> None:
    row = _row("gpu1", before, after, wanted=True)
    assert row["up"] is up
    assert note in _note(row)

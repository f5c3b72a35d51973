"""Real timers of a real systemd, fired in a lab host that serves a stand-in and runs opsctl on itself."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.deadline import Deadline
from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import LAB_VARS, service_entries
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import ENVIRONMENT, Standin, await_answer, environment_files, gpu_files
from tests.labfixtures import MakeLabHost, as_login

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
FOLDER = "/srv/ops"
STATE = f"{FOLDER}/state"
PLAYBOOK = """\
name: nightly
hosts: kimi
phases:
  - name: production
    serve: vllm-kimi-k25-int4
    steps:
      - command: {argv: [/bin/sleep, "SECONDS"]}
"""


def opsctl(host: LabHost, *words: str) -> str:
    command = ["env", "-C", FOLDER, f"XDG_STATE_HOME={STATE}", sys.executable, "-m", "opsctl", *words]
    if host.spec.login != "root":
        command = as_login(host.spec.login, *command)
    return host.exec(*command, timeout=120).stdout


@pytest.fixture
def controller(standin_host: LabHost) -> LabHost:
    """Return a host that is its own controller: production serves, inventory and playbooks lie in /srv/ops."""
    inventory = {
        "vars": {**LAB_VARS, "quiet_wait": "60s", "quiet_stable": "1s", "concurrency": [1]},
        "hosts": {"kimi": {"transport": "local", "python": f"{ENVIRONMENT}/bin/python", "gpus": 2}},
        "services": service_entries(Standin()),
    }
    standin_host.write_file(f"{FOLDER}/inventory.yml", yaml.safe_dump(inventory))
    standin_host.write_file(f"{FOLDER}/nightly.yml", PLAYBOOK.replace("SECONDS", "0"))
    standin_host.write_file(f"{FOLDER}/long.yml", PLAYBOOK.replace("SECONDS", "15").replace("nightly", "long"))
    snapshot = (ROOT / "playbooks/nightly-snapshot.yml").read_text()
    standin_host.write_file(f"{FOLDER}/nightly-snapshot.yml", snapshot)
    return standin_host


def entries(host: LabHost, name: str) -> list[dict[str, Any]]:
    document = json.loads(opsctl(host, "schedule", "logs", name, "--json"))
    return list(document["entries"])


def wait_for(host: LabHost, name: str, event: str, *, seconds: float = 150.0) -> dict[str, Any]:
    """Return the first event of that kind; on the way, what was seen is kept for the error."""
    deadline = Deadline(seconds, f"{event} of schedule {name}")
    while True:
        seen = entries(host, name)
        found = next((entry for entry in seen if entry["event"] == event), None)
        if found is not None:
            return found
        if deadline.expired:
            journal = host.exec("journalctl", "--no-pager", "-u", f"opsctl-schedule-{name}.service", check=False).stdout
            deadline.check(seen=f"{seen}\n{journal[-3000:]}")
        time.sleep(0.5)


@pytest.mark.timeout(400)
def test_a_timer_fires_and_the_night_is_measured_and_recorded(controller: LabHost) -> None:
    added = json.loads(
        opsctl(controller, "schedule", "add", "nightly-snapshot.yml", "--at", "*:*:0/10", "--accuracy", "1s", "--json")
    )
    assert added["installed"]
    assert added["active"]
    assert added["next"] or added["last"]  # it may have fired already
    ended = wait_for(controller, "nightly-snapshot", "ended")
    assert ended["exit_code"] == 0, opsctl(controller, "schedule", "logs", "nightly-snapshot")
    (listed,) = json.loads(opsctl(controller, "schedule", "list", "--json"))["schedules"]
    assert listed["last_exit_code"] == 0
    assert listed["last"] is not None

    opsctl(controller, "schedule", "remove", "nightly-snapshot")
    assert json.loads(opsctl(controller, "schedule", "list", "--json")) == {"schedules": []}
    assert not controller.exists("/etc/systemd/system/opsctl-schedule-nightly-snapshot.timer")
    assert "opsctl-schedule" not in controller.systemctl("list-timers", "--all", "--no-pager")
    runs = json.loads(opsctl(controller, "runs", "--json"))
    assert runs[-1]["outcome"] == "verified"
    (series,) = json.loads(opsctl(controller, "history", "tpot.p50", "--json"))["series"]
    assert series["points"][0]["run"] == runs[-1]["run"]


@pytest.mark.timeout(400)
def test_two_schedules_never_run_at_once(controller: LabHost) -> None:
    at = ("--at", "*:*:0/5", "--accuracy", "1s")
    opsctl(controller, "schedule", "add", "long.yml", *at)
    wait_for(controller, "long", "started")
    opsctl(controller, "schedule", "add", "nightly.yml", *at)
    assert wait_for(controller, "nightly", "skipped")["message"] == "skipped: long is still running"
    opsctl(controller, "schedule", "remove", "long")
    wait_for(controller, "nightly", "started")
    opsctl(controller, "schedule", "remove", "nightly")


@pytest.mark.timeout(400)
def test_a_users_own_timer_fires_with_nobody_logged_in(make_lab_host: MakeLabHost) -> None:
    own = Standin(scope="user")
    files = {**environment_files(), **gpu_files(GpuConfig()), **own.files()}
    host = make_lab_host(HostSpec(login="ops", linger=("ops",), sudo=False).with_files(files))
    inventory = {
        "hosts": {"kimi": {"transport": "local", "scope": "user", "python": f"{ENVIRONMENT}/bin/python", "gpus": 2}},
        "services": service_entries(own),
    }
    host.write_file(f"{FOLDER}/inventory.yml", yaml.safe_dump(inventory))
    host.write_file(f"{FOLDER}/nightly.yml", PLAYBOOK.replace("SECONDS", "0"))
    host.exec("chown", "-R", "ops:", FOLDER)
    host.exec("install", "-d", "-o", "ops", "/var/lib/opsctl")
    await_answer(host, own, Deadline(30, "the user's service"))

    added = json.loads(opsctl(host, "schedule", "add", "nightly.yml", "--at", "*:*:0/10", "--accuracy", "1s", "--json"))
    assert (added["scope"], added["active"]) == ("user", True)
    assert wait_for(host, "nightly", "ended")["exit_code"] == 0, opsctl(host, "schedule", "logs", "nightly")
    opsctl(host, "schedule", "remove", "nightly")
    assert json.loads(opsctl(host, "schedule", "list", "--json")) == {"schedules": []}
    assert json.loads(opsctl(host, "runs", "--json"))[-1]["outcome"] == "verified"


@pytest.mark.timeout(300)
def test_what_is_wrong_is_said_when_it_is_added(controller: LabHost) -> None:
    controller.write_file(f"{FOLDER}/broken.yml", "name: broken\nhosts: kimi\nphasen: []\n")
    for words, said in (
        (("broken.yml", "--at", "02:30"), "phases"),
        (("nightly.yml", "--at", "half past two"), "no time that systemd knows"),
        (("nightly.yml", "--at", "02:30", "--host", "kimi-9"), "kimi-9"),
    ):
        command = ["env", "-C", FOLDER, f"XDG_STATE_HOME={STATE}", sys.executable, "-m", "opsctl", "schedule", "add"]
        done = controller.exec(*command, *words, check=False)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert json.loads(opsctl(controller, "schedule", "list", "--json")) == {"schedules": []}
    assert "opsctl-schedule" not in controller.systemctl("list-unit-files", "--no-pager")

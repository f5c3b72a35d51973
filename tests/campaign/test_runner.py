"""A whole campaign on a real systemd over real SSH, and every way a person ends one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, install, set_fault
from tests.campaign.conftest import Desk, active, answers, invocation

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"


def test_a_campaign_swaps_measures_and_brings_production_back(desk: Desk, serving_host: LabHost) -> None:
    before = invocation(serving_host, PRODUCTION)
    done = desk.run()
    assert done.code == 0, done.out[-3000:] + done.err
    assert invocation(serving_host, PRODUCTION) != before
    assert answers(serving_host, Standin())
    assert active(serving_host, "vllm-router"), "the dependents of production is back too"
    names = [event["event"] for event in done.events]
    order = [
        "run.begun",
        "host.connected",
        "production.found",
        "preflight.passed",
        "lease.armed",
        "variant.installed",
        "production.down",
        "gpus.free",
        "restore.begun",
        "production.verified",
        "lease.released",
        "run.ended",
    ]
    assert [name for name in names if name in order][0:1] == ["run.begun"]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)
    record = desk.status()
    assert record["outcome"] == "verified"
    assert [phase["state"] for phase in record["phases"]] == ["verified"] * 3
    steps = [step for phase in record["phases"] for step in phase["steps"]]
    assert all(step["result"]["evidence"] for step in steps), "nothing is verified without evidence"
    [production] = record["production"]
    assert production["verified"]
    assert production["restored_by"] == "controller"
    assert 0 < production["downtime_seconds"] < 100
    assert production["evidence"]


def test_what_runs_is_what_was_printed(desk: Desk) -> None:
    [printed] = json.loads(desk.opsctl("plan", "small.yml", "--json").out)["hosts"]
    assert desk.run().code == 0
    kept = desk.status()["actions"]
    assert [(one["id"], one["branch"], one["sentence"]) for one in kept] == [
        (one["id"], one["branch"], one["does"]) for one in printed["actions"]
    ]
    executed = [one for one in kept if one["branch"] == "main"]
    assert {one["state"] for one in executed} == {"verified"}
    assert all(one["evidence"] for one in executed)
    assert [one["started"] for one in executed] == sorted(one["started"] for one in executed)
    assert {one["state"] for one in kept if one["branch"] != "main"} == {"skipped"}
    shown = desk.opsctl("status", "--actions")
    assert all(one["id"] in shown.out for one in executed)


def test_what_a_stage_left_is_fetched_whole_and_its_figures_are_kept(desk: Desk) -> None:
    desk.playbook["phases"] = desk.playbook["phases"][:1]
    done = desk.run()
    assert done.code == 0, done.out[-3000:]
    record = desk.status()
    result = record["phases"][0]["steps"][0]["result"]
    figures = {figure["name"]: figure["value"] for cell in result["cells"] for figure in cell["figures"]}
    assert figures["answer"] == 42
    artifacts = {artifact["path"].split("/")[-1]: artifact for artifact in result["artifacts"]}
    local = Path(record["folder"]) / artifacts["out.json"]["path"]
    assert json.loads(local.read_text()) == {"answer": 42}
    assert artifacts["out.json"]["size"] == local.stat().st_size
    assert (Path(record["folder"]) / "report.md").exists()
    assert (Path(record["folder"]) / "report.html").exists()


def test_a_campaign_that_only_measures_production_never_takes_it_down(desk: Desk, serving_host: LabHost) -> None:
    before = invocation(serving_host, PRODUCTION)
    desk.playbook["phases"] = desk.playbook["phases"][:1]
    done = desk.run()
    assert done.code == 0
    assert invocation(serving_host, PRODUCTION) == before
    assert not done.named("production.down")


def test_a_step_that_fails_fails_its_phase_and_the_others_still_run(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"][1]["steps"] = [{"command": {"argv": ["/bin/false"]}}, {"command": {"argv": ["/bin/true"]}}]
    done = desk.run()
    assert done.code == 1
    states = [[step["state"] for step in phase["steps"]] for phase in desk.status()["phases"]]
    assert states == [["verified"], ["failed", "verified"], ["verified"]]
    assert answers(serving_host, Standin())


def test_a_stage_that_outlasts_its_limit_is_ended_by_the_host(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"] = [
        {"name": "slow", "serve": PRODUCTION, "steps": [{"command": {"argv": ["/bin/sleep", "600"], "limit": "2s"}}]},
    ]
    done = desk.run()
    assert done.code == 1
    [step] = desk.status()["phases"][0]["steps"]
    assert step["state"] == "failed"
    assert serving_host.exec("pgrep", "-f", "sleep 600", check=False).stdout == ""


def test_a_variant_that_cannot_load_ends_the_campaign_and_production_is_back(desk: Desk, serving_host: LabHost) -> None:
    desk.inventory["services"][f"{PRODUCTION}-profiler"]["env"] = {"STANDIN_FAULT": "dies-at-shard=2"}
    desk.playbook["phases"].append(
        {"name": "after", "serve": "nothing", "steps": [{"command": {"argv": ["/bin/true"]}}]}
    )
    done = desk.run()
    assert done.code == 1
    record = desk.status()
    assert [phase["state"] for phase in record["phases"]] == ["verified", "verified", "failed", "skipped"]
    assert record["production"][0]["verified"]
    assert answers(serving_host, Standin())


def test_sigint_stops_restores_and_ends_130(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"][1]["steps"] = [{"command": {"argv": ["/bin/sleep", "300"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGINT)
    done = running.wait()
    assert done.code == 130, done.out[-2000:]
    assert answers(serving_host, Standin())
    assert serving_host.exec("pgrep", "-f", "sleep 300", check=False).stdout == ""
    record = desk.status()
    assert record["outcome"] == "interrupted"
    assert record["production"][0]["verified"]
    assert [step["state"] for phase in record["phases"] for step in phase["steps"]] == ["verified", "failed", "skipped"]


def test_a_second_controller_is_told_who_holds_the_host(desk: Desk, tmp_path: Path) -> None:
    desk.playbook["phases"] = [
        {"name": "slow", "serve": PRODUCTION, "steps": [{"command": {"argv": ["/bin/sleep", "300"]}}]},
    ]
    running = desk.start_run()
    running.await_event("step.begun")
    other = Desk(tmp_path / "other", desk.hosts, desk.inventory)
    other.folder.mkdir()
    refused = other.run()
    assert refused.code == 4
    assert "is held by" in refused.out
    running.process.send_signal(signal.SIGTERM)
    assert running.wait().code == 130


def test_two_hosts_are_armed_in_order_and_one_failure_restores_both(
    lab_hosts: Callable[[int], list[LabHost]],
    make_desk: Callable[[list[LabHost]], Desk],
) -> None:
    hosts = lab_hosts(2)
    for host in hosts:
        install(host, Standin())
    set_fault(hosts[1], f"{PRODUCTION}-profiler", "dies-at-shard=2")
    desk = make_desk(hosts)
    done = desk.run()
    assert done.code == 1, done.out[-3000:]
    armed = [event["host"] for event in done.named("lease.armed")]
    assert armed == sorted(host.name for host in hosts)
    for host in hosts:
        assert answers(host, Standin())
    assert all(production["verified"] for production in desk.status()["production"])


def test_the_terminal_without_a_terminal_is_plain_lines(desk: Desk) -> None:
    desk.playbook["phases"] = desk.playbook["phases"][:1]
    done = desk.opsctl("run", "small.yml")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert done.out.strip().splitlines()[-1].startswith(f"production {PRODUCTION} on ")


def test_the_plan_changes_nothing(desk: Desk, serving_host: LabHost) -> None:
    def everything() -> str:
        # Log-ins come and go with our own looking.
        passing = ("session-", "user-", "user@", ".scope", "run-user")
        units = serving_host.exec("systemctl", "list-units", "--plain", "--no-legend").stdout.splitlines()
        return "\n".join(sorted(line for line in units if not any(word in line for word in passing)))

    before, started = everything(), invocation(serving_host, PRODUCTION)
    done = desk.opsctl("plan", "small.yml", "--json")
    assert done.code == 0, done.err
    assert everything() == before
    assert invocation(serving_host, PRODUCTION) == started
    assert json.loads(done.out)


def test_help_is_quick_to_load_and_loads_nothing_heavy() -> None:
    script = (
        "import sys; from opsctl.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'fabric', 'paramiko', 'gi', 'pydbus', 'plotly', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rollback" in done.stdout

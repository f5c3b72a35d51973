"""After a crash: status is true, resume goes on, rollback and the guard bring production back, collect fetches."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, breaches
from tests.campaign.conftest import Desk, active, answers

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"
SLEEP = {"command": {"argv": ["/bin/sh", "-c", "sleep 6; echo done > out.txt"], "collect": ["out.txt"]}}


def killed_while_production_is_down(desk: Desk) -> str:
    """Start a campaign, kill its controller in the middle of the phase without a server; return the run."""
    desk.playbook["phases"][1]["steps"] = [SLEEP]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    return desk.last_run


def await_answer(host: LabHost, seconds: float) -> float:
    """Wait until production answers; return how long it took."""
    began = time.monotonic()
    while not answers(host, Standin()):
        assert time.monotonic() - began < seconds, "production did not come back"
    return time.monotonic() - began


def test_a_dead_controller_is_shown_as_dead_and_resume_goes_on_from_the_stage_that_still_runs(
    desk: Desk,
    serving_host: LabHost,
    tmp_path: Path,
) -> None:
    run = killed_while_production_is_down(desk)
    record = desk.status()
    assert record["outcome"] == "controller died"
    assert not record["production"][0]["verified"]
    baseline_ended = record["phases"][0]["steps"][0]["ended"]
    assert not answers(serving_host, Standin())
    picture = desk.opsctl("status", run)
    assert "controller died" in picture.out
    assert "DOWN" in picture.out
    assert f"opsctl resume {run}" in picture.out.replace("\n", " ")

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    resumed = desk.opsctl("resume", run, "--json", folder=elsewhere)

    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    after = desk.status()
    assert after["outcome"] == "verified"
    assert after["phases"][0]["steps"][0]["ended"] == baseline_ended, (
        "what was verified and is unchanged is not done again"
    )
    assert [step["state"] for phase in after["phases"] for step in phase["steps"]] == ["verified"] * 3
    assert after["production"][0]["verified"]
    assert after["production"][0]["downtime_seconds"] > 0
    assert answers(serving_host, Standin())
    assert active(serving_host, "vllm-router"), "the dependents of production before the crash is back"
    assert breaches(serving_host) == []


def test_without_anybody_the_guard_brings_production_back_and_resume_says_so(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["lease"] = {"ttl": "15s"}
    run = killed_while_production_is_down(desk)
    took = await_answer(serving_host, 90)
    assert took > 1, "production was down, and came back by the guard alone"
    assert active(serving_host, "vllm-router")

    resumed = desk.opsctl("resume", run, "--json")

    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    assert "the guard acted meanwhile" in resumed.out
    assert desk.status()["outcome"] == "verified"
    assert answers(serving_host, Standin())


def test_a_changed_step_is_measured_anew(desk: Desk) -> None:
    run = killed_while_production_is_down(desk)
    desk.playbook["phases"][0]["steps"] = [{"command": {"argv": ["/bin/echo", "other"]}}]
    before = desk.status()["phases"][0]["steps"][0]["ended"]
    resumed = desk.opsctl("resume", run, "--json")
    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    step = desk.status()["phases"][0]["steps"][0]
    assert step["options"]["argv"] == ["/bin/echo", "other"]
    assert step["ended"] > before


def test_rollback_from_another_desk_fences_the_run_off_and_may_be_repeated(
    desk: Desk,
    serving_host: LabHost,
    tmp_path: Path,
) -> None:
    desk.playbook["phases"][1]["steps"] = [{"command": {"argv": ["/bin/sleep", "300"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    other = Desk(tmp_path / "other", desk.hosts, desk.inventory)
    other.folder.mkdir()

    back = other.opsctl("rollback", serving_host.name, "--json")

    assert back.code == 0, back.out + back.err
    [done] = json.loads(back.out)["hosts"]
    assert done["verified"]
    assert done["acted"]
    assert answers(serving_host, Standin())
    assert active(serving_host, "vllm-router")
    fenced = running.wait()
    assert fenced.code == 1, "the fenced run touches nothing, and sees that production serves"
    assert "broken by" in fenced.out
    again = other.opsctl("rollback", serving_host.name, "--json")
    assert again.code == 0, again.out + again.err
    assert not json.loads(again.out)["hosts"][0]["acted"]


def test_what_is_said_of_a_dead_run_agrees_before_and_after_a_rollback(desk: Desk, serving_host: LabHost) -> None:
    run = killed_while_production_is_down(desk)
    again = desk.run()
    assert again.code == 4
    assert f"opsctl resume {run}" in again.out + again.err
    assert "held by" not in again.named("run.ended")[0]["data"]["error"][2]
    planned = desk.opsctl("plan", "small.yml")
    assert planned.code == 4
    assert f"opsctl resume {run}" in planned.out
    reported = desk.opsctl("report", run)
    assert reported.code == 3
    assert "went DOWN" in reported.out

    back = desk.opsctl("rollback", serving_host.name)

    assert back.code == 0, back.out + back.err
    shown = desk.opsctl("status", run).out
    assert "back and verified by the rollback" in shown
    assert "went DOWN" not in shown
    assert desk.opsctl("report", run).code == 0
    assert desk.run().code == 0


def test_rollback_starts_what_somebody_stopped_by_hand(desk: Desk, serving_host: LabHost) -> None:
    serving_host.systemctl("stop", f"{PRODUCTION}.service")
    assert not active(serving_host, "vllm-router")
    back = desk.opsctl("rollback", serving_host.name)
    assert back.code == 0, back.out + back.err
    assert answers(serving_host, Standin())
    assert active(serving_host, "vllm-router")


def test_results_that_only_the_host_has_are_collected(desk: Desk, serving_host: LabHost) -> None:
    run = killed_while_production_is_down(desk)
    unit = desk.status()["phases"][1]["steps"][0]
    assert unit["state"] == "running"
    assert desk.opsctl("rollback", serving_host.name).code == 0
    collected = desk.opsctl("collect", run, "--json")
    assert collected.code == 0, collected.out + collected.err
    step = desk.status()["phases"][1]["steps"][0]
    assert step["state"] in {"verified", "failed"}, "it ended, by itself or with the slice: either is a verdict"
    assert step["result"]["artifacts"]


def test_a_controller_that_slept_past_its_lease_touches_nothing(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["lease"] = {"ttl": "15s"}
    desk.playbook["phases"][1]["steps"] = [{"command": {"argv": ["/bin/sleep", "300"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGSTOP)
    await_answer(serving_host, 90)
    running.process.send_signal(signal.SIGCONT)
    done = running.wait()
    assert done.code == 1, done.out[-3000:]
    assert done.named("lease.lost")
    assert desk.status()["production"][0]["restored_by"] == "guard"
    assert answers(serving_host, Standin())


def test_a_reboot_in_the_middle_ends_the_lease_and_production_is_up(
    standin_host: LabHost,
    make_desk: Callable[[list[LabHost]], Desk],
) -> None:
    desk = make_desk([standin_host])
    desk.playbook["phases"][1]["steps"] = [{"command": {"argv": ["/bin/sleep", "300"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    standin_host.reboot()
    done = running.wait()
    assert done.code == 1, done.out[-3000:]
    assert desk.status()["production"][0]["restored_by"] == "guard"
    await_answer(standin_host, 60)
    assert breaches(standin_host) == []


def test_the_list_of_runs_tells_how_each_ended(desk: Desk) -> None:
    desk.playbook["phases"] = desk.playbook["phases"][:1]
    assert desk.run().code == 0
    [run] = json.loads(desk.opsctl("runs", "--json").out)
    assert run["outcome"] == "verified"
    assert run["exit_code"] == 0
    assert run["run"] in desk.opsctl("runs").out
    nothing = desk.opsctl("resume", run["run"])
    assert "nothing to resume" in nothing.err


ONCE = "test -e {mark} && exit 0; touch {mark}; exec sleep 300"


def test_resume_goes_on_after_the_guard_ended_a_stage_and_restored_production(
    desk: Desk, serving_host: LabHost, tmp_path: Path
) -> None:
    desk.playbook["lease"] = {"ttl": "15s"}
    step = {"argv": ["/bin/sh", "-c", ONCE.format(mark=f"/run/{tmp_path.name}")]}
    desk.playbook["phases"][1]["steps"] = [{"command": step}]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    await_answer(serving_host, 90)

    resumed = desk.opsctl("resume", "--json")

    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    record = desk.status()
    assert [step["state"] for phase in record["phases"] for step in phase["steps"]] == ["verified"] * 3
    assert answers(serving_host, Standin())
    plans = {action["plan"] for action in record["actions"]}
    assert plans == {1, 2}
    second = [action for action in record["actions"] if action["plan"] == 2 and action["branch"] == "main"]
    assert [action["state"] for action in second] == ["verified"] * len(second)
    assert "baseline/1-command" not in {action["id"] for action in second}, "what is verified is not planned again"


def test_resume_takes_up_a_variant_that_serves_and_its_stage(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"][2]["steps"] = [SLEEP, {"command": {"argv": ["/bin/true"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="variant")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    resumed = desk.opsctl("resume", "--json")
    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    record = desk.status()
    assert len([load for load in record["loads"] if load["service"] != PRODUCTION]) == 1, (
        "the variant was not loaded anew"
    )
    (taken_up,) = [event["data"] for event in resumed.named("service.ready") if event["phase"] == "variant"]
    asked = [item["asked"] for item in taken_up["evidence"]]
    assert any(one.startswith("/proc/") for one in asked), "the process that was found is proven too"
    assert answers(serving_host, Standin())


def test_resume_restores_production_that_served_whatever_if_down_says(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"][1]["steps"] = [SLEEP]
    running = desk.start_run("--if-down", "leave")
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    resumed = desk.opsctl("resume", "--json")
    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    assert answers(serving_host, Standin())


def test_resume_with_a_broken_playbook_says_that_production_is_down(desk: Desk, serving_host: LabHost) -> None:
    run = killed_while_production_is_down(desk)
    whole = json.dumps(desk.playbook)
    desk.playbook["phases"][0]["serves"] = "x"
    resumed = desk.opsctl("resume", run)
    assert resumed.code == 3, resumed.out + resumed.err
    assert "small.yml:" in resumed.out + resumed.err
    assert "nothing was touched" not in resumed.out
    assert resumed.out.strip().splitlines()[-2].startswith("PRODUCTION NOT VERIFIED")
    assert desk.status()["outcome"] == "production not verified"
    desk.playbook = json.loads(whole)
    assert desk.opsctl("resume", run, "--json").code == 0
    assert answers(serving_host, Standin())


def test_a_run_that_a_person_left_is_not_one_whose_controller_died(desk: Desk, serving_host: LabHost) -> None:
    desk.playbook["phases"][1]["steps"] = [SLEEP]
    running = desk.start_run()
    running.await_event("step.progress", phase="alone")
    running.process.send_signal(signal.SIGINT)
    running.await_error("SIGINT: stopping")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(10) == 3
    assert f"opsctl rollback {serving_host.name}" in running.errors.read_text(), "its last words say what to type"
    record = desk.status()
    assert record["outcome"] == "left"
    assert "left at once" in record["reason"]
    assert record["now"][serving_host.name]["seen"]
    assert "left at once" in desk.opsctl("status").out
    resumed = desk.opsctl("resume", "--json")
    assert resumed.code == 0, resumed.out[-3000:] + resumed.err
    assert answers(serving_host, Standin())


def test_rollback_whose_reader_goes_away_ends_as_production_does(desk: Desk, serving_host: LabHost) -> None:
    serving_host.systemctl("stop", f"{PRODUCTION}.service")
    desk.write()
    script = '"$@" 2>&1 | head -n 1; exit "${PIPESTATUS[0]}"'
    done = subprocess.run(
        ["bash", "-c", script, "sh", *desk.argv("rollback", serving_host.name)],
        cwd=desk.folder, env=desk.environment(), capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert answers(serving_host, Standin()), "exit 0 says that production serves"

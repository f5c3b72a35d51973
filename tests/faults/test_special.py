"""Faults that belong to one state: of production's unit, of the variant, of a stage; and productions of other kinds."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import breaches, set_fault
from tests.faults.bench import (
    BOUND,
    CAMPAIGN,
    LOOK_EVERY,
    PRODUCTION,
    PROFILER,
    Bench,
    Controller,
    short,
    standin,
    until,
)
from tests.faults.cell import Outcome, check_words, keep
from tests.faults.table import FAILED, KILLED, VERIFIED

pytestmark = [pytest.mark.lab, pytest.mark.faults, pytest.mark.timeout(420)]

FREED = "mutation stop after#1"
LOADING = "mutation start after#1"
ON_FREE_GPUS = "mutation start stage after#2"


def settle(bench: Bench, controller: Controller, began: float, *, wanted: set[int], state: str, fault: str) -> None:
    """Wait for the end, judge it, and write it down."""
    bound = BOUND + CAMPAIGN
    code = controller.wait(bound + 60)
    serving = bench.answers()
    until(
        bench.at_rest, bound, "production's return", lambda: f"{bench.lease()}\n{controller.tail()}", every=LOOK_EVERY
    )
    seconds = time.monotonic() - began
    assert code in wanted, f"exit {code}, wanted {wanted}\n{controller.tail()}"
    check_words(code, controller, serving=serving)
    assert breaches(bench.host) == []
    by = bench.lease().get("closed_by", "")
    restored_by = "guard" if by == "guard" else "controller" if by else "nobody had to"
    keep(Outcome(state, fault, code, round(seconds, 1), bound, restored_by, controller.last_line))


def run_whole(bench: Bench, *, wanted: set[int], state: str, fault: str) -> Controller:
    """Run the campaign to its end with nothing more done to it."""
    began = time.monotonic()
    controller = bench.run()
    try:
        settle(bench, controller, began, wanted=wanted, state=state, fault=fault)
    finally:
        controller.end()
    return controller


def run_killed(bench: Bench, edge: str, *, state: str, fault: str, before: Callable[[], object] = lambda: None) -> None:
    """Kill the controller at an edge, and leave everything to the guard."""
    controller = bench.frozen_at(edge)
    try:
        before()
        began = time.monotonic()
        controller.signal(signal.SIGKILL)
        settle(bench, controller, began, wanted={KILLED}, state=state, fault=fault)
    finally:
        controller.end()


def replace_step(bench: Bench, phase: int, step: dict[str, Any]) -> None:
    bench.playbook["phases"][phase]["steps"] = [step]


@pytest.fixture
def bench(fresh_lab_host: LabHost, tmp_path: Path) -> Bench:
    return Bench.build(fresh_lab_host, tmp_path)


# -- production's unit fails to start the first two times


def test_production_fails_twice_and_the_controller_restores(bench: Bench) -> None:
    set_fault(bench.host, PRODUCTION, "bad-arguments,times=2")
    run_whole(bench, wanted={VERIFIED}, state="restoring", fault="production's unit fails to start twice")


def test_production_fails_twice_and_the_guard_restores(bench: Bench) -> None:
    def doom() -> None:
        set_fault(bench.host, PRODUCTION, "bad-arguments,times=2")

    run_killed(bench, FREED, state="stopped", fault="SIGKILL, and production's unit fails to start twice", before=doom)


def test_production_dies_loading_twice_and_the_guard_restores(bench: Bench) -> None:
    def doom() -> None:
        set_fault(bench.host, PRODUCTION, "dies-at-shard=2,times=2")

    run_killed(
        bench, LOADING, state="loading the variant", fault="SIGKILL, and production dies loading twice", before=doom
    )


# -- the variant


def test_the_variant_is_stuck_loading(bench: Bench) -> None:
    bench.changes[PROFILER] = {
        "env": {"STANDIN_FAULT": "stuck-at-shard=3"},
        "readiness": {"limit": "10s", "settle": "1s"},
    }
    run_whole(bench, wanted={FAILED}, state="loading the variant", fault="the variant is stuck loading")


def test_the_variant_dies_loading(bench: Bench) -> None:
    bench.changes[PROFILER] = {"env": {"STANDIN_FAULT": "dies-at-shard=3"}}
    run_whole(bench, wanted={FAILED}, state="loading the variant", fault="the variant dies loading")


def test_the_variant_refuses_sigterm(bench: Bench) -> None:
    bench.changes[PROFILER] = {"env": {"STANDIN_FAULT": "ignores-sigterm"}}
    run_whole(bench, wanted={VERIFIED}, state="restoring", fault="the variant refuses SIGTERM")


def test_the_guard_ends_a_variant_that_refuses_sigterm(bench: Bench) -> None:
    bench.changes[PROFILER] = {"env": {"STANDIN_FAULT": "ignores-sigterm"}}
    run_killed(
        bench, "mutation start stage after#3", state="stage on the variant (serving-benchmark)",
        fault="SIGKILL, and the variant refuses SIGTERM",
    )  # fmt: skip


def test_production_refuses_sigterm(fresh_lab_host: LabHost, tmp_path: Path) -> None:
    bench = Bench.build(fresh_lab_host, tmp_path, standin(fault="ignores-sigterm"))
    run_whole(bench, wanted={VERIFIED}, state="stopping production", fault="production refuses SIGTERM")


# -- stages


def test_a_stage_hangs(bench: Bench) -> None:
    replace_step(bench, 1, {"command": {"argv": ["/bin/sleep", "600"], "limit": "3s"}})
    run_whole(bench, wanted={FAILED}, state="stage on free GPUs (command)", fault="the stage hangs")


def test_a_stage_hangs_and_the_guard_ends_it(bench: Bench) -> None:
    replace_step(bench, 1, {"command": {"argv": ["/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}})
    state, fault = "stage on free GPUs (command)", "SIGKILL, and the stage refuses SIGTERM"
    run_killed(bench, ON_FREE_GPUS, state=state, fault=fault)
    assert bench.host.exec("pgrep", "-f", "trap '' TERM", check=False).stdout == ""


def test_a_stage_dies(bench: Bench) -> None:
    replace_step(bench, 1, {"command": {"argv": ["/bin/sh", "-c", "kill -9 $PPID; sleep 5"]}})
    run_whole(bench, wanted={FAILED}, state="stage on free GPUs (command)", fault="the stage dies")


def test_a_stage_fills_its_output(bench: Bench) -> None:
    """The disk is nearly full from the moment the stage starts: a preflight would have refused it before."""
    replace_step(bench, 1, {"command": {"argv": ["/bin/sh", "-c", "exec cat /dev/zero"], "limit": "30s"}})
    controller = bench.frozen_at("mutation start stage before#2")
    try:
        left = "fallocate -l $(($(df --output=avail -B1 /var | tail -n 1) - 40000000)) /var/ballast"
        bench.host.exec("sh", "-c", left)
        began = time.monotonic()
        controller.thaw()
        state, fault = "stage on free GPUs (command)", "the stage fills its output"
        settle(bench, controller, began, wanted={FAILED}, state=state, fault=fault)
    finally:
        controller.end()


def test_stop_profile_hangs(bench: Bench) -> None:
    bench.changes[PROFILER] = {"env": {"STANDIN_FAULT": "hanging-stop-profile"}}
    bench.playbook = short("variant")
    bench.playbook["phases"][2]["steps"][1]["profile"]["flush-limit"] = "3s"
    run_whole(bench, wanted={FAILED}, state="stage on the variant (profile)", fault="/stop_profile hangs")


# -- productions of other kinds, restored by the guard


def test_a_router_that_requires_production_comes_back_with_the_guard(fresh_lab_host: LabHost, tmp_path: Path) -> None:
    bench = Bench.build(fresh_lab_host, tmp_path, with_router=True)
    run_killed(bench, FREED, state="stopped", fault="SIGKILL, and a router requires production")
    assert bench.active("vllm-router")


def test_a_router_that_requires_production_comes_back_with_the_controller(
    fresh_lab_host: LabHost, tmp_path: Path
) -> None:
    bench = Bench.build(fresh_lab_host, tmp_path, with_router=True)
    run_whole(bench, wanted={VERIFIED}, state="restoring", fault="a router requires production")
    assert bench.active("vllm-router")


@pytest.mark.parametrize("kind", ["enabled", "template instance"])
def test_production_of_another_kind(fresh_lab_host: LabHost, tmp_path: Path, kind: str) -> None:
    changes: dict[str, Any] = {"enabled": True} if kind == "enabled" else {"unit": "vllm@kimi"}
    bench = Bench.build(fresh_lab_host, tmp_path, standin(**changes))
    run_killed(bench, ON_FREE_GPUS, state="stage on free GPUs (command)", fault=f"SIGKILL, and production is {kind}")

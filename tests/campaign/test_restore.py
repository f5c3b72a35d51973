"""A restore never stops a server that answers: what production is, from one look, and what a restore then does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opsctl.campaign.restore import Standing, standing_of
from opsctl.errors import NotReady
from opsctl.host.protocol import UnitStatus
from opsctl.lab.hosts import LabHost
from opsctl.lab.standin.faults import FAULT_FOLDER
from opsctl.lab.units import Standin, install
from opsctl.serving.probing import ProbeOutcome
from opsctl.serving.readiness import Serving, ServingState
from tests.campaign.conftest import Desk, active, answers, invocation

PRODUCTION = "vllm-kimi-k25-int4"
RUNS = UnitStatus("u", "loaded", "active", "running")
BOOTS = UnitStatus("u", "loaded", "activating", "start-pre")
GONE = UnitStatus("u", "loaded", "failed", "failed")


def look(state: Serving, status: UnitStatus | None, problem: ProbeOutcome | None = None) -> ServingState:
    return ServingState(state, "seen", status, problem=problem)


@pytest.mark.parametrize(
    ("state", "silent", "standing"),
    [
        (look(Serving.SERVING, RUNS), True, Standing.VERIFIED),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.UNAUTHORIZED), True, Standing.ANSWERING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.OTHER_MODEL), True, Standing.ANSWERING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.FOREIGN), True, Standing.ANSWERING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.UNTRUSTED), True, Standing.ANSWERING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.EMPTY), True, Standing.ANSWERING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.CROWDED), True, Standing.ANSWERING),
        (look(Serving.LOADING, RUNS, ProbeOutcome.REFUSED), False, Standing.LOADING),
        (look(Serving.LOADING, BOOTS), False, Standing.LOADING),
        (look(Serving.UNKNOWN, RUNS, ProbeOutcome.TIMEOUT), False, Standing.LOADING),
        (look(Serving.LOADING, RUNS, ProbeOutcome.REFUSED), True, Standing.SILENT),
        (look(Serving.DOWN, RUNS, ProbeOutcome.REFUSED), False, Standing.SILENT),
        (look(Serving.DOWN, GONE), False, Standing.DEAD),
        (look(Serving.UNKNOWN, GONE, ProbeOutcome.UNAUTHORIZED), False, Standing.DEAD),
    ],
)
def test_what_production_is_to_a_restore(state: ServingState, standing: Standing, *, silent: bool) -> None:
    assert standing_of(state, silent=silent) is standing


def test_a_unit_that_cannot_be_read_is_not_stopped() -> None:
    with pytest.raises(NotReady, match="could not be read"):
        standing_of(look(Serving.UNKNOWN, None), silent=True)


@pytest.mark.lab
@pytest.mark.parametrize(
    "change",
    ["echo another-key >/etc/kimi.key", "rm /etc/kimi.key"],
    ids=["the key was rotated", "the key file is gone"],
)
def test_production_that_answers_and_cannot_be_verified_is_left_running(
    fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk], change: str
) -> None:
    install(fresh_lab_host, Standin(environment={"VLLM_API_KEY": "the-key"}))
    fresh_lab_host.write_file("/etc/kimi.key", "the-key\n")
    desk = make_desk([fresh_lab_host])
    desk.inventory["services"][PRODUCTION]["api-key-file"] = "/etc/kimi.key"
    step = {"command": {"argv": ["/bin/sh", "-c", change]}}
    desk.playbook["phases"] = [{"name": "alone", "serve": "nothing", "steps": [step]}]

    done = desk.run()

    assert done.code == 3, done.out[-3000:] + done.err
    assert "runs and answers, and cannot be verified" in done.out
    assert active(fresh_lab_host, PRODUCTION)
    started = invocation(fresh_lab_host, PRODUCTION)
    record = desk.status()
    assert [load["service"] for load in record["loads"]] == [PRODUCTION], "started once, never stopped again"
    assert record["outcome"] == "production not verified"
    states = {action["id"]: action["state"] for action in record["actions"]}
    assert states["give-back/await-ready"] == "failed"
    assert states["restore/clear"] == "failed"
    assert states["give-back/release"] == "skipped"
    assert invocation(fresh_lab_host, PRODUCTION) == started


@pytest.mark.lab
def test_production_that_loads_in_silence_is_started_anew_after_its_limit(
    fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk]
) -> None:
    install(fresh_lab_host, Standin())
    desk = make_desk([fresh_lab_host])
    desk.inventory["services"][PRODUCTION]["readiness"] = {"limit": "12s", "settle": "1s"}
    fault = f"mkdir -p {FAULT_FOLDER} && echo stuck-at-shard=2,times=1 >{FAULT_FOLDER}/{PRODUCTION}.service"
    step = {"command": {"argv": ["/bin/sh", "-c", fault]}}
    desk.playbook["phases"] = [{"name": "alone", "serve": "nothing", "steps": [step]}]

    done = desk.run()

    assert done.code == 0, done.out[-3000:] + done.err
    outcomes = [load["outcome"] for load in desk.status()["loads"]]
    assert len(outcomes) == 2, outcomes
    assert outcomes[1] == "ready"
    assert answers(fresh_lab_host, Standin())

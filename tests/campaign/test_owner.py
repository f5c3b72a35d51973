"""The controller's restore and its steps, where nobody takes production's port during the outage."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, install
from opsctl.serving.listening import Holding, PortHolder
from opsctl.serving.readiness import Ready
from tests import decoy
from tests.campaign.conftest import Desk, active

PRODUCTION = "vllm-kimi-k25-int4"
PROFILER = f"{PRODUCTION}-profiler"
_START = f"systemd-run --quiet --uid=65534 --unit=decoy --property=Restart=always --property=RestartSec=100ms \
--property=StartLimitIntervalSec=0 /usr/bin/python3 {decoy.PATH} 8000 kimi-k2.5"
_UP = "until ss -Hltn | grep -q 127.0.0.1:8000; do sleep 0.1; done"


@pytest.fixture
def keyed_desk(fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk]) -> Desk:
    install(fresh_lab_host, Standin(environment={"VLLM_API_KEY": "the-key"}))
    fresh_lab_host.write_file("/etc/kimi.key", "the-key\n", 0o600)
    decoy.put(fresh_lab_host)
    desk = make_desk([fresh_lab_host])
    desk.inventory["services"][PRODUCTION]["api-key-file"] = "/etc/kimi.key"
    return desk


@pytest.mark.lab
@pytest.mark.parametrize("phase", ["nothing", PROFILER])
def test_a_decoy_is_not_taken_for_production(keyed_desk: Desk, fresh_lab_host: LabHost, phase: str) -> None:
    """It is named, sent nothing, and left alone; once it is gone, production comes back and is verified."""
    stop = f"systemctl stop {PROFILER}; " if phase == PROFILER else ""
    step = {"command": {"argv": ["/bin/sh", "-c", f"{stop}{_START}; {_UP}"]}}
    keyed_desk.playbook["phases"] = [{"name": "attacked", "serve": phase, "steps": [step]}]
    running = keyed_desk.start_run()
    try:
        attempt = running.await_event("restore.attempt")
        assert active(fresh_lab_host, "decoy"), "the decoy was ended"
        assert "decoy.py" in json.dumps(attempt), attempt
        assert "nobody" in json.dumps(attempt), attempt
    finally:
        fresh_lab_host.systemctl("stop", "decoy", check=False)
    done = running.wait()
    assert decoy.received(fresh_lab_host) == ""
    assert done.code == (1 if phase == PROFILER else 0), done.out[-3000:] + done.err
    assert active(fresh_lab_host, PRODUCTION)
    assert keyed_desk.status()["loads"][-1]["outcome"] == "ready"
    if phase == PROFILER:
        assert "it may have measured a stranger" in done.out


@pytest.mark.parametrize(
    ("held", "version", "phases", "known"),
    [
        (Holding.OURS, None, {}, True),
        (Holding.AS_ARMED, None, {}, True),
        (Holding.UNKNOWN, "0.11", {"weights": 3.0}, True),
        (Holding.UNKNOWN, None, {"weights": 3.0}, False),
        (Holding.UNKNOWN, "0.11", {}, False),
        (Holding.NOBODY, "0.11", {"weights": 3.0}, False),
        (Holding.OTHER, "0.11", {"weights": 3.0}, False),
        (None, "0.11", {"weights": 3.0}, False),
    ],
)
def test_a_load_counts_only_with_whole_evidence(
    held: Holding | None, version: str | None, phases: dict[str, float], known: bool
) -> None:
    holder = PortHolder(held, "seen") if held else None
    assert Ready((), version, 1.0, phases, held=holder).load_known is known

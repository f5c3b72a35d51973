"""Production measured at night: only while nobody else uses it, never taken down, and honest about a bad night."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from tests.campaign.conftest import Desk, answers, invocation

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"


@contextmanager
def traffic(host: LabHost) -> Iterator[None]:
    """Other people's requests, from the host itself: two streams, one request after the other."""
    standin = Standin()
    body = json.dumps({"model": standin.served, "prompt": "other people", "max_tokens": 200, "ignore_eos": True})
    ask = f"curl -s -o /dev/null -H 'content-type: application/json' -d '{body}' {standin.url}/v1/completions"
    loop = f"while :; do {ask}; done"
    host.exec("systemd-run", "--quiet", "--unit=other-people", "sh", "-c", f"{loop} & {loop}")
    try:
        yield
    finally:
        host.systemctl("stop", "other-people.service")


def nightly(desk: Desk, *, wait: str, requests: int) -> Desk:
    step = {
        "serving-benchmark": {
            "concurrency": [1, 2],
            "input-tokens": 16,
            "output-tokens": 8,
            "requests": requests,
            "rounds": 1,
            "quiet": {"wait": wait, "stable": "1s"},
        }
    }
    desk.playbook["phases"] = [{"name": "production", "serve": PRODUCTION, "steps": [step]}]
    return desk


def test_a_server_in_use_is_left_alone_and_the_night_is_inconclusive(desk: Desk, serving_host: LabHost) -> None:
    before = invocation(serving_host, PRODUCTION)
    with traffic(serving_host):
        done = nightly(desk, wait="3s", requests=4).run()
    assert done.code == 5, done.out[-2000:] + done.err
    [step] = desk.status()["phases"][0]["steps"]
    assert step["state"] == "inconclusive"
    assert {cell["state"] for cell in step["result"]["cells"]} == {"skipped"}
    assert all("was not quiet for 1 s within 3 s" in cell["reason"] for cell in step["result"]["cells"])
    assert invocation(serving_host, PRODUCTION) == before
    assert answers(serving_host, Standin())


def test_traffic_in_the_middle_stops_the_measurement(desk: Desk, serving_host: LabHost) -> None:
    before = invocation(serving_host, PRODUCTION)
    running = nightly(desk, wait="30s", requests=2000).start_run()
    running.await_event("step.progress", message="concurrency=1, round 1")
    with traffic(serving_host):
        done = running.wait()
    assert done.code == 5, done.out[-2000:] + done.err
    [step] = desk.status()["phases"][0]["steps"]
    states = [cell["state"] for cell in step["result"]["cells"]]
    assert states == ["inconclusive", "skipped"]
    assert "other traffic came" in step["result"]["reason"]
    assert invocation(serving_host, PRODUCTION) == before

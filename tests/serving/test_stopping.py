"""Taking a service down on a real host: drain, SIGTERM, and what had to be killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from opsctl.engines import ENGINES
from opsctl.errors import Interrupted, UnitNotFound
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from opsctl.playbook.models import Stopping
from opsctl.serving.probing import requests_in_flight
from opsctl.serving.stopping import stop_service
from tests.serving.conftest import limit, service_for

LONG_REQUEST = (
    "curl -s -m 60 http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' -d "
    '\'{"model": "kimi-k2.5", "prompt": "a", "max_tokens": %d, "ignore_eos": true}\''
)

VLLM = ENGINES["vllm"].routes


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    return reach(fresh_lab_host)


@pytest.mark.lab
def test_a_healthy_server_stops_and_the_record_says_so(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin())
    record = stop_service(host.systemd(), host, service_for(Standin()), deadline=limit(30))
    assert (record.was_running, record.result, record.killed) == (True, "success", ())
    assert record.requests_left == 0
    assert record.drained is None, "no drain was asked for"
    assert record.evidence[-1].observed.startswith("inactive")
    again = stop_service(host.systemd(), host, service_for(Standin()), deadline=limit(30))
    assert not again.was_running


@pytest.mark.lab
def test_a_unit_that_is_not_there_is_an_error(host: Host) -> None:
    with pytest.raises(UnitNotFound):
        stop_service(host.systemd(), host, service_for(Standin(unit="none")), deadline=limit())


@pytest.mark.lab
def test_a_server_that_ignores_sigterm_is_recorded_as_killed(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(fault="ignores-sigterm", service=("TimeoutStopSec=1",)))
    record = stop_service(host.systemd(), host, service_for(Standin()), deadline=limit(30))
    assert record.result == "timeout"
    assert "ignored SIGTERM" in record.killed[0]


@pytest.mark.lab
def test_a_stop_that_outlasts_its_limit_is_killed_by_opsctl(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin = Standin(fault="ignores-sigterm", service=("TimeoutStopSec=300",))
    standin_unit(fresh_lab_host, standin)
    service = service_for(standin, stop=Stopping(limit=2.0))
    record = stop_service(host.systemd(), host, service, deadline=limit(60))
    assert any("was not down after 2 s and was killed" in words for words in record.killed)
    assert "vllm" in record.killed[0]
    assert fresh_lab_host.systemctl("is-active", service.unit, check=False) == "failed"


@pytest.mark.lab
def test_a_drain_waits_for_running_requests(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(environment={"STANDIN_TPOT": "0.05"}))
    answers: list[str] = []
    asked = threading.Thread(
        target=lambda: answers.append(fresh_lab_host.exec("sh", "-c", LONG_REQUEST % 60, check=False).stdout)
    )
    asked.start()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if requests_in_flight(fresh_lab_host.exec("curl", "-s", "http://127.0.0.1:8000/metrics").stdout, VLLM):
            break
    record = stop_service(host.systemd(), host, service_for(Standin(), stop=Stopping(drain=30.0)), deadline=limit(60))
    asked.join(20)
    assert (record.drained, record.requests_left) == (True, 0)
    assert '"completion_tokens":60' in answers[0].replace(" ", ""), "the request was answered whole"


@pytest.mark.lab
def test_a_drain_is_bounded_and_can_be_cancelled(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(environment={"STANDIN_TPOT": "1"}))
    asked = threading.Thread(target=lambda: fresh_lab_host.exec("sh", "-c", LONG_REQUEST % 500, check=False))
    asked.start()
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if requests_in_flight(fresh_lab_host.exec("curl", "-s", "http://127.0.0.1:8000/metrics").stdout, VLLM):
            break
    draining = service_for(Standin(), stop=Stopping(drain=60.0))
    began = time.monotonic()
    with pytest.raises(Interrupted):
        stop_service(host.systemd(), host, draining, deadline=limit(60), cancelled=lambda: time.monotonic() > began + 1)
    assert fresh_lab_host.systemctl("is-active", draining.unit) == "active", "a cancelled drain leaves it serving"
    short = service_for(Standin(), stop=Stopping(drain=1.0))
    record = stop_service(host.systemd(), host, short, deadline=limit(60))
    asked.join(30)
    assert (record.drained, record.requests_left) == (False, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('vllm:num_requests_running{engine="0",model_name="k"} 3.0\nvllm:num_requests_waiting{engine="0"} 2.0\n', 5),
        ('vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_running{engine="1"} 4.0\n', 5),
        ("# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n", None),
        ("vllm:num_requests_running 1e+01\n", 10),
        ("", None),
    ],
)  # fmt: skip
def test_requests_in_flight_are_read_from_metrics(text: str, expected: int | None) -> None:
    assert requests_in_flight(text, VLLM) == expected

"""A real llama.cpp server on a lab host: readiness, routes, a refused profile, a whole campaign."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from opsctl.engines import ENGINES
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import journal
from opsctl.serving.load.explaining import explain
from opsctl.serving.probing import requests_in_flight
from tests.llama_cpp.conftest import SERVER

pytestmark = [pytest.mark.llamacpp, pytest.mark.lab, pytest.mark.timeout(600)]

BENCHMARK = {"serving-benchmark": {"concurrency": [1, 2], "input-tokens": 32, "output-tokens": 8, "rounds": 1}}
Opsctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def opsctl(tmp_path: Path, inventory: dict[str, Any]) -> Opsctl:
    """Return a function that runs opsctl with a playbook of these phases."""
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def call(*words: str, phases: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
        playbook = {"name": "llama", "hosts": "llamas", "phases": phases}
        (tmp_path / "playbook.yml").write_text(yaml.safe_dump(playbook, sort_keys=False))
        argv = [sys.executable, "-m", "opsctl", words[0], "playbook.yml", "-i", "inventory.yml", *words[1:]]
        environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "NO_COLOR": "1", "COLUMNS": "200"}
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=500
        )

    return call


def get(host: LabHost, route: str) -> tuple[int, str]:
    """Return status and body of a route, asked from inside the host."""
    done = host.exec("curl", "-s", "-m", "20", "-w", "\n%{http_code}", SERVER.url + route)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


def test_its_routes_are_as_its_engine_says(llama_host: LabHost) -> None:
    engine = ENGINES["llama.cpp"]
    assert get(llama_host, "/health")[0] == 200
    assert len(json.loads(get(llama_host, "/slots")[1])) == 4
    assert requests_in_flight(get(llama_host, "/metrics")[1], engine.routes) == 0
    (route, key), *_ = engine.routes.version
    assert key in json.loads(get(llama_host, route)[1])
    assert get(llama_host, "/start_profile")[0] == 404


def test_its_log_is_understood(llama_host: LabHost) -> None:
    said = explain(journal(llama_host, SERVER.unit))
    assert (said.engine, said.verdict) == ("llama.cpp", "serves")
    assert list(said.phases) == ["spawned", "engine init", "weights", "after weights", "HTTP up"]


def test_a_model_that_is_cut_short_is_explained(llama_host: LabHost) -> None:
    model = f"{SERVER.environment}/tiny.gguf"
    llama_host.exec("sh", "-c", f"head -c 5000000 {model} >/root/cut.gguf")
    done = llama_host.exec(SERVER.argv()[0], "--model", "/root/cut.gguf", "--port", "8090", check=False)
    assert done.returncode != 0
    said = explain(done.stdout + done.stderr, ENGINES["llama.cpp"])
    assert said.cause is not None
    assert said.cause.name == "model file is broken"
    assert not said.cause.transient


def test_a_profile_is_refused_before_the_outage(opsctl: Opsctl, llama_host: LabHost) -> None:
    before = llama_host.exec("systemctl", "show", "-p", "InvocationID", SERVER.service_name).stdout
    phase = {"name": "p", "serve": f"{SERVER.unit}-one-slot", "steps": [{"profile": {"windows": 1}}]}
    done = opsctl("run", phases=[phase])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot be profiled" in done.stdout + done.stderr
    assert "llama.cpp" in done.stdout + done.stderr
    assert llama_host.exec("systemctl", "show", "-p", "InvocationID", SERVER.service_name).stdout == before


def test_a_whole_campaign(opsctl: Opsctl, llama_host: LabHost) -> None:
    phases = [
        {"name": "baseline", "serve": SERVER.unit, "steps": [BENCHMARK]},
        {"name": "alone", "serve": "nothing", "steps": [{"command": {"argv": ["/bin/true"]}}]},
        {"name": "one slot", "serve": f"{SERVER.unit}-one-slot", "steps": [BENCHMARK]},
    ]
    done = opsctl("run", "--json", phases=phases)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    cells = [json.loads(line) for line in done.stdout.splitlines() if '"cell' in line]
    assert cells
    assert llama_host.systemctl("is-active", SERVER.service_name) == "active"
    assert len(json.loads(get(llama_host, "/slots")[1])) == 4, "production is back with its own four slots"

"""The playbook of production, carried out against a real vLLM: nothing of it is adapted but the inventory's sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.lab import Lab

pytestmark = [pytest.mark.vllm, pytest.mark.lab, pytest.mark.timeout(3000)]

ROOT = Path(__file__).resolve().parents[2]
# A real vLLM on one core a rank decodes 20 tokens a second, and each flush takes half a minute.
SMALL = ("concurrency=[1]", "profile_concurrency=[1]", "profile_windows=1", "tokens=[1]")


def opsctl(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_STATE_HOME": str(state)}
    argv = [sys.executable, "-m", "opsctl", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=2700)


@pytest.fixture(scope="module")
def state(vllm_host: LabHost, lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of one campaign that was carried out."""
    folder = tmp_path_factory.mktemp("state")
    overrides = [word for name in SMALL for word in ("--var", name)]
    done = opsctl(folder, "run", "playbooks/profile-campaign.yml", "-i", str(lab.inventory), *overrides)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return folder


def test_every_decode_step_has_nine_all_reduces_and_one_all_gather(state: Path) -> None:
    """1 + 2 × 4 layers, and the logits: what the model's structure says is what a real vLLM does."""
    traces = sorted(state.glob("opsctl/runs/*/kernel-profile*/traces/*/"))
    assert traces
    for folder in traces:
        document: dict[str, Any] = json.loads(opsctl(state, "trace", str(folder), "--json").stdout)
        seen = {collective["op"]: collective["calls_per_step"] for collective in document["collectives"]}
        assert seen == {"all_reduce": 9.0, "all_gather": 1.0}
        assert [rank["rank"] for rank in document["ranks"]] == [0, 1]


def test_the_report_says_it(state: Path) -> None:
    report = next(state.glob("opsctl/runs/*/report.md")).read_text()
    assert "all_reduce" in report
    assert "| Production | serving, verified |" in report


def test_production_is_back_as_it_was(vllm_host: LabHost, state: Path) -> None:
    assert vllm_host.systemctl("is-active", "vllm-kimi-k25-int4.service") == "active"
    listed = vllm_host.systemctl("list-units", "--all", "--plain", "--no-legend", "vllm-*-profiler.service", "opsctl-*")
    assert "running" not in listed
    asked = json.dumps({"model": "kimi-k2.5", "prompt": "hello", "max_tokens": 4, "ignore_eos": True})
    url = "http://127.0.0.1:8000/v1/completions"
    answer = vllm_host.exec("curl", "-s", "-m", "60", "-H", "Content-Type: application/json", "-d", asked, url)
    assert json.loads(answer.stdout)["usage"]["completion_tokens"] == 4

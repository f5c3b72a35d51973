"""A real vLLM on a lab host, and that the stand-in looks like it where anyone looks."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from opsctl.deadline import Deadline
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, await_answer, install, journal

pytestmark = [pytest.mark.vllm, pytest.mark.lab, pytest.mark.timeout(1200)]

REAL = "http://127.0.0.1:8000"
STANDIN = Standin(unit="standin", port=8001)


def ask(host: LabHost, base: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
    """Return status and body, asked from inside the host."""
    data = ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body is not None else []
    done = host.exec("curl", "-s", "-m", "120", "-w", "\n%{http_code}", *data, base + path, timeout=130)
    text, _, status = done.stdout.rpartition("\n")
    return int(status), text


@pytest.fixture(scope="module")
def both(vllm_host: LabHost) -> LabHost:
    """Return the host with a paced stand-in beside the real server."""
    install(vllm_host, STANDIN)
    await_answer(vllm_host, STANDIN, Deadline(30, "start of the stand-in"))
    return vllm_host


def test_it_serves_at_two_ranks(vllm_host: LabHost) -> None:
    assert json.loads(ask(vllm_host, REAL, "/version")[1])["version"].startswith("0.32.0")
    body = {"model": "kimi-k2.5", "prompt": "hello", "max_tokens": 4, "ignore_eos": True}
    status, text = ask(vllm_host, REAL, "/v1/completions", body)
    assert (status, json.loads(text)["usage"]["completion_tokens"]) == (200, 4)
    assert "world_size=2 rank=1" in journal(vllm_host, "vllm-kimi-k25-int4")


def test_completions_have_the_same_fields(both: LabHost) -> None:
    body = {"model": "kimi-k2.5", "prompt": "hello", "max_tokens": 2, "ignore_eos": True}
    real, standin = (json.loads(ask(both, base, "/v1/completions", body)[1]) for base in (REAL, STANDIN.url))
    assert standin.keys() <= real.keys()
    assert standin["choices"][0].keys() <= real["choices"][0].keys()
    assert standin["usage"].keys() <= real["usage"].keys()


def test_models_have_the_same_fields(both: LabHost) -> None:
    real, standin = (json.loads(ask(both, base, "/v1/models")[1]) for base in (REAL, STANDIN.url))
    assert standin["data"][0].keys() <= real["data"][0].keys()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "other", "prompt": "x"}),
        ("/v1/completions", {"model": "kimi-k2.5", "prompt": "x", "max_tokens": 5000000}),
        ("/start_profile", {}),
        ("/nowhere", None),
    ],
)
def test_refusals_have_the_same_status(both: LabHost, path: str, body: dict[str, Any] | None) -> None:
    assert ask(both, REAL, path, body)[0] == ask(both, STANDIN.url, path, body)[0]


def test_every_metric_of_the_stand_in_is_vllms(both: LabHost) -> None:
    def names(base: str) -> set[str]:
        return set(re.findall(r"^# TYPE (vllm:\S+) ", ask(both, base, "/metrics")[1], re.MULTILINE))

    assert names(STANDIN.url)
    # prometheus_client says "# TYPE x counter" for x_total.
    real = {name.removesuffix("_total") for name in names(REAL)}
    assert {name.removesuffix("_total") for name in names(STANDIN.url)} <= real


PROGRESS = (
    r"Starting to load model \S+\.\.\.",
    r"Loading safetensors checkpoint shards: 100% Completed \| 6/6 \[\d\d:\d\d<\d\d:\d\d, +\S+(it/s|s/it)\]",
    r"\] Loading weights took [\d.]+ seconds",
    r"\] init engine \(profile, create kv cache, warmup model\) took [\d.]+ s",
    r"Application startup complete\.",
)


@pytest.mark.parametrize("pattern", PROGRESS)
def test_both_log_the_same_lines(both: LabHost, pattern: str) -> None:
    assert re.search(pattern, journal(both, "vllm-kimi-k25-int4"))
    assert re.search(pattern, journal(both, STANDIN.unit))

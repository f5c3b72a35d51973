import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.payload.serving_benchmark import default_requests, hit_rate, slug
from opsctl.payload.serving_spec import Metrics
from tests.payload.pacing import cells, figures, paced_server, run_payload, stamps

METRICS = Metrics(
    cache_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    cache_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
)


def spec(url: str, *, ids: list[dict[str, Any]] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "url": url,
        "model": "paced",
        "input_tokens": 40,
        "output_tokens": 12,
        "requests": 12,
        "warmup_requests": 1,
        "rounds": 2,
        "seed": 0,
        "slo": {},
        "metrics": METRICS.to_dict(),
        "request_limit": 30.0,
        "limit": 90.0,
        "cells": ids or [{"id": "concurrency=2", "concurrency": 2}],
        **changes,
    }


def test_a_cell_from_end_to_end(tmp_path: Path) -> None:
    with paced_server(ttft=0.05, interval=0.01) as url:
        records = run_payload("serving-benchmark", spec(url, slo={"ttft": 5.0}), tmp_path)
        seen = stamps(url)
    assert records[0]["record"] == "environment"
    assert records[-1]["record"] == "end"
    assert records[-1]["state"] == "verified"
    cell = cells(records)["concurrency=2"]
    found = figures(cell)
    assert cell["state"] == "verified"
    assert (cell["detail"]["completed"], cell["detail"]["failed"]) == (24, 0)
    assert cell["detail"]["total_output_tokens"] == 24 * 12
    assert cell["detail"]["total_input_tokens"] == 24 * 40
    assert found["prefix_cache_hit_rate"] == 0
    assert found["ttft.p50"] >= 50
    assert found["tpot.mean"] == pytest.approx(10, rel=0.5)
    assert found["goodput"] > 0
    assert 0 < found["client_cpu"] < 1
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{name}.{each}" for each in ("mean", "std", "p50", "p90", "p95", "p99")} <= set(found)
    # Two waves of the warm-up at least, each with two requests a stream; then 12 requests a round; no prompt twice.
    waves = int(cell["detail"]["warmup"].split()[0])
    assert waves >= 2
    assert found["warmup.time"] > 2 * 2 * (0.05 + 11 * 0.01)
    assert seen["prompts"] == 24 + 4 * waves
    asked = [record["asked"] for record in records if record["record"] == "evidence"]
    assert "concurrency=2: warm-up at its own load" in asked
    raw = tmp_path / "requests-concurrency-2.jsonl.gz"
    lines = [json.loads(line) for line in gzip.decompress(raw.read_bytes()).splitlines()]
    assert len(lines) == 24
    assert all(len(line["gaps"]) == 11 and line["output_tokens"] == 12 for line in lines)
    assert {record["path"] for record in records if record["record"] == "artifact"} == {
        "requests-concurrency-2.jsonl.gz"
    }


def test_open_loop(tmp_path: Path) -> None:
    with paced_server() as url:
        records = run_payload(
            "serving-benchmark", spec(url, ids=[{"id": "rate=30", "request_rate": 30.0}], rounds=1), tmp_path
        )
    found = figures(cells(records)["rate=30"])
    assert "send_lag.p99" in found
    assert "steady.output_throughput" not in found


def test_a_round_is_never_narrower_than_the_concurrency(tmp_path: Path) -> None:
    with paced_server() as url:
        work = spec(url, requests=2, rounds=1, ids=[{"id": "concurrency=4", "concurrency": 4}])
        records = run_payload("serving-benchmark", work, tmp_path)
    assert cells(records)["concurrency=4"]["detail"]["completed"] == 4


def test_failed_requests_are_counted_apart(tmp_path: Path) -> None:
    with paced_server("--fault", "refuse-every-third") as url:
        records = run_payload("serving-benchmark", spec(url, warmup_requests=0), tmp_path)
    cell = cells(records)["concurrency=2"]
    assert cell["state"] == "failed"
    assert cell["reason"] == "8 of 24 requests failed"
    assert (cell["detail"]["completed"], cell["detail"]["failed"]) == (16, 8)
    assert next(iter(cell["detail"]["errors"])).startswith("status 500")
    assert figures(cell)["ttft.p50"] > 0  # of those that completed


def test_a_cached_prompt_shows(tmp_path: Path) -> None:
    with paced_server("--fault", "cached") as url:
        records = run_payload("serving-benchmark", spec(url), tmp_path)
    assert figures(cells(records)["concurrency=2"])["prefix_cache_hit_rate"] == pytest.approx(0.5, abs=0.01)


def test_without_metrics_the_hit_rate_is_unknown_not_zero(tmp_path: Path) -> None:
    with paced_server("--fault", "no-metrics") as url:
        records = run_payload("serving-benchmark", spec(url), tmp_path)
    cell = cells(records)["concurrency=2"]
    assert "prefix_cache_hit_rate" not in figures(cell)
    assert cell["detail"]["prefix_cache"].startswith("unknown")


def test_short_answers_are_told(tmp_path: Path) -> None:
    with paced_server("--fault", "short") as url:
        records = run_payload("serving-benchmark", spec(url, rounds=1), tmp_path)
    cell = cells(records)["concurrency=2"]
    assert (cell["state"], records[-1]["state"]) == ("inconclusive", "inconclusive")
    assert cell["reason"].startswith("12 of 12 requests ended before 12 tokens, with ")
    assert cell["figures"]  # they are shown; history and comparisons take verified cells only


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"model": "other"}, "other is not served at"), ({"api_key_file": "/nonexistent/key"}, "cannot be read")],
)
def test_what_cannot_start_says_why(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with paced_server() as url:
        records = run_payload("serving-benchmark", spec(url, **changes), tmp_path)
    assert records[-1]["state"] == "failed"
    assert said in records[-1]["reason"]


def test_a_wrong_key_is_told_and_the_right_one_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2-right")
    with paced_server("--key", "hunter2-right") as url:
        records = run_payload("serving-benchmark", spec(url, rounds=1), tmp_path / "wrong")
        assert "the API key is missing or wrong" in records[-1]["reason"]
        records = run_payload(
            "serving-benchmark", spec(url, rounds=1, api_key_file=str(tmp_path / "key")), tmp_path / "b"
        )
    assert records[-1]["state"] == "verified"
    for path in (tmp_path / "b").iterdir():
        assert b"hunter2" not in path.read_bytes()


def test_verified_cells_are_skipped_when_taken_up(tmp_path: Path) -> None:
    ids = [{"id": "concurrency=1", "concurrency": 1}, {"id": "concurrency=2", "concurrency": 2}]
    with paced_server() as url:
        run_payload("serving-benchmark", spec(url, ids=ids[:1], rounds=1), tmp_path)
        records = run_payload("serving-benchmark", spec(url, ids=ids, rounds=1), tmp_path)
    assert [r["id"] for r in records if r["record"] == "cell" and r["state"] == "verified"] == [
        "concurrency=1",
        "concurrency=2",
    ]
    assert records[-1]["reason"] == "2 of 2 cells measured"


def test_sigterm_ends_with_a_record(tmp_path: Path) -> None:
    with paced_server(ttft=5.0) as url:
        (tmp_path / "spec.json").write_text(json.dumps(spec(url)))
        argv = [sys.executable, "-m", "opsctl.payload", "serving-benchmark", "--spec", "spec.json", "--out", "r.jsonl"]
        with subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            path = tmp_path / "r.jsonl"
            while not (path.exists() and b'"running"' in path.read_bytes()):
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=20)
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["record"], last["state"], last["reason"]) == ("end", "inconclusive", "stopped by SIGTERM")
    assert b"Traceback" not in stderr


def test_hit_rate_of_old_and_new_names() -> None:
    new = {"vllm:prefix_cache_hits_total": 5.0, "vllm:prefix_cache_queries_total": 20.0}
    old = {"vllm:gpu_prefix_cache_hits_total": 5.0, "vllm:gpu_prefix_cache_queries_total": 20.0}
    assert hit_rate(METRICS, {}, new) == hit_rate(METRICS, {}, old) == 0.25
    assert hit_rate(METRICS, {}, {}) is None
    assert hit_rate(METRICS, new, new) is None
    assert hit_rate(Metrics(), {}, new) is None


def test_defaults() -> None:
    assert [default_requests(count) for count in (1, 2, 64)] == [8, 8, 256]
    assert slug("concurrency=8/window=2") == "concurrency-8-window-2"

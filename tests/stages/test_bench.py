"""``opsctl bench``, as a person and as a program run it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.commands.bench_arguments import parse_shapes, parse_slo, parse_sweep
from opsctl.errors import UnfitError
from tests.payload.pacing import paced_server
from tests.stages.test_models import TINY
from tests.stages.test_vllm_format import KEYS


def bench(*arguments: str, cwd: Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "opsctl", "bench", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": str(columns), "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_gemm_of_own_shapes(tmp_path: Path) -> None:
    done = bench("gemm", "--shape", "64x128", "--tokens", "1,2", "--json", "--folder", "out", cwd=tmp_path)
    result = document(done)
    assert result["state"] == "verified"
    assert [cell["id"] for cell in result["cells"]] == ["64x128/M=1/torch", "64x128/M=2/torch"]
    # What stands verified in the folder is not measured again.
    again = document(bench("gemm", "--shape", "64x128", "--tokens", "1,2", "--json", "--folder", "out", cwd=tmp_path))
    assert again["cells"][0]["figures"] == result["cells"][0]["figures"]


def test_gemm_of_a_models_own_config_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    done = bench(
        "gemm", "--model", ".", "--tensor-parallel", "2", "--tokens", "1", "--ops", "o_proj,lm_head", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "o_proj" in done.stdout
    assert "one decode step" in done.stdout
    assert "verified: 2 of 2 cells verified" in done.stdout.replace("\n", " ")


def test_any_stage_as_a_playbook_writes_it(tmp_path: Path) -> None:
    written = "gpu-check: {size: 1MiB, host-size: 4MiB, repetitions: 3}"
    result = document(bench("step", written, "--json", cwd=tmp_path))
    assert (result["stage"], result["state"]) == ("gpu-check", "verified")
    shown = bench("step", written, cwd=tmp_path)
    assert "cpu-copy" in shown.stdout
    assert "skipped: no GPU: torch sees no CUDA device" in shown.stdout.replace("\n", " ")


def test_serving_in_vllms_keys(tmp_path: Path) -> None:
    load = ("--input-tokens", "20", "--output-tokens", "8", "--rounds", "1", "--requests", "6")
    with paced_server() as url:
        done = bench("serving", "--url", url, "--concurrency", "2", *load, "--format", "vllm", cwd=tmp_path)
        table = bench(
            "serving", "--url", url, "--request-rate", "40", *load, "--slo", "ttft=5s", cwd=tmp_path, columns=200
        )
    found = document(done)
    assert set(found) == KEYS
    assert (found["completed"], found["failed"], found["max_concurrency"]) == (6, 0, 2)
    assert table.returncode == 0
    assert "rate=40" in table.stdout


def test_serving_that_fails_is_exit_1(tmp_path: Path) -> None:
    load = ("--input-tokens", "20", "--output-tokens", "8", "--rounds", "1", "--requests", "6")
    with paced_server("--fault", "cut-stream") as url:
        done = bench("serving", "--url", url, "--concurrency", "2", *load, cwd=tmp_path)
    assert done.returncode == 1
    assert "requests failed" in done.stdout.replace("\n", " ") + done.stderr
    assert "Traceback" not in done.stderr


def test_collectives_over_gloo(tmp_path: Path) -> None:
    arguments = (
        "--world-size",
        "2",
        "--backend",
        "gloo",
        "--sizes",
        "4KiB",
        "--ops",
        "all_reduce",
        "--repetitions",
        "5",
    )
    result = document(bench("collectives", *arguments, "--json", cwd=tmp_path))
    assert [cell["id"] for cell in result["cells"]] == ["all_reduce/4096B/graph=off"]
    assert result["detail"]["topology"].startswith("gloo")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("step", "gpu-chek"), "unknown stage `gpu-chek`; nearest: `gpu-check`"),
        (("step", "gemm: {token: [1]}"), "STEP:1:8: unknown key `token`"),
        (("step", "serving-benchmark: {concurrency: [1], slo: {x: 1s}}"), "wanted any of ttft, tpot, itl, e2el"),
        (("step", "serving-benchmark: {concurrency: [1]}"), "needs a service that serves"),
        (("gemm", "--tensor-parallel", "7"), "no shapes for kimi-k2.5 at tensor parallel 7"),
        (("gemm", "--tokens", "1,x"), "--tokens: '1,x' is no list of numbers"),
        (("gemm", "--tokens", "0"), "not above 0"),
        (("gemm", "--shape", "64"), "--shape: '64' is no shape"),
        (("gemm", "--model", "no-such-folder"), "no-such-folder cannot be read"),
        (("serving", "--url", "http://127.0.0.1:9"), "failed"),
        (("serving", "--url", "http://127.0.0.1:9", "--model", "m", "--slo", "ttft=2"), "--slo"),
        (("collectives", "--sweep", "NCCL_PROTO"), "--sweep: 'NCCL_PROTO' is no axis"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = bench(*arguments, cwd=tmp_path)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_lists() -> None:
    assert parse_shapes(["7168x1024", "8×16"]) == ((7168, 1024), (8, 16))
    assert parse_sweep(["NCCL_PROTO=default,LL", "A=1"]) == {"NCCL_PROTO": ("default", "LL"), "A": ("1",)}
    assert parse_slo(["ttft=2s", "tpot=0.05s"]) == {"ttft": 2.0, "tpot": 0.05}
    with pytest.raises(UnfitError):
        parse_slo(["ttft"])

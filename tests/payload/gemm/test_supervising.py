"""The parent of the measuring process: whatever a kernel does to it, the other cells still run."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.payload import gemm
from opsctl.payload.errors import PayloadError
from opsctl.payload.output import Output, read_records
from tests.payload.pacing import cells, figures, run_payload

CELLS = [{"id": name, "op": "o", "m": 1, "backend": "torch"} for name in "abcd"]
SPEC: dict[str, Any] = {"device": "cpu", "repetitions": 3, "limit": 60, "ops": (), "cells": CELLS}
# A stand-in for the measuring process, which does to cell b what kernels do on a bad day.
WORKER = """
import json, os, signal, sys, time
def say(**message): print(json.dumps({"gemm": message}), flush=True)
print("a library's own noise")
fault = os.environ["FAULT"]
if fault == "at once": sys.exit("ImportError: libcudart.so.13")
for cell in json.load(open(sys.argv[3]))["cells"]:
    say(at=cell["id"])
    if cell["id"] == "b":
        if fault == "segfault": os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "exit": print("CUDA error: an illegal memory access", file=sys.stderr); sys.exit(7)
        if fault == "hang": time.sleep(600)
        if fault == "context":
            say(cell={"id": "b", "state": "failed", "reason": "RuntimeError: CUDA error"}); sys.exit(3)
    say(cell={"id": cell["id"], "state": "verified"})
"""


def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> Callable[[], dict[str, Any]]:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(gemm, "self_command", lambda: [sys.executable, str(worker)])
    monkeypatch.setattr(gemm, "_CELL_LIMIT", 2.0)
    monkeypatch.setenv("FAULT", fault)

    def run() -> dict[str, Any]:
        with Output(tmp_path / "r.jsonl") as output:
            ended = gemm.run(gemm.Spec.from_dict(SPEC), output)
        return {"ended": ended, **cells(read_records(tmp_path / "r.jsonl"))}

    return run


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("segfault", "ended by signal SIGSEGV"),
        ("exit", "ended with status 7: CUDA error: an illegal memory access"),
        ("hang", "no end within 2 s"),
        ("context", "RuntimeError: CUDA error"),
    ],
)
def test_a_kernel_that_takes_the_process_down_costs_its_own_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    seen = supervise(tmp_path, monkeypatch, fault)()
    assert seen["ended"] == ("failed", "3 of 4 cells measured")
    assert [seen[name]["state"] for name in "abcd"] == ["verified", "failed", "verified", "verified"]
    assert said in seen["b"]["reason"]


def test_a_process_that_cannot_start_ends_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PayloadError, match=r"status 1: ImportError: libcudart\.so\.13"):
        supervise(tmp_path, monkeypatch, "at once")()


def test_all_is_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert supervise(tmp_path, monkeypatch, "none")()["ended"] == ("verified", "4 of 4 cells measured")


def test_the_real_thing_at_small_shapes(tmp_path: Path) -> None:
    ops = [
        {"name": "o", "kind": "dense", "n": 64, "k": 128, "dtype": "bf16", "batch": 1},
        {"name": "q", "kind": "dense", "n": 64, "k": 128, "dtype": "w4a16-g32", "batch": 1},
        {"name": "f", "kind": "dense", "n": 64, "k": 128, "dtype": "fp8", "batch": 1},
    ]
    work = [
        {"id": "o/M=2/torch", "op": "o", "m": 2, "backend": "torch"},
        {"id": "q/M=2/int4pack", "op": "q", "m": 2, "backend": "int4pack"},
        {"id": "q/M=2/marlin", "op": "q", "m": 2, "backend": "marlin"},
        {"id": "f/M=2/none", "op": "f", "m": 2, "backend": "none"},
        {"id": "o/huge", "op": "o", "m": 10**12, "backend": "torch"},
    ]
    records = run_payload("gemm", {**SPEC, "ops": ops, "cells": work}, tmp_path)
    seen = cells(records)
    assert {name: cell["state"] for name, cell in seen.items()} == {
        "o/M=2/torch": "verified",
        "q/M=2/int4pack": "verified",
        "q/M=2/marlin": "skipped",
        "f/M=2/none": "skipped",
        "o/huge": "failed",
    }
    assert seen["o/huge"]["reason"].startswith("out of memory")
    assert seen["f/M=2/none"]["reason"] == "no kernel here takes fp8 dense"
    found = figures(seen["o/M=2/torch"])
    assert found["gemm.time"] > 0
    assert found["gemm.error"] < 1e-2
    assert found["gemm.bytes"] == 2 * 64 * 128 + 2 * 2 * (64 + 128)
    merged = {k: v for r in records if r["record"] == "environment" for k, v in r["environment"].items()}
    assert merged["ceilings"]["copy_bandwidth"] > 1e8
    assert merged["torch"]["torch"].startswith("2.")


def test_no_gpu_is_said_by_every_cell(tmp_path: Path) -> None:
    records = run_payload("gemm", {**SPEC, "device": "cuda"}, tmp_path)
    assert {cell["reason"] for cell in cells(records).values()} == {"no GPU: torch sees no CUDA device"}
    assert records[-1]["state"] == "failed"


def test_worker_lines_are_ours_alone() -> None:
    assert gemm._message(b'{"gemm": {"at": "x"}}') == {"at": "x"}
    assert gemm._message(b'{"gemm": 5}') is None
    assert gemm._message(b'{"gemm": ') is None
    assert gemm._message(b"INFO 12-01 vLLM") is None

"""gpu-check for real, where there is no GPU: benchmarks/gpu_check.py holds it against torch where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opsctl.payload.gpu_check import MOVED, _figures, link_limits
from tests.payload.pacing import cells, figures, run_payload


def spec(**changes: Any) -> dict[str, Any]:
    return {"cells": list(MOVED), "size": 1 << 22, "host_size": 1 << 24, "repetitions": 3, **changes}


def test_without_a_gpu_only_the_hosts_own_memory_is_measured(tmp_path: Path) -> None:
    records = run_payload("gpu-check", spec(), tmp_path)
    seen = cells(records)
    assert {name: cell["state"] for name, cell in seen.items()} == {
        **dict.fromkeys(MOVED, "skipped"),
        "cpu-copy": "verified",
    }
    assert seen["device-copy"]["reason"].startswith("no GPU: torch sees no CUDA device")
    found = figures(seen["cpu-copy"])
    assert 0.1 < found["bandwidth.cpu"] < 2000
    assert found["bandwidth.min"] == found["bandwidth.cpu"] == found["bandwidth.max"]
    assert records[-1]["state"] == "verified"


def test_asked_for_a_gpu_it_is_a_failure(tmp_path: Path) -> None:
    records = run_payload("gpu-check", spec(device="cuda"), tmp_path)
    assert (records[-1]["state"], records[-1]["reason"]) == ("failed", "no GPU: torch sees no CUDA device")


def test_gpus_that_torch_cannot_use_are_no_host_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-1)'\n")
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    records = run_payload("gpu-check", spec(), tmp_path / "step")
    assert records[-1]["state"] == "failed"
    assert records[-1]["reason"].startswith("nvidia-smi lists 1 GPUs, and torch ")


def test_what_a_link_can_carry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert link_limits() == []
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf '5, 16\\n4, 8\\n[N/A], [N/A]\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert link_limits() == [pytest.approx(63.0, abs=0.1), pytest.approx(15.75, abs=0.1), None]


def test_bandwidth_counts_what_was_read_and_written() -> None:
    samples = {"gpu0": [0.5, 0.5, 0.5], "gpu1": [1.0, 1.0, 1.0]}
    made = {each.name: each.value for each in _figures("device-triad", 1 << 30, samples)}
    gigabytes = 3 * (1 << 30) / 1e9
    assert made["bandwidth.gpu0"] == pytest.approx(gigabytes / 0.5)
    assert made["bandwidth.min"] == made["bandwidth.gpu1"] == pytest.approx(gigabytes)
    assert made["bandwidth.median"] == pytest.approx(1.5 * gigabytes)
    assert {each.name: each.value for each in _figures("cpu-copy", 1 << 30, {"cpu": [1.0]})}["bandwidth.cpu"] == (
        pytest.approx(2 * (1 << 30) / 1e9)
    )

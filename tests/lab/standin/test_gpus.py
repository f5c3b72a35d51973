"""GPUs that two servers cannot hold at once, and the nvidia-smi that shows them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.lab.standin import nvidia_smi
from opsctl.lab.standin.gpus import GpuConfig
from tests.lab.standin.running import standin

APPS = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
PLAIN = "--format=csv,noheader,nounits"


def smi(folder: Path, *arguments: str, config: GpuConfig | None = None) -> subprocess.CompletedProcess[str]:
    (folder / "gpus.json").write_text((config or GpuConfig()).to_json())
    environment = {
        **os.environ,
        "STANDIN_GPU_DIR": str(folder / "gpus"),
        "STANDIN_GPU_CONFIG": str(folder / "gpus.json"),
    }
    argv = [sys.executable, "-I", "-S", nvidia_smi.__file__, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=10)


def used(folder: Path, config: GpuConfig | None = None) -> list[int]:
    shown = smi(folder, "--query-gpu=memory.used", PLAIN, config=config).stdout
    return [int(line) for line in shown.splitlines()]


def test_a_server_holds_its_gpus_and_frees_them(tmp_path: Path) -> None:
    assert used(tmp_path) == [0, 0]
    with standin(tmp_path / "s") as running:
        running.await_health()
        assert used(tmp_path) == [129394, 129394]
        rows = [line.split(", ") for line in smi(tmp_path, APPS, PLAIN).stdout.splitlines()]
        assert [row[0] for row in rows] == [nvidia_smi.uuid(0), nvidia_smi.uuid(1)]
        assert [row[2:] for row in rows] == [["VLLM::Worker_TP0", "129394"], ["VLLM::Worker_TP1", "129394"]]
        running.stop()
        end = time.monotonic() + 5
        while used(tmp_path) != [0, 0]:
            assert time.monotonic() < end
    assert not (tmp_path / "state" / "gpu-breaches.jsonl").exists()


def test_a_second_server_fails_loudly_and_is_recorded(tmp_path: Path) -> None:
    with standin(tmp_path / "first") as first:
        first.await_health()
        with standin(tmp_path / "second") as second:
            assert second.process.wait(15) == 1
            assert "less than desired GPU memory utilization" in second.log
        assert first.completion().status_code == 200
    breaches = [json.loads(line) for line in (tmp_path / "state" / "gpu-breaches.jsonl").read_text().splitlines()]
    assert {breach["gpu"] for breach in breaches} == {0, 1}
    assert {breach["held_by"]["name"] for breach in breaches} == {"VLLM::Worker_TP0", "VLLM::Worker_TP1"}


def test_memory_stays_for_a_while_after_a_kill(tmp_path: Path) -> None:
    slow = GpuConfig(release_seconds=4)
    (tmp_path / "gpus.json").write_text(slow.to_json())
    with standin(tmp_path / "s") as running:
        running.await_health()
        os.killpg(running.process.pid, signal.SIGKILL)
        running.process.wait(5)
        assert used(tmp_path, slow) == [129394, 129394]
        assert smi(tmp_path, APPS, PLAIN, config=slow).stdout == ""
        killed = time.monotonic()
        while used(tmp_path, slow) != [0, 0]:
            assert time.monotonic() - killed < 20


def test_a_start_on_memory_that_is_not_free_yet_is_a_breach(tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(GpuConfig(release_seconds=30).to_json())
    with standin(tmp_path / "one") as running:
        running.await_health()
        running.stop()
    with standin(tmp_path / "two") as second:
        assert second.process.wait(15) == 1
    assert "memory of a process that has ended" in (tmp_path / "state" / "gpu-breaches.jsonl").read_text()


def test_containers_show_memory_without_processes(tmp_path: Path) -> None:
    hidden = GpuConfig(list_processes=False)
    with standin(tmp_path / "s") as running:
        running.await_health()
        assert smi(tmp_path, APPS, PLAIN, config=hidden).stdout == ""
        assert used(tmp_path, hidden) == [129394, 129394]


def test_a_child_that_was_left_behind_keeps_its_gpu(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="leaves-child") as running:
        running.await_health()
        assert running.stop() == 0
        left = smi(tmp_path, "--query-compute-apps=pid", PLAIN).stdout.split()
        assert len(left) == 1
        assert used(tmp_path) == [129394, 0]
        os.kill(int(left[0]), signal.SIGKILL)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("--query-gpu=bogus", "--format=csv"), 2, 'Field "bogus" is not a valid field to query.'),
        (("--query-gpu=index,memory.used", "--format=csv"), 0, "index, memory.used [MiB]\n0, 0 MiB"),
        (("-L",), 0, "GPU 1: NVIDIA H200 (UUID: GPU-"),
        (("topo", "-m"), 0, "GPU1\tNV18\t X "),
        (("topo", "-p2p", "r"), 0, "GPU0\t X \tOK"),
        ((), 0, "No running processes found"),
        (("--bogus",), 2, "Invalid combination"),
    ],
)
def test_what_nvidia_smi_says(tmp_path: Path, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = smi(tmp_path, *arguments)
    assert (done.returncode, says in done.stdout) == (status, True), done.stdout


def test_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    broken = smi(tmp_path, "-L", config=GpuConfig(broken=True))
    assert broken.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in broken.stdout
    with pytest.raises(subprocess.TimeoutExpired):
        (tmp_path / "gpus.json").write_text(GpuConfig(hang=True).to_json())
        environment = {**os.environ, "STANDIN_GPU_CONFIG": str(tmp_path / "gpus.json")}
        subprocess.run([sys.executable, nvidia_smi.__file__], check=False, env=environment, timeout=0.5)


def test_memory_that_nobody_holds(tmp_path: Path) -> None:
    assert used(tmp_path, GpuConfig(stuck_mib=512)) == [512, 512]

"""nvidia-smi's output, from a real H200 machine."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

from opsctl.host.guard import GPU_IDLE_MIB
from opsctl.serving.gpu.nvidia_smi import (
    _HOLDERS,
    GpuProcess,
    invalid_field,
    parse_gpus,
    parse_others,
    parse_processes,
    unit_of,
)

RECORDED = Path(__file__).parents[2] / "data" / "nvidia-smi"


def recorded(name: str) -> tuple[list[str], str]:
    """Return (the queried fields, the output) of a recording: its head is the command and the exit status."""
    command, _, *output = (RECORDED / name).read_text().split("\n")
    flag = next((word for word in command.split() if word.startswith("--query")), "=")
    return flag.partition("=")[2].split(","), "\n".join(output)


def test_a_real_gpu_is_read_by_field() -> None:
    fields, text = recorded("h200-query-gpu.txt")
    (gpu,) = parse_gpus(text, fields)
    assert gpu.name == "NVIDIA H200"
    assert gpu.uuid == "GPU-c612fce1-d8ad-b5d5-bd10-eea0b7cc50af"
    assert (gpu.number("memory.total"), gpu.memory_used) == (143771.0, 0.0)
    assert gpu.number("power.limit") == 700.0
    assert gpu.values["mig.mode.current"] == "Disabled"


def test_values_that_are_not_there_are_unknown_and_not_zero() -> None:
    fields = ["index", "uuid", "power.draw", "power.limit", "fan.speed", "x"]
    (gpu,) = parse_gpus("0, GPU-1, [N/A], [Not Supported], N/A, [Unknown Error]\n", fields)
    assert gpu.number("power.draw") is None
    assert gpu.number("x") is None
    assert set(gpu.values) == {"index", "uuid"}


@pytest.mark.parametrize(
    "value",
    ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "[GPU requires reset]", "ERR!", "[Unknown Error]"],
)
def test_a_field_that_is_not_given_loses_only_itself(value: str) -> None:
    (gpu,) = parse_gpus(
        f"0, GPU-1, NVIDIA GB10, {value}, 11.2\n", ["index", "uuid", "name", "memory.used", "power.draw"]
    )
    assert gpu.memory_used is None
    assert (gpu.name, gpu.number("power.draw")) == ("NVIDIA GB10", 11.2)
    assert gpu.fault == ("GPU requires reset" if "reset" in value else "")


def test_amds_gpus_are_read_from_the_kernel() -> None:
    reading = parse_others("0 0000:03:00.0 206141652992 304087040\n1 0000:04:00.0 206141652992 7516192768\n--\n4711\n")
    assert [(gpu.index, gpu.uuid, gpu.memory_used) for gpu in reading.gpus] == [
        (0, "0000:03:00.0", 290.0),
        (1, "0000:04:00.0", 7168.0),
    ]
    assert [process.pid for process in reading.processes] == [4711]
    assert parse_others("--\n").absent


def test_an_intel_gpu_does_not_say_its_memory() -> None:
    (gpu,) = parse_others("0 0000:03:00.0 - -\n--\n").gpus
    assert (gpu.name, gpu.memory_used) == ("Intel GPU", None)


def test_guard_and_controller_call_the_same_gpu_free() -> None:
    script = resources.files("opsctl.host.guard").joinpath("opsctl-guard").read_text()
    for line in _HOLDERS.splitlines():
        if "/dev/" in line or "nvtop" in line:
            assert line.strip() in script, "which devices count, and which programs only watch"
    (limit,) = re.findall(r"-le (\d+) \] \|\| \{ echo \"GPU memory in use", script)
    assert int(limit) == GPU_IDLE_MIB


def test_lines_of_another_shape_are_an_error() -> None:
    with pytest.raises(ValueError, match="wanted 2 fields"):
        parse_gpus("0, GPU-1, extra\n", ["index", "uuid"])


def test_real_processes_busy_and_idle() -> None:
    (process,) = parse_processes(recorded("h200-query-compute-apps-busy.txt")[1])
    assert (process.pid, process.name, process.memory) == (415, "python3", 1542.0)
    assert parse_processes(recorded("h200-query-compute-apps-idle.txt")[1]) == ()


def test_a_process_whose_name_holds_commas_and_memory_that_is_not_known() -> None:
    (process,) = parse_processes("GPU-1, 9, python -c a, b, c, [N/A]\n")
    assert (process.pid, process.name, process.memory) == (9, "python -c a, b, c", None)
    assert parse_processes("No running processes found\n") == ()


def test_the_unknown_field_is_named() -> None:
    assert invalid_field(recorded("h200-bad-field.txt")[1]) == "bogus"
    assert invalid_field("0, GPU-1") is None


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("/system.slice/vllm-kimi.service", "vllm-kimi.service"),
        ("/system.slice/system-vllm.slice/vllm@kimi.service/worker", "vllm@kimi.service"),
        ("/user.slice/user-0.slice/user@0.service/app.slice/vllm.service", "vllm.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope"),
        ("/", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_cgroup(cgroup: str, unit: str) -> None:
    assert unit_of(cgroup) == unit


def test_a_process_is_named_with_all_that_is_known() -> None:
    process = GpuProcess(9, memory=1542.0, unit="a.service", state="D", command="python train.py")
    assert str(process) == "pid 9 of a.service: python train.py, 1542 MiB, in state D (cannot be killed)"
    assert str(GpuProcess(9)) == "pid 9 of no unit: unknown command"

from pathlib import Path

import pytest

from opsctl.payload.environment import (
    GPU_FIELDS,
    allowed_variables,
    describe,
    gpu_state,
    parse_gpu_query,
    run_tool,
    throttle_reasons,
)


def test_only_allowed_variables_and_never_a_secret() -> None:
    seen = {
        "NCCL_PROTO": "LL128",
        "VLLM_USE_V1": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "VLLM_API_KEY": "hunter2",
        "NCCL_AUTH": "x",
        "VLLM_HF_TOKEN": "x",
        "CUDA_SECRET_THING": "x",
        "AWS_ACCESS_KEY_ID": "x",
        "PATH": "/bin",
    }
    assert allowed_variables(seen, ("VLLM_",)) == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_PROTO": "LL128",
        "VLLM_USE_V1": "1",
    }


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        ("0x0000000000000001", ["idle"]),
        ("0x0000000000000000", []),
        ("0x0000000000000044", ["power cap", "hardware thermal"]),
        ("0x8000000000000000", ["unknown 0x8000000000000000"]),
        ("[N/A]", ["[N/A]"]),
    ],
)
def test_throttle_reasons(mask: str, reasons: list[str]) -> None:
    assert throttle_reasons(mask) == reasons


def test_a_real_line_of_nvidia_smi() -> None:
    line = (
        "0, GPU-c612fce1, NVIDIA H200, 00000000:00:06.0, 580.159.04, 143771, 0, 0, 80.57, 700.00, 345, 3201, 1980, "
        "0x0000000000000001, 35, 5, 16, Enabled\n"
    )
    (gpu,) = parse_gpu_query(line)
    assert (gpu["name"], gpu["power.limit"], gpu["throttle"]) == ("NVIDIA H200", "700.00", ["idle"])
    assert "clocks_event_reasons.active" not in gpu


def test_lines_of_another_shape_are_left_out() -> None:
    assert parse_gpu_query("No devices were found\n") == []
    assert len(GPU_FIELDS) == len(set(GPU_FIELDS))


def test_a_tool_that_hangs_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run_tool("nvidia-smi", limit=0.3) == (None, "nvidia-smi did not answer within 0.3 s")


def test_a_tool_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'Field \"bogus\" is not a valid field to query.'; exit 2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _, why = run_tool("nvidia-smi", "--query-gpu=bogus")
    assert "status 2" in why
    assert "not a valid field" in why


REFUSES = """#!/bin/sh
for field in clocks.max.sm clocks_event_reasons.active persistence_mode; do
  case ,${1#--query-gpu=}, in
  *,$field,*) echo "Field \\"$field\\" is not a valid field to query." && exit 2 ;;
  esac
done
fields=${1#--query-gpu=}
echo "$fields" | sed 's/[^,]*/7/g; s/,/, /g'
"""


def test_a_field_that_the_driver_does_not_know_loses_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(REFUSES)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    state = gpu_state()
    assert state["unknown"] == ["clocks.max.sm", "persistence_mode"]
    (gpu,) = state["gpus"]
    assert gpu["memory.used"] == "7"
    assert gpu["throttle"] == ["idle", "application clocks", "power cap"], "under the older driver's name"
    assert "problem" not in state


def test_without_a_gpu_the_record_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    record = describe()
    assert record["before"]["problem"] == "nvidia-smi is not on the PATH"
    assert record["topology"].startswith("unknown: ")
    assert record["versions"]["python"]

"""gpu-check on a host with eight GPUs, from the records of a payload."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opsctl.errors import StageError
from opsctl.payload.gpu_check import MOVED, Spec
from opsctl.results import State, StepResult
from opsctl.stages import STAGES
from opsctl.stages.gpu_check import GpuCheck, data_sheet
from tests.stages.contexts import context, nothing

STAGE = STAGES["gpu-check"]
GEN5_X16 = 63.0


def judged(rates: dict[str, list[float]], model: str = "NVIDIA H200", **options: Any) -> StepResult:
    """Return what the stage says of these GB/s of each GPU, by test; the other tests do not apply."""
    count = len(next(iter(rates.values())))
    records: list[dict[str, Any]] = [
        {"record": "environment", "environment": {"gpu_names": [model] * count, "link_limits": [GEN5_X16] * count}}
    ]
    for test in MOVED:
        figures = [
            {"name": f"bandwidth.gpu{gpu}", "value": rate, "unit": "GB/s"}
            for gpu, rate in enumerate(rates.get(test, ()))
        ]
        state = "verified" if figures else "skipped"
        records.append({"record": "cell", "id": test, "state": state, "figures": figures})
    records.append({"record": "end", "state": "verified"})
    asked = GpuCheck(**options)
    return STAGE.judge(asked, nothing(), STAGE.cells(asked, nothing()), records)


def test_the_spec_names_each_test() -> None:
    options = GpuCheck(size="64MiB", repetitions=5)
    invocation = STAGE.invocation(options, nothing(), STAGE.cells(options, nothing()))
    spec = Spec.from_dict(json.loads(invocation.spec_json()))
    assert spec == Spec(tuple(MOVED), size=64 << 20, repetitions=5)


def test_it_wants_the_gpus_for_itself() -> None:
    with pytest.raises(StageError, match="`gpu-check` needs free GPUs, found `serve: vllm-kimi`"):
        STAGE.refuse(GpuCheck(), context())
    STAGE.refuse(GpuCheck(device="cpu"), context())


def test_a_host_whose_gpus_are_alike_and_fast_has_no_findings() -> None:
    result = judged({"device-copy": [4200.0 + gpu for gpu in range(8)], "host-to-device-pinned": [55.0] * 8})
    assert (result.state, result.detail["findings"]) == (State.VERIFIED, [])
    (table,) = STAGE.tables(result)
    assert table.rows[0] == ("device-copy", "GPU 0", "NVIDIA H200", 4200.0, 4800.0, "88%")
    assert table.rows[8] == ("host-to-device-pinned", "GPU 0", "NVIDIA H200", 55.0, GEN5_X16, "87%")


def test_a_gpu_that_is_slower_than_the_others_is_named() -> None:
    result = judged({"device-copy": [4200.0] * 5 + [3900.0] + [4200.0] * 2})
    assert result.detail["findings"] == [
        "GPU 5 (NVIDIA H200): device-copy at 3900 GB/s is 7% slower than the median of the host's others (4200 GB/s)"
    ]


def test_of_two_gpus_the_slower_one_is_named() -> None:
    (found,) = judged({"device-to-host-pageable": [12.0, 6.0]}).detail["findings"]
    assert found.startswith("GPU 1 (NVIDIA H200): device-to-host-pageable at 6 GB/s is 50% slower")


def test_one_gpu_is_held_against_its_data_sheet_and_its_link() -> None:
    result = judged({"device-copy": [3000.0], "host-to-device-pinned": [13.0]})
    assert result.detail["findings"] == [
        "GPU 0 (NVIDIA H200): device-copy at 3000 GB/s is 62% of its data sheet (4800 GB/s)",
        "GPU 0 (NVIDIA H200): host-to-device-pinned at 13 GB/s is 21% of its PCIe link (63 GB/s)",
    ]


def test_what_is_not_known_is_not_expected() -> None:
    unknown = judged({"device-copy": [100.0], "device-to-host-pinned": [380.0]}, model="Accelerator 9")
    assert unknown.detail["findings"] == []
    assert [row["expected"] for row in unknown.detail["gpus"]] == [None, None]  # faster than PCIe: another link


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("NVIDIA H200", 4800.0),
        ("NVIDIA GH200 480GB", 4000.0),
        ("NVIDIA H100 80GB HBM3", 3350.0),
        ("NVIDIA H100 PCIe", 2000.0),
        ("NVIDIA A100-SXM4-80GB", 2039.0),
        ("NVIDIA L40", 864.0),
        ("NVIDIA L4", 300.0),
        ("NVIDIA A10", 600.0),
        ("Tesla P4", None),
    ],
)
def test_data_sheets_by_name(name: str, rate: float | None) -> None:
    assert data_sheet(name) == rate

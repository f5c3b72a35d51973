import json
from typing import Any

import pytest

from opsctl.errors import StageError
from opsctl.payload.gemm import Spec
from opsctl.playbook.models import ServiceEntry
from opsctl.results import State
from opsctl.stages.gemm import Gemm, GemmStage, backends_for
from tests.stages.contexts import context, nothing
from tests.stages.test_models import DEEPSEEK_V3, LLAMA_70B, TINY

STAGE = GemmStage()
END = {"record": "end", "state": "verified", "reason": ""}


def records(options: Gemm, micros: float = 10.0, *, skip: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"record": "environment", "environment": {"ceilings": {"copy_bandwidth": 4e12, "matrix_rate": 8e14}}}
    ]
    for cell in STAGE.cells(options, nothing()):
        skipped = cell.axes["backend"] in skip
        made.append(
            {
                "record": "cell",
                "id": cell.id,
                "state": "skipped" if skipped else "verified",
                "reason": "not there" if skipped else "",
                "figures": [] if skipped else [{"name": "gemm.time", "value": micros, "unit": "us"}],
                "detail": {"weight_bytes": 1e6},
            }
        )
    return [*made, END]


def test_cells_are_operation_times_tokens_times_kernel() -> None:
    cells = STAGE.cells(Gemm(model="kimi-k2.5", tokens=(1, 8)), nothing())
    ids = [cell.id for cell in cells]
    assert len(ids) == len(set(ids)) == 2 * (12 + 3 * 2)
    assert {"experts/M=8/marlin", "w13/M=1/int4pack", "o_proj/M=1/torch"} <= set(ids)
    cell = next(cell for cell in cells if cell.id == "w13/M=1/marlin")
    assert cell.axes == {"op": "w13", "m": 1, "n": 512, "k": 7168, "dtype": "w4a16-g32", "backend": "marlin"}
    assert cell.state is State.PENDING


def test_the_spec_is_all_that_the_host_needs() -> None:
    options = Gemm(model="kimi-k2.5", tokens=(8,), ops=("experts", "o_proj"), backends=("marlin", "torch"))
    cells = STAGE.cells(options, nothing())
    invocation = STAGE.invocation(options, nothing(), cells)
    assert invocation.argv("python", "x.pyz")[:3] == ("python", "x.pyz", "gemm")
    spec = Spec.from_dict(json.loads(invocation.spec_json()))
    assert spec == invocation.spec
    assert {op.name: op.experts for op in spec.ops} == {"o_proj": 0, "experts": 384}
    assert [cell.id for cell in spec.cells] == ["o_proj/M=8/torch", "experts/M=8/marlin"]


def test_the_served_models_own_config() -> None:
    cells = STAGE.cells(Gemm(tokens=(1,)), context(model_config=LLAMA_70B))
    assert {cell.axes["op"] for cell in cells} == {"qkv", "o_proj", "mlp_gate_up", "mlp_down", "lm_head"}
    assert {cell.axes["k"] for cell in cells if cell.axes["op"] == "o_proj"} == {1024}  # the service's 8 ranks


def test_own_shapes() -> None:
    options = Gemm(shapes=((7168, 1024), (512, 7168)), tokens=(1,))
    assert [cell.id for cell in STAGE.cells(options, nothing())] == ["7168x1024/M=1/torch", "512x7168/M=1/torch"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Gemm(), "its config.json could not be read"),
        (Gemm(model="kimi-k2.5", ops=("experts", "nope")), "no operation nope"),
        (Gemm(model="kimi-k2.5", tensor_parallel=7), "no shapes for kimi-k2.5 at tensor parallel 7"),
        (Gemm(model="kimi-k2.5", ops=("o_proj",), backends=("marlin",)), "nothing to measure"),
    ],
)
def test_what_cannot_be_planned_says_why(options: Gemm, said: str) -> None:
    with pytest.raises(StageError, match=said):
        STAGE.cells(options, nothing())


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(StageError, match="backends: wanted any of torch, marlin, int4pack, found cutlass"):
        STAGE.refuse(Gemm(model="kimi-k2.5", backends=("cutlass",)), nothing())


def test_where_nothing_serves_the_shapes_are_those_of_production() -> None:
    production = ServiceEntry(url="http://x", model="m", tensor_parallel=2)
    here = nothing(model_config=LLAMA_70B, production=production)
    (cell,) = STAGE.cells(Gemm(tokens=(1,), ops=("o_proj",)), here)
    assert cell.axes["k"] == 8192 // 2


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [("bf16", ("torch",)), ("w4a16-g32", ("marlin", "int4pack")), ("fp8", ("none",)), ("w8a16-g128", ("none",))],
)
def test_kernels_by_weight_format(dtype: str, kernels: tuple[str, ...]) -> None:
    assert backends_for(dtype) == kernels


def test_what_no_backend_takes_is_planned_and_shown() -> None:
    cells = STAGE.cells(Gemm(tokens=(1,)), context(model_config=DEEPSEEK_V3))
    assert "experts/M=1/none" in [cell.id for cell in cells]


def test_verified_with_the_sums_of_a_step() -> None:
    options = Gemm(model="kimi-k2.5", tensor_parallel=8, tokens=(1,))
    cells = STAGE.cells(options, nothing())
    result = STAGE.judge(options, nothing(), cells, records(options))
    assert result.state is State.VERIFIED
    (sums,) = result.detail["sums"]
    calls = 61 * 5 + 2 + 60 * 3 + 60 + 1
    assert sums["gemm_us_per_step"] == pytest.approx(10.0 * calls)
    assert sums["weight_floor_us"] == pytest.approx(calls * 1e6 / 4e12 * 1e6)
    assert sums["missing"] == []
    assert sums["gemm_us_per_layer"] == {"dense": pytest.approx(70), "experts": pytest.approx(90)}


def test_a_kernel_that_is_not_there_is_no_failure_but_a_bare_operation_is_told() -> None:
    options = Gemm(model="kimi-k2.5", tensor_parallel=8, tokens=(1,))
    cells = STAGE.cells(options, nothing())
    fine = STAGE.judge(options, nothing(), cells, records(options, skip=("marlin",)))
    assert fine.state is State.VERIFIED
    bare = STAGE.judge(options, nothing(), cells, records(options, skip=("marlin", "int4pack")))
    assert bare.state is State.INCONCLUSIVE
    assert "no kernel measured w13 at M=1, w2 at M=1, experts at M=1" in bare.reason
    assert bare.detail["sums"][0]["missing"] == ["experts"]


def test_the_fastest_kernel_counts() -> None:
    options = Gemm(model="kimi-k2.5", tensor_parallel=8, tokens=(1,), ops=("experts",))
    cells = STAGE.cells(options, nothing())
    made = records(options)
    for record in made:
        if record["record"] == "cell" and record["id"].endswith("int4pack"):
            record["figures"][0]["value"] = 2.0
    result = STAGE.judge(options, nothing(), cells, [r for r in made if r["record"] != "cell" or "experts" in r["id"]])
    assert result.detail["sums"][0]["ops"][0] | {} == {
        "op": "experts",
        "backend": "int4pack",
        "calls": 60,
        "us": 2.0,
        "us_per_step": 120.0,
        "weight_bytes_per_step": 60e6,
    }


def test_dense_models_have_one_kind_of_layer() -> None:
    options = Gemm(tokens=(1,), tensor_parallel=2)
    here = nothing(model_config=TINY)
    cells = STAGE.cells(options, here)
    made = [
        {
            "record": "cell",
            "id": cell.id,
            "state": "verified",
            "figures": [{"name": "gemm.time", "value": 3.0, "unit": "us"}],
        }
        for cell in cells
    ]
    result = STAGE.judge(options, here, cells, [*made, END])
    assert result.detail["sums"][0]["gemm_us_per_layer"] == {"dense": 12.0}
    assert result.detail["sums"][0]["weight_floor_us"] is None  # no ceiling was measured

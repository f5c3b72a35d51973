"""Every kernel that runs on a processor, at small shapes: right results pass, wrong ones are caught."""

from typing import Any

import pytest
import torch

from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm import OpSpec
from opsctl.payload.gemm.case import Machine
from opsctl.payload.gemm.dense import Bf16, Int4PackDense
from opsctl.payload.gemm.experts import Int4PackExperts, route
from opsctl.payload.gemm.timing import time_on_cpu

MACHINE = Machine(torch, "cpu")
EXPERTS = {
    "kind": "experts",
    "experts": 12,
    "all_experts": 12,
    "top_k": 3,
    "hidden": 64,
    "intermediate": 32,
    "dtype": "w4a16-g32",
}


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize(
    ("backend", "op"),
    [
        (Bf16, {"n": 48, "k": 64}),
        (Bf16, {"n": 32, "k": 64, "batch": 4}),
        (Int4PackDense, {"n": 64, "k": 128, "dtype": "w4a16-g32"}),
        (Int4PackDense, {"n": 64, "k": 256, "dtype": "w4a16-g128"}),
        (Int4PackExperts, EXPERTS),
        (Int4PackExperts, {**EXPERTS, "experts": 4}),
    ],
)
def test_right_results_pass(backend: Any, op: dict[str, Any], tokens: int) -> None:
    made = backend(MACHINE)
    with torch.inference_mode():
        made.prepare(OpSpec.from_dict({"name": "o", "kind": "", **op}))
        case = made.case(tokens)
        outputs = [call() for call in case.calls]
        assert case.errors(outputs) < case.tolerance
        # What a broken kernel gives is no row: a wrong element, NaN left over, rows in another order.
        assert case.errors([outputs[0] * 1.05, *outputs[1:]]) > case.tolerance
        assert case.errors([*outputs[:-1], outputs[-1] * float("nan")]) > case.tolerance


def test_bytes_and_operations_are_counted() -> None:
    backend = Int4PackDense(MACHINE)
    backend.prepare(OpSpec("o", "dense", "w4a16-g32", n=64, k=128))
    case = backend.case(2)
    assert case.weight_bytes == 64 * 128 * 0.5625
    assert case.activation_bytes == 2 * 2 * (64 + 128)
    assert case.flops == 2 * 2 * 64 * 128


def test_experts_count_the_ones_that_were_hit() -> None:
    backend = Int4PackExperts(MACHINE)
    backend.prepare(OpSpec.from_dict({"name": "o", "kind": "experts", **EXPERTS}))
    case = backend.case(1)
    assert case.detail["experts_hit"] == 3
    assert case.weight_bytes == 3 * 3 * 64 * 32 * 0.5625
    assert case.flops == 2 * 3 * 64 * 32 * 3


def test_routing_is_without_replacement_and_sums_to_one() -> None:
    routing = route(50, 12, 3, seed=5)
    assert all(len(set(row)) == 3 for row in routing.ids)
    assert all(sum(row) == pytest.approx(1) for row in routing.weights)
    assert routing.hit(0, 12) == list(range(12))
    assert set(routing.hit(0, 4)) <= {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("backend", "op", "error", "said"),
    [
        (Int4PackDense, {"n": 64, "k": 128, "dtype": "w8a16-g32"}, CellSkipped, "no kernel here takes w8a16-g32"),
        (Int4PackDense, {"n": 64, "k": 96, "dtype": "w4a16-g96"}, CellFailed, "int4pack takes groups of"),
        (Int4PackDense, {"n": 64, "k": 100, "dtype": "w4a16-g32"}, CellFailed, "no multiple of the group"),
        (Int4PackExperts, {**EXPERTS, "dtype": "fp8"}, CellSkipped, "no kernel here takes experts of fp8"),
    ],
)
def test_a_shape_that_no_kernel_takes_says_why(backend: Any, op: dict[str, Any], error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        backend(MACHINE).prepare(OpSpec.from_dict({"name": "o", "kind": "", **op}))


def test_copies_make_reads_cold() -> None:
    gpu = Machine(torch, "cuda", cache=60 << 20)
    assert gpu.copies(1e6) == 252
    assert gpu.copies(300e6) == 2
    assert gpu.copies(1) == 256
    assert MACHINE.copies(64e6) == 1


def test_timing_checks_before_it_times() -> None:
    ran: list[int] = []

    def check(outputs: list[Any]) -> None:
        assert outputs == [1, 1]
        raise CellFailed("wrong")

    with pytest.raises(CellFailed, match="wrong"):
        time_on_cpu([lambda: 1, lambda: 1], repetitions=5, check=check)
    timing = time_on_cpu([lambda: ran.append(0)], repetitions=5, check=lambda _outputs: None)
    assert (timing.repetitions, len(ran)) == (5, 6)
    assert timing.p10 <= timing.seconds <= timing.p90

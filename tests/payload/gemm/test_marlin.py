"""Binding to vLLM's names. The kernels themselves ran on an H200: docs/measurements/gemm-h200-vllm-0.26.md."""

from typing import Any

import pytest
import torch

from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm.case import Machine
from opsctl.payload.gemm.marlin import Marlin, bind, first_of, pack_gptq
from opsctl.payload.gemm.weights import random_quantised


def test_gptqs_packing_puts_the_first_of_eight_in_the_lowest_bits() -> None:
    weight = random_quantised(torch, 16, 64, 32, device="cpu", seed=1)
    packed = pack_gptq(torch, weight.values)
    assert (packed.dtype, tuple(packed.shape)) == (torch.int32, (8, 16))
    for place in range(8):
        unpacked = (packed.to(torch.int64) >> (4 * place)) & 0xF
        assert torch.equal(unpacked, weight.values.t()[place::8].to(torch.int64))


# As several vLLM releases spell it.
def gptq_marlin_gemm(a, b_q_weight, b_scales, g_idx, perm, workspace, num_bits, size_m, size_n, size_k, is_k_full):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN201,PLR0917
    return locals()


def marlin_gemm(a, c, b_q_weight, b_scales, workspace, b_q_type, size_m, use_atomic_add=False):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN201,FBT002,PLR0917
    return locals()


def marlin_gemm_of_tomorrow(a, b_q_weight, tile_map):  # type: ignore[no-untyped-def]  # noqa: ANN001,ANN201
    return locals()


VALUES: dict[str, Any] = dict.fromkeys(
    (
        *("a", "c", "b_q_weight", "b_scales", "g_idx", "perm", "workspace", "num_bits"),
        *("b_q_type", "size_m", "size_n", "size_k", "is_k_full", "use_atomic_add"),
    ),
    1,
)


@pytest.mark.parametrize("function", [gptq_marlin_gemm, marlin_gemm])
def test_whatever_a_version_asks_for_is_bound(function: Any) -> None:
    arguments = bind(function, VALUES)
    assert function(**arguments).keys() == arguments.keys()


def test_an_argument_that_nobody_knows_is_named() -> None:
    with pytest.raises(CellFailed, match="marlin_gemm_of_tomorrow of this vLLM wants tile_map"):
        bind(marlin_gemm_of_tomorrow, VALUES)


def test_functions_are_sought_where_they_have_been() -> None:
    assert first_of(("no.such.module", "os.path"), ("nothing", "join")).__name__ == "join"
    with pytest.raises(CellSkipped, match="has no fused or experts"):
        first_of(("no.such.module", "os.path"), ("fused", "experts"))


def test_on_a_processor_there_is_no_marlin() -> None:
    with pytest.raises(CellSkipped, match="NVIDIA GPUs only"):
        Marlin(Machine(torch, "cpu"))


def test_without_vllm_the_cell_says_so() -> None:
    with pytest.raises(CellSkipped, match="vLLM is not in the serving environment's Python"):
        Marlin(Machine(torch, "cuda"))

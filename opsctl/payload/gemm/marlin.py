"""vLLM's Marlin kernels, dense and fused MoE, by whatever names the installed version gives them.

Names, modules and arguments have moved with nearly every release (``gptq_marlin_gemm`` until 0.11, ``marlin_gemm``
since; ``g_idx, perm, is_k_full`` came and went), so functions are looked for in all the places where they have
been, and arguments are bound by ``inspect.signature``. A mistake in binding cannot go unseen: every kernel is
checked against float64 before it is timed.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm.case import Machine
from opsctl.payload.gemm.weights import QuantisedWeight

_UTILS = (
    "vllm.model_executor.layers.quantization.utils.marlin_utils",
    "vllm.model_executor.kernels.linear.marlin_utils",
)
_MOE = (
    "vllm.model_executor.layers.fused_moe.experts.marlin_moe",
    "vllm.model_executor.layers.fused_moe.fused_marlin_moe",
    "vllm.model_executor.layers.quantization.utils.marlin_utils_moe",
)


def bind(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of ``function`` from a table of all that it may ask for.

    Raises CellFailed when it wants an argument that the table does not have.
    """
    chosen = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in {parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL}:
            continue
        if name in values:
            chosen[name] = values[name]
        elif parameter.default is parameter.empty:
            msg = f"{function.__name__} of this vLLM wants {name}, which this version of opsctl does not know"
            raise CellFailed(msg)
    return chosen


def first_of(modules: Iterable[str], names: Iterable[str]) -> Callable[..., Any]:
    """Return the first function of these names in these modules. Raises CellSkipped with what was tried."""
    tried, problems = [], []
    for module_name in modules:
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            if not (error.name and module_name.startswith(error.name)):
                problems.append(f"{module_name}: {error}")
            continue
        for name in names:
            found: Callable[..., Any] | None = getattr(module, name, None)
            if found is not None:
                return found
        tried.append(module_name)
    told = f" ({'; '.join(problems)})" if problems else ""
    msg = f"this vLLM has no {' or '.join(names)} in any module where it has been{told}"
    raise CellSkipped(msg)


def pack_gptq(torch: Any, values: Any) -> Any:
    """Return uint8[n, k] as GPTQ's int32[k/8, n], the first of eight values in the lowest bits."""
    wide = values.t().to(torch.int64)  # k × n
    packed = torch.zeros(wide.shape[0] // 8, wide.shape[1], dtype=torch.int64, device=values.device)
    for place in range(8):
        packed |= wide[place::8] << (4 * place)
    # int64 → int32 keeps the bits: values of 2³¹ and above wrap to negative ones.
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32).contiguous()


class Marlin:
    """The kernels of the installed vLLM. Raises CellSkipped where there are none."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        if machine.device != "cuda":
            msg = "Marlin runs on NVIDIA GPUs only"
            raise CellSkipped(msg)
        try:
            self.version = metadata.version("vllm")
        except metadata.PackageNotFoundError:
            msg = "vLLM is not in the serving environment's Python"
            raise CellSkipped(msg) from None
        ops = "vllm._custom_ops"
        self._repack = first_of((ops,), ("gptq_marlin_repack",))
        self._gemm = first_of((ops,), ("marlin_gemm", "gptq_marlin_gemm"))
        self._permute_scales = first_of(_UTILS, ("marlin_permute_scales",))
        self._make_workspace = first_of(_UTILS, ("marlin_make_workspace_new", "marlin_make_workspace"))
        self.type = importlib.import_module("vllm.scalar_type").scalar_types.uint4b8
        self.gemm_name = self._gemm.__name__

    def pack(self, weight: QuantisedWeight) -> tuple[Any, Any]:
        """Return (weights, scales) in Marlin's layout. Raises CellFailed for a shape that it does not take."""
        torch = self.machine.torch
        n, k = weight.n, weight.k
        if n % 64 or k % 128:
            msg = f"Marlin takes N in multiples of 64 and K in multiples of 128, not {n} × {k}"
            raise CellFailed(msg)
        values = {
            "b_q_weight": pack_gptq(torch, weight.values),
            "perm": torch.empty(0, dtype=torch.int32, device=weight.values.device),
            "size_k": k,
            "size_n": n,
            "num_bits": 4,
        }
        packed = self._repack(**bind(self._repack, values))
        group = weight.group if weight.group < k else -1
        scales = self._permute_scales(
            **bind(self._permute_scales, {"s": weight.scales.clone(), "size_k": k, "size_n": n, "group_size": group})
        )
        return packed, scales

    def workspace(self, n: int) -> Any:
        """Return the kernel's locks, zeroed."""
        device = self.machine.torch.device("cuda", self.machine.torch.cuda.current_device())
        values = {"device": device, "output_size_per_partition": n, "max_blocks_per_sm": 4}
        return self._make_workspace(**bind(self._make_workspace, values))

    def product(self, x: Any, packed: tuple[Any, Any], weight: QuantisedWeight) -> Callable[[], Any]:
        """Return a call of x · weightᵀ with all that this version wants."""
        torch = self.machine.torch
        empty = torch.empty(0, dtype=torch.int32, device=x.device)
        values = {
            "a": x,
            "c": None,
            "b_q_weight": packed[0],
            "b_bias": None,
            "b_scales": packed[1],
            "a_scales": None,
            "global_scale": None,
            "b_zeros": None if self.gemm_name == "marlin_gemm" else empty,
            "g_idx": None if self.gemm_name == "marlin_gemm" else empty,
            "perm": None if self.gemm_name == "marlin_gemm" else empty,
            "workspace": self.workspace(weight.n),
            "b_q_type": self.type,
            "num_bits": 4,
            "size_m": x.shape[0],
            "size_n": weight.n,
            "size_k": weight.k,
            "is_k_full": True,
            "has_zp": False,
            "use_atomic_add": False,
            # As vLLM's linear layers run it (USE_FP32_REDUCE_DEFAULT).
            "use_fp32_reduce": True,
            "is_zp_float": False,
        }
        arguments = bind(self._gemm, values)
        return lambda: self._gemm(**arguments)

    def fused_moe(self) -> Callable[..., Any]:
        """Return ``fused_marlin_moe``. Raises CellSkipped."""
        return first_of(_MOE, ("fused_marlin_moe",))

"""torch's own four-bit product, on a GPU and on a processor."""

from __future__ import annotations

from typing import Any

from opsctl.payload.errors import CellFailed
from opsctl.payload.gemm.case import Machine
from opsctl.payload.gemm.weights import QuantisedWeight

_GROUPS = (32, 64, 128, 256)
_INNER_K_TILES = 8


class Int4Pack:
    """Packing and product. The zero point is 8, so zeros are 0 in torch's (value − 8)·scale + zero."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.on_cuda = machine.device == "cuda"
        self.kernel_name = "_weight_int4pack_mm" if self.on_cuda else "_weight_int4pack_mm_for_cpu"

    def pack(self, weight: QuantisedWeight) -> tuple[Any, Any]:
        """Return (packed weights, scales and zeros). Raises CellFailed for shapes that the kernel does not take."""
        torch = self.machine.torch
        if weight.group not in _GROUPS:
            msg = f"int4pack takes groups of {', '.join(map(str, _GROUPS))}, not {weight.group}"
            raise CellFailed(msg)
        if self.on_cuda and (weight.n % 8 or weight.k % (_INNER_K_TILES * 16)):
            msg = f"int4pack takes N in multiples of 8 and K in multiples of 128, not {weight.n} × {weight.k}"
            raise CellFailed(msg)
        zeros = torch.zeros_like(weight.scales)
        scales_and_zeros = torch.stack((weight.scales, zeros), dim=2).contiguous()
        if self.on_cuda:
            pairs = (weight.values[:, ::2] << 4) | weight.values[:, 1::2]
            return torch._convert_weight_to_int4pack(pairs.contiguous(), _INNER_K_TILES), scales_and_zeros  # noqa: SLF001
        wide = weight.values.to(torch.int32)
        return torch._convert_weight_to_int4pack_for_cpu(wide, 1), scales_and_zeros  # noqa: SLF001

    def product(self, x: Any, packed: tuple[Any, Any], group: int) -> Any:
        """Return x · weightᵀ."""
        kernel = getattr(self.machine.torch, self.kernel_name)
        return kernel(x, packed[0], group, packed[1])

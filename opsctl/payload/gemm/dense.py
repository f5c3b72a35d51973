"""Dense products: BF16 by torch (cuBLAS on a GPU), W4A16 by torch's int4pack and by vLLM's Marlin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm import OpSpec
from opsctl.payload.gemm.case import Case, Machine, group_of
from opsctl.payload.gemm.int4pack import Int4Pack
from opsctl.payload.gemm.marlin import Marlin
from opsctl.payload.gemm.weights import (
    QuantisedWeight,
    product_in_float64,
    random_dense,
    random_quantised,
    relative_error,
)

#: BF16 results carry 8 bits: rounding alone is 1.7e-3; a wrong kernel is off by 0.1 and more.
TOLERANCE = 1e-2


def _activation_bytes(m: int, n: int, k: int) -> float:
    return 2.0 * m * (k + n)


class Bf16:
    """torch.mm and torch.bmm."""

    name = "torch"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.op = OpSpec("", "")
        self.weights: list[Any] = []

    def prepare(self, op: OpSpec) -> None:
        """Make as many copies as make the reads cold."""
        machine, batch, n, k = self.machine, op.batch, op.n, op.k
        self.op = op
        shape = (batch, k, n) if batch > 1 else (n, k)
        first = random_dense(machine.torch, shape, device=machine.device, seed=machine.seed) / k**0.5
        self.weights = [first, *(first.clone() for _ in range(machine.copies(2.0 * batch * n * k) - 1))]

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        torch, batch, n, k = self.machine.torch, self.op.batch, self.op.n, self.op.k
        shape = (batch, tokens, k) if batch > 1 else (tokens, k)
        x = random_dense(torch, shape, device=self.machine.device, seed=self.machine.seed + 1)
        if batch > 1:
            calls = [lambda w=w: torch.bmm(x, w) for w in self.weights]
            reference = torch.bmm(x.to(torch.float64), self.weights[0].to(torch.float64))
        else:
            calls = [lambda w=w: torch.mm(x, w.t()) for w in self.weights]
            reference = product_in_float64(torch, x, self.weights[0])
        return Case(
            calls=calls,
            errors=lambda seen: max(relative_error(torch, each, reference) for each in seen),
            tolerance=TOLERANCE,
            weight_bytes=2.0 * batch * n * k,
            activation_bytes=batch * _activation_bytes(tokens, n, k),
            flops=2.0 * batch * tokens * n * k,
            detail={"library": "cuBLAS" if self.machine.device == "cuda" else "oneDNN or MKL"},
        )


class _FourBit:
    """What the two four-bit kernels share: weights with known values, and the check."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.weight: QuantisedWeight | None = None

    def make(self, op: OpSpec) -> tuple[QuantisedWeight, int]:
        """Return the weight and the number of copies."""
        if not op.dtype.startswith("w4a16"):
            msg = f"no kernel here takes {op.dtype}"
            raise CellSkipped(msg)
        group = group_of(op.dtype)
        machine = self.machine
        try:
            weight = random_quantised(machine.torch, op.n, op.k, group, device=machine.device, seed=machine.seed)
        except ValueError as error:
            raise CellFailed(str(error)) from error
        self.weight = weight
        return weight, machine.copies(op.n * op.k * (0.5 + 2 / weight.group))

    def finish(self, tokens: int, x: Any, calls: Sequence[Any], detail: Mapping[str, Any]) -> Case:
        """Return the case, with the float64 reference of the very weights that were packed."""
        torch, weight = self.machine.torch, self.weight
        if weight is None:
            msg = "a case was asked for before its weights were made"
            raise RuntimeError(msg)
        reference = product_in_float64(torch, x, weight)
        return Case(
            calls=calls,
            errors=lambda seen: max(relative_error(torch, each, reference) for each in seen),
            tolerance=TOLERANCE,
            weight_bytes=weight.n * weight.k * (0.5 + 2 / weight.group),
            activation_bytes=_activation_bytes(tokens, weight.n, weight.k),
            flops=2.0 * tokens * weight.n * weight.k,
            detail=detail,
        )

    def activations(self, tokens: int) -> Any:
        """Make x."""
        k = self.weight.k if self.weight is not None else 0
        return random_dense(self.machine.torch, (tokens, k), device=self.machine.device, seed=self.machine.seed + 1)


class Int4PackDense(_FourBit):
    """torch._weight_int4pack_mm."""

    name = "int4pack"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.kernel = Int4Pack(machine)
        self.packed: list[Any] = []

    def prepare(self, op: OpSpec) -> None:
        """Pack, and copy."""
        weight, copies = self.make(op)
        first = self.kernel.pack(weight)
        self.packed = [first, *((first[0].clone(), first[1].clone()) for _ in range(copies - 1))]

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        x = self.activations(tokens)
        group = self.weight.group if self.weight is not None else 0
        calls = [lambda p=p: self.kernel.product(x, p, group) for p in self.packed]
        return self.finish(tokens, x, calls, {"kernel": self.kernel.kernel_name})


class MarlinDense(_FourBit):
    """vLLM's dense Marlin kernel."""

    name = "marlin"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.kernel: Marlin | None = None
        self.packed: list[Any] = []

    def prepare(self, op: OpSpec) -> None:
        """Repack, and copy."""
        self.kernel = Marlin(self.machine)
        weight, copies = self.make(op)
        first = self.kernel.pack(weight)
        self.packed = [first, *((first[0].clone(), first[1].clone()) for _ in range(copies - 1))]

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        kernel, weight = self.kernel, self.weight
        if kernel is None or weight is None:
            msg = "a case was asked for before its weights were made"
            raise RuntimeError(msg)
        x = self.activations(tokens)
        calls = [kernel.product(x, packed, weight) for packed in self.packed]
        return self.finish(tokens, x, calls, {"kernel": kernel.gemm_name, "vllm": kernel.version})

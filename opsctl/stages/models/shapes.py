"""The words in which a model is described here: products, experts, collectives. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field

BF16 = "bf16"
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}


def bytes_per_weight(dtype: str) -> float:
    """Return bytes a weight, scales included: ``w4a16-g32`` → 0.5 + 2/32 = 0.5625. Raises ValueError."""
    if dtype.startswith(("w4a16-g", "w8a16-g")):
        bits, group = int(dtype[1]), int(dtype.rsplit("-g", 1)[1])
        return bits / 8 + (2 / group if group > 0 else 0.0)
    if dtype not in _BYTES:
        msg = f"no such weight format: {dtype}"
        raise ValueError(msg)
    return _BYTES[dtype]


def experts_hit(experts: int, top_k: int, tokens: int) -> float:
    """Return how many distinct experts ``tokens`` tokens hit: E·(1 − (1 − k/E)^B), under uniform routing.

    Each token picks k of E without replacement, so one expert is missed by it with probability 1 − k/E.
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


@dataclass(frozen=True)
class DenseOp:
    """One matrix product, M × K by K × N, that a rank runs ``calls`` times in a decode step.

    ``batch`` > 1: that many independent products in one call (the absorbed projections of MLA, one a head).
    ``calls`` 0: not part of a decode step (prefill), or part of another row (one expert of the fused experts).
    """

    name: str
    n: int
    k: int
    dtype: str = BF16
    calls: int = 1
    batch: int = 1
    note: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights (and scales) that one call reads."""
        return self.batch * self.n * self.k * bytes_per_weight(self.dtype)

    def flops(self, tokens: int) -> float:
        """Return floating-point operations of one call: 2·M·N·K."""
        return 2.0 * tokens * self.batch * self.n * self.k


@dataclass(frozen=True)
class ExpertsOp:
    """The routed experts of one layer as production runs them: both products over all experts that a batch hits."""

    name: str
    experts: int
    """Experts on this rank."""
    all_experts: int
    """Experts of the layer, over all expert-parallel ranks."""
    top_k: int
    hidden: int
    intermediate: int
    """Of this rank: w13 is 2·intermediate × hidden, w2 is hidden × intermediate."""
    dtype: str
    calls: int

    @property
    def expert_bytes(self) -> float:
        """Bytes of one expert's weights and scales."""
        return 3 * self.hidden * self.intermediate * bytes_per_weight(self.dtype)

    def hit(self, tokens: int) -> float:
        """Return the expected number of this rank's experts that a batch hits."""
        return experts_hit(self.all_experts, self.top_k, tokens) * self.experts / self.all_experts

    def flops(self, tokens: int) -> float:
        """Return the expected operations of one call on this rank."""
        return 2.0 * 3 * self.hidden * self.intermediate * tokens * self.top_k * self.experts / self.all_experts


@dataclass(frozen=True)
class CollectivePlan:
    """One kind of collective in a decode step; ``bytes_per_token`` is its message, as nccl-tests counts it."""

    op: str
    calls: int
    bytes_per_token: int
    what: str


@dataclass(frozen=True)
class ModelShapes:
    """All that one rank runs in one decode step."""

    name: str
    tensor_parallel: int
    expert_parallel: int
    hidden: int
    layers: int
    ops: tuple[DenseOp | ExpertsOp, ...]
    collectives: tuple[CollectivePlan, ...] = ()
    moe_layers: int = 0
    top_k: int = 0
    notes: tuple[str, ...] = field(default=())

    def op(self, name: str) -> DenseOp | ExpertsOp:
        """Return an operation by name. Raises KeyError."""
        return {op.name: op for op in self.ops}[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all operations, in the order in which a step runs them."""
        return tuple(op.name for op in self.ops)

    def weight_bytes(self, tokens: int) -> float:
        """Return the bytes of weights that one decode step reads on one rank (expected, uniform routing)."""
        return sum(
            op.calls * (op.expert_bytes * op.hit(tokens) if isinstance(op, ExpertsOp) else op.weight_bytes)
            for op in self.ops
        )

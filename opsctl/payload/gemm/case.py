"""What a backend prepares for one operation at one batch: calls to time, and the truth to check them against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from opsctl.payload.gemm import OpSpec

#: Weights are cycled through so many that they exceed the last-level cache by this factor.
_COLD = 4
_MOST_COPIES = 256
_CPU_BYTES = 64 << 20
DEFAULT_CACHE = 64 << 20


@dataclass(frozen=True)
class Case:
    """One operation at one batch, ready to run."""

    calls: Sequence[Callable[[], Any]]
    """Each with weights of its own (or, for experts, a routing of its own)."""
    errors: Callable[[Sequence[Any]], float]
    """Worst relative error of the calls' outputs against float64."""
    tolerance: float
    weight_bytes: float
    activation_bytes: float
    flops: float
    detail: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """A kernel's way in: prepares weights once an operation, then a case a batch."""

    name: str

    def prepare(self, op: OpSpec) -> None:
        """Make the weights. Raises CellSkipped when this machine has no such kernel, CellFailed when it refuses."""
        ...

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        ...


@dataclass
class Machine:
    """torch and the device that is measured."""

    torch: Any
    device: str
    cache: int = DEFAULT_CACHE
    """Bytes of the last-level cache: what the copies have to exceed."""
    seed: int = 1

    def copies(self, weight_bytes: float) -> int:
        """Return how many copies of a weight make its reads cold."""
        if self.device == "cpu":
            return max(1, min(8, int(_CPU_BYTES // max(weight_bytes, 1))))
        return max(2, min(_MOST_COPIES, math.ceil(_COLD * self.cache / max(weight_bytes, 1))))


def group_of(dtype: str) -> int:
    """Return the group of ``w4a16-g32``; −1 is one group a column."""
    return int(dtype.rsplit("-g", 1)[1])

"""Weights with known values: random four-bit weights with group scales, and what they are in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ROWS = 4096  # rows of weights that are dequantised at once for the reference


@dataclass(frozen=True)
class QuantisedWeight:
    """Symmetric W4A16: ``values`` uint8[n, k] in 0…15 (zero point 8), ``scales`` bf16[k / group, n]."""

    values: Any
    scales: Any
    group: int

    @property
    def n(self) -> int:
        """Output features."""
        return int(self.values.shape[0])

    @property
    def k(self) -> int:
        """Input features."""
        return int(self.values.shape[1])

    def dequantised(self, torch: Any, first: int, last: int) -> Any:
        """Return rows [first, last) as float64."""
        scales = self.scales[:, first:last].t().to(torch.float64).repeat_interleave(self.group, dim=1)
        return (self.values[first:last].to(torch.float64) - 8) * scales


def random_quantised(torch: Any, n: int, k: int, group: int, *, device: str, seed: int) -> QuantisedWeight:
    """Make a weight. ``group`` −1 is one group a column. Raises ValueError when k is no multiple of the group."""
    group = k if group <= 0 else group
    if k % group:
        msg = f"K of {k} is no multiple of the group of {group}"
        raise ValueError(msg)
    maker = torch.Generator(device=device).manual_seed(seed)
    values = torch.randint(0, 16, (n, k), dtype=torch.uint8, device=device, generator=maker)
    # A step of 1/(8·√k) keeps the products near 1, as trained weights do.
    scales = torch.rand(k // group, n, device=device, generator=maker) + 0.5
    return QuantisedWeight(values, (scales / (8 * k**0.5)).to(torch.bfloat16), group)


def random_dense(torch: Any, shape: tuple[int, ...], *, device: str, seed: int) -> Any:
    """Make BF16 weights or activations, normal, scaled by 1/√(last dimension) when they are weights of that fan-in."""
    maker = torch.Generator(device=device).manual_seed(seed)
    return torch.randn(*shape, device=device, generator=maker, dtype=torch.float32).to(torch.bfloat16)


def product_in_float64(torch: Any, x: Any, weight: Any) -> Any:
    """Return x[m, k] · weight[n, k]ᵀ in float64, in slices; ``weight`` is BF16 or a QuantisedWeight."""
    wide = x.to(torch.float64)
    n = weight.n if isinstance(weight, QuantisedWeight) else int(weight.shape[0])
    parts = []
    for first in range(0, n, _ROWS):
        last = min(first + _ROWS, n)
        rows = (
            weight.dequantised(torch, first, last)
            if isinstance(weight, QuantisedWeight)
            else weight[first:last].to(torch.float64)
        )
        parts.append(wide @ rows.t())
    return torch.cat(parts, dim=1)


def relative_error(torch: Any, seen: Any, reference: Any) -> float:
    """Return ‖seen − reference‖ / ‖reference‖ (Frobenius) in float64; infinity where seen holds NaN or infinity."""
    wide = seen.to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        return float("inf")
    return float(torch.linalg.vector_norm(wide - reference) / torch.linalg.vector_norm(reference))

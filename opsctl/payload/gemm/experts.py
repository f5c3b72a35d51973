"""The routed experts of a layer as decode runs them: both products over every expert that a batch hits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm import OpSpec
from opsctl.payload.gemm.case import Case, Machine, group_of
from opsctl.payload.gemm.int4pack import Int4Pack
from opsctl.payload.gemm.marlin import Marlin, bind
from opsctl.payload.gemm.weights import QuantisedWeight, random_dense, random_quantised, relative_error

#: Two products with a BF16 rounding in between: about twice the rounding of one.
TOLERANCE = 2e-2
_DISTINCT = 8  # experts with values of their own; the rest are copies at addresses of their own
_MOST_ROUTINGS = 16
_CHECKED_ON_CPU = 2  # tokens of which the processor checks the result in float64


@dataclass(frozen=True)
class Routing:
    """Which experts each token goes to: ``ids[m][k]`` over all experts of the layer, and their weights."""

    ids: list[list[int]]
    weights: list[list[float]]

    def hit(self, first: int, count: int) -> list[int]:
        """Return the experts of [first, first + count) that any token goes to."""
        return sorted({e for row in self.ids for e in row if first <= e < first + count})


def route(tokens: int, experts: int, top_k: int, seed: int) -> Routing:
    """Return a uniform random routing: each token picks k experts without replacement; weights sum to 1."""
    chance = random.Random(seed)
    ids = [chance.sample(range(experts), top_k) for _ in range(tokens)]
    weights = []
    for _ in range(tokens):
        row = [chance.random() + 0.1 for _ in range(top_k)]
        weights.append([value / sum(row) for value in row])
    return Routing(ids, weights)


class _Experts:
    """Weights with known values, routings, and the check."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.op = OpSpec("", "")
        self.distinct: list[tuple[QuantisedWeight, QuantisedWeight]] = []

    def make(self, op: OpSpec) -> None:
        """Make the distinct experts."""
        if not op.dtype.startswith("w4a16"):
            msg = f"no kernel here takes experts of {op.dtype}"
            raise CellSkipped(msg)
        self.op = op
        machine, group = self.machine, group_of(op.dtype)
        hidden, width = op.hidden, op.intermediate
        try:
            self.distinct = [
                (
                    random_quantised(machine.torch, 2 * width, hidden, group, device=machine.device, seed=2 * e + 1),
                    random_quantised(machine.torch, hidden, width, group, device=machine.device, seed=2 * e + 2),
                )
                for e in range(min(_DISTINCT, op.experts))
            ]
        except ValueError as error:
            raise CellFailed(str(error)) from error

    @property
    def expert_bytes(self) -> float:
        """Bytes of one expert."""
        group = group_of(self.op.dtype)
        return float(3 * self.op.hidden * self.op.intermediate * (0.5 + (2 / group if group > 0 else 0.0)))

    def routings(self, tokens: int) -> list[Routing]:
        """Return enough routings to make the reads cold."""
        first = route(tokens, self.op.all_experts, self.op.top_k, seed=self.machine.seed)
        read = max(1, len(first.hit(0, self.op.experts))) * self.expert_bytes
        wanted = 1 if self.machine.device == "cpu" else math.ceil(4 * self.machine.cache / read)
        count = max(1, min(_MOST_ROUTINGS, wanted))
        rest = (
            route(tokens, self.op.all_experts, self.op.top_k, seed=self.machine.seed + number)
            for number in range(1, count)
        )
        return [first, *rest]

    def reference(self, x: Any, routing: Routing, rows: Sequence[int]) -> Any:
        """Return the layer's output of some tokens in float64."""
        torch = self.machine.torch
        wide = x.to(torch.float64)
        result = torch.zeros(len(rows), self.op.hidden, dtype=torch.float64, device=x.device)
        dequantised: dict[int, tuple[Any, Any]] = {}
        for place, row in enumerate(rows):
            for expert, weight in zip(routing.ids[row], routing.weights[row]):
                if expert >= self.op.experts:
                    continue  # another rank's, under expert parallelism
                content = expert % len(self.distinct)
                if content not in dequantised:
                    w13, w2 = self.distinct[content]
                    dequantised[content] = (w13.dequantised(torch, 0, w13.n), w2.dequantised(torch, 0, w2.n))
                up_down = dequantised[content]
                both = up_down[0] @ wide[row]
                half = both.shape[0] // 2
                middle = torch.nn.functional.silu(both[:half]) * both[half:]
                result[place] += weight * (up_down[1] @ middle)
        return result

    def finish(
        self,
        tokens: int,
        x: Any,
        routings: Sequence[Routing],
        calls: Sequence[Callable[[], Any]],
        detail: dict[str, Any],
    ) -> Case:
        """Return the case."""
        torch, op = self.machine.torch, self.op
        rows = list(range(tokens)) if self.machine.device == "cuda" else list(range(min(tokens, _CHECKED_ON_CPU)))

        def errors(seen: Sequence[Any]) -> float:
            return max(
                relative_error(torch, each[rows], self.reference(x, routing, rows))
                for each, routing in zip(seen, routings)
            )

        hits = [len(routing.hit(0, op.experts)) for routing in routings]
        pairs = [sum(e < op.experts for row in routing.ids for e in row) for routing in routings]
        mean_hits, mean_pairs = sum(hits) / len(hits), sum(pairs) / len(pairs)
        return Case(
            calls=calls,
            errors=errors,
            tolerance=TOLERANCE,
            weight_bytes=mean_hits * self.expert_bytes,
            activation_bytes=2.0 * tokens * 2 * op.hidden,
            flops=2.0 * 3 * op.hidden * op.intermediate * mean_pairs,
            detail={
                "experts_hit": mean_hits,
                "experts_of": op.experts,
                "routings": len(routings),
                "checked_tokens": len(rows),
                **detail,
            },
        )

    def activations(self, tokens: int) -> Any:
        """Make x."""
        shape = (tokens, self.op.hidden)
        return random_dense(self.machine.torch, shape, device=self.machine.device, seed=self.machine.seed + 1)


class MarlinExperts(_Experts):
    """vLLM's fused_marlin_moe: what production runs."""

    name = "marlin"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.weights: tuple[Any, Any, Any, Any] | None = None

    def prepare(self, op: OpSpec) -> None:
        """Pack the distinct experts; spread them over all the addresses of the real number of experts."""
        self.kernel = Marlin(self.machine)
        self.fused = self.kernel.fused_moe()
        self.make(op)
        torch = self.machine.torch
        packed = [(self.kernel.pack(w13), self.kernel.pack(w2)) for w13, w2 in self.distinct]
        order = torch.arange(op.experts, device="cuda") % len(packed)

        def spread(parts: list[Any]) -> Any:
            return torch.stack(parts)[order].contiguous()

        self.weights = (
            spread([w13[0] for w13, _ in packed]),
            spread([w2[0] for _, w2 in packed]),
            spread([w13[1] for w13, _ in packed]),
            spread([w2[1] for _, w2 in packed]),
        )

    def _call(self, x: Any, routing: Routing) -> Callable[[], Any]:
        torch, op = self.machine.torch, self.op
        if self.weights is None:
            msg = "a case was asked for before its weights were made"
            raise RuntimeError(msg)
        w1, w2, scale1, scale2 = self.weights
        expert_map = None
        if op.experts != op.all_experts:
            expert_map = torch.full((op.all_experts,), -1, dtype=torch.int32, device="cuda")
            expert_map[: op.experts] = torch.arange(op.experts, dtype=torch.int32, device="cuda")
        values = {
            "hidden_states": x,
            "w1": w1,
            "w2": w2,
            "bias1": None,
            "bias2": None,
            "w1_scale": scale1,
            "w2_scale": scale2,
            "gating_output": torch.zeros(x.shape[0], op.all_experts, dtype=x.dtype, device="cuda"),
            "topk_weights": torch.tensor(routing.weights, dtype=torch.float32, device="cuda"),
            "topk_ids": torch.tensor(routing.ids, dtype=torch.int32, device="cuda"),
            "quant_type_id": self.kernel.type.id,
            "num_bits": 4,
            "global_num_experts": op.all_experts,
            "expert_map": expert_map,
            "workspace": self.kernel.workspace(2 * op.intermediate),
            "is_k_full": True,
        }
        arguments = bind(self.fused, values)
        return lambda: self.fused(**arguments)

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        x = self.activations(tokens)
        routings = self.routings(tokens)
        calls = [self._call(x, routing) for routing in routings]
        return self.finish(tokens, x, routings, calls, {"kernel": "fused_marlin_moe", "vllm": self.kernel.version})


class Int4PackExperts(_Experts):
    """torch's int4pack, an expert at a time: what there is without vLLM."""

    name = "int4pack"

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.kernel = Int4Pack(machine)
        self.packed: list[tuple[tuple[Any, Any], tuple[Any, Any]]] = []
        self.addresses: dict[int, tuple[tuple[Any, Any], tuple[Any, Any]]] = {}

    def prepare(self, op: OpSpec) -> None:
        """Pack the distinct experts."""
        self.make(op)
        self.addresses = {}
        self.packed = [(self.kernel.pack(w13), self.kernel.pack(w2)) for w13, w2 in self.distinct]

    def _expert(self, expert: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        if expert not in self.addresses:
            w13, w2 = self.packed[expert % len(self.packed)]
            self.addresses[expert] = ((w13[0].clone(), w13[1].clone()), (w2[0].clone(), w2[1].clone()))
        return self.addresses[expert]

    def _call(self, x: Any, routing: Routing) -> Callable[[], Any]:
        torch, group, op = self.machine.torch, self.distinct[0][0].group, self.op
        group2 = self.distinct[0][1].group
        work = []
        for expert in routing.hit(0, op.experts):
            pairs = [(m, k) for m, row in enumerate(routing.ids) for k, e in enumerate(row) if e == expert]
            index = torch.tensor([m for m, _ in pairs], device=x.device)
            weights = torch.tensor([routing.weights[m][k] for m, k in pairs], device=x.device)
            work.append((self._expert(expert), index, weights[:, None]))

        def call() -> Any:
            result = torch.zeros(x.shape[0], op.hidden, dtype=torch.float32, device=x.device)
            for (w13, w2), index, weights in work:
                both = self.kernel.product(x[index], w13, group)
                half = both.shape[1] // 2
                middle = torch.nn.functional.silu(both[:, :half]) * both[:, half:]
                result.index_add_(0, index, weights * self.kernel.product(middle.contiguous(), w2, group2).float())
            return result.to(torch.bfloat16)

        return call

    def case(self, tokens: int) -> Case:
        """Return the case of a batch."""
        x = self.activations(tokens)
        routings = self.routings(tokens)
        calls = [self._call(x, routing) for routing in routings]
        return self.finish(tokens, x, routings, calls, {"kernel": f"{self.kernel.kernel_name}, an expert at a time"})

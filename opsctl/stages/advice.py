"""Which parallelism the measured collectives speak for, batch by batch. From measurement only. Pure.

Nothing is modelled: a collective that was not measured at a batch makes that batch unknown, and where nothing is
known nothing is advised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.results import Cell, State
from opsctl.stages.models import ModelShapes

ASSUMPTIONS = (
    "collectives are counted as exposed: overlap with compute on other streams is not measured here",
    "tensor parallel: the model's all-reduces and its logits all-gather, each at the message of its batch",
    "expert parallel: attention is data parallel, so its all-reduces fall away",
    "expert parallel: each expert layer has one dispatch and one combine all-to-all, in BF16",
    "each of these carries tokens ÷ ranks × top-k × hidden × 2 bytes a rank",
    "experts are hit evenly; the slowest rank of an uneven batch is slower",
    "compute is not compared: expert parallel reads whole experts, and data-parallel attention replicates its weights",
)


#: A difference below this share is not worth a change of the deployment, and within what runs differ by.
CLEAR = 0.1


@dataclass(frozen=True)
class Choice:
    """What the collectives of one decode step cost at a batch, in µs; None where something was not measured."""

    tokens: int
    tensor_parallel_us: float | None
    expert_parallel_us: float | None
    missing: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """By collective, the fastest measured settings: which protocol, graph or not."""


@dataclass(frozen=True)
class Advice:
    """The choices, in words and in numbers."""

    topology: str
    choices: tuple[Choice, ...]
    lines: tuple[str, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "topology": self.topology,
            "lines": list(self.lines),
            "assumptions": list(self.assumptions),
            "choices": [
                {
                    "tokens": each.tokens,
                    "tensor_parallel_us": each.tensor_parallel_us,
                    "expert_parallel_us": each.expert_parallel_us,
                    "missing": list(each.missing),
                    "settings": dict(each.settings),
                }
                for each in self.choices
            ],
        }


def fastest(cells: Sequence[Cell], op: str, tokens: int) -> tuple[float, str] | None:
    """Return (µs, settings) of the fastest verified cell of a collective at a batch.

    Cells under CUDA graphs, which is how decode runs them, come before those without.
    """
    found = []
    for cell in cells:
        time = cell.figure("collective.time.p50")
        if cell.state is not State.VERIFIED or time is None:
            continue
        if cell.axes.get("op") == op and cell.axes.get("tokens") == tokens:
            known = {"op", "tokens", "bytes", "graph"}
            settings = ", ".join(f"{key}={value}" for key, value in cell.axes.items() if key not in known)
            found.append((cell.axes.get("graph") != "on", time.value, settings or "default"))
    if not found:
        return None
    _, micros, settings = min(found)
    return micros, settings


def _total(
    parts: Sequence[tuple[str, int]], cells: Sequence[Cell], tokens: int
) -> tuple[float | None, list[str], dict[str, str]]:
    total, missing, settings = 0.0, [], {}
    for op, calls in parts:
        best = fastest(cells, op, tokens)
        if best is None:
            missing.append(op)
            continue
        total += calls * best[0]
        settings[op] = best[1]
    return (None if missing else total), missing, settings


def advise(shapes: ModelShapes, cells: Sequence[Cell], topology: str) -> Advice:
    """Return what the measured times say for this model on this topology."""
    tokens = sorted({int(cell.axes["tokens"]) for cell in cells if "tokens" in cell.axes})
    tensor = [(plan.op, plan.calls) for plan in shapes.collectives]
    expert = [("all_to_all", 2 * shapes.moe_layers)] if shapes.moe_layers else []
    choices = []
    for batch in tokens:
        with_tensor, missing, settings = _total(tensor, cells, batch)
        with_expert, lacking, more = _total(expert, cells, batch) if expert else (None, [], {})
        gaps = tuple(dict.fromkeys([*missing, *lacking]))
        choices.append(Choice(batch, with_tensor if tensor else None, with_expert, gaps, {**settings, **more}))
    return Advice(topology, tuple(choices), tuple(_lines(shapes, choices, topology)))


def _lines(shapes: ModelShapes, choices: Sequence[Choice], topology: str) -> list[str]:
    if not shapes.moe_layers:
        return [f"{shapes.name} has no experts: expert parallelism is no choice"]
    if not choices or all(each.tensor_parallel_us is None and each.expert_parallel_us is None for each in choices):
        return ["nothing was measured that would speak for one or the other: no advice"]
    lines = []
    for each in choices:
        if each.tensor_parallel_us is None or each.expert_parallel_us is None:
            lines.append(f"{each.tokens} tokens: not measured: {', '.join(each.missing)}: no advice")
            continue
        if abs(each.tensor_parallel_us - each.expert_parallel_us) < CLEAR * max(
            each.tensor_parallel_us, each.expert_parallel_us
        ):
            lines.append(
                f"{each.tokens} tokens: no clear difference: {each.tensor_parallel_us / 1e3:.2f} ms of collectives a "
                f"step with tensor parallel, {each.expert_parallel_us / 1e3:.2f} ms with expert parallel, on {topology}"
            )
            continue
        better, worse = "tensor", "expert"
        low, high = each.tensor_parallel_us, each.expert_parallel_us
        if high < low:
            better, worse, low, high = "expert", "tensor", high, low
        lines.append(
            f"{each.tokens} tokens: {better} parallel, {low / 1e3:.2f} ms of collectives a step against "
            f"{high / 1e3:.2f} ms with {worse} parallel, on {topology}"
        )
    return lines

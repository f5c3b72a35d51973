"""Small traces whose truth is known by construction: every piece of work is placed on a grid of whole microseconds.

The truth is counted on that grid, microsecond by microsecond, which is slow, obvious, and nothing like the analysis.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from opsctl.trace.categories import default_categories
from tests.trace.kineto import GEMM, MARLIN, NCCL, SAMPLE, Event, host, kernel, launch

US = 1_000
ADAM = "void at::native::multi_tensor_apply_kernel<at::native::FusedAdamMathFunctor<float>>()"
ATTENTION = "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576>>()"
CATEGORY = {
    MARLIN: "moe-gemm",
    GEMM: "dense-gemm",
    SAMPLE: "sampling",
    ADAM: "optimizer",
    ATTENTION: "attention",
}
MESSAGE = {"In msg nelems": 1024, "dtype": "BFloat16", "Group size": 2, "Process Group Name": "tp"}
COLLECTIVES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "nccl": (NCCL, "all_reduce", {}),
    "rccl": (
        "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "all_gather",
        {"Collective name": "_allgather_base", "Out msg nelems": 2048, **MESSAGE},
    ),
    "multimem": ("void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce", {}),
    "custom": ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>()", "all_reduce", {}),
    "symmetric": ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce", {}),
    "all-to-all": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "all_to_all", {}),
    "all-to-all, said": (
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "all_to_all",
        {"Collective name": "all_to_allv", **MESSAGE},
    ),
}
MARKERS = {
    "vllm": ("user_annotation", "execute_context_0(0)_generation_4(4)", "decode"),
    "sglang": ("user_annotation", "step[DECODE bs=4]", "decode"),
    "prefill": ("user_annotation", "execute_context_4(512)_generation_0(0)", "prefill"),
    "mixed": ("user_annotation", "execute_context_1(64)_generation_3(3)", "mixed"),
    "training": ("user_annotation", "ProfilerStep#{step}", "training"),
    "old training": ("Operator", "ProfilerStep#{step}", "training"),
    "inference": ("user_annotation", "ProfilerStep#{step}", "other"),
}


@dataclass(frozen=True)
class Piece:
    """One piece of device work, times in whole µs."""

    step: int
    name: str
    start: int
    length: int
    stream: int
    phase: str = "forward"

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class Scenario:
    """What a trace is like. Times in µs: ``beside`` of a GEMM runs on a second stream, ``early`` is how much before its
    predecessor's end a kernel starts (programmatic launch), ``carry`` how long a step's copy stream runs into the next
    step, ``skew`` how much later each rank arrives than the one before, ``lag`` from launch to start."""

    seed: int = 0
    steps: int = 6
    layers: int = 2
    ranks: int = 1
    marker: str = "vllm"
    collective: str = "nccl"
    beside: int = 0
    early: int = 0
    carry: int = 0
    skew: int = 0
    lag: int = 40
    graphs: bool = True
    base: int = 1_000_000

    @property
    def training(self) -> bool:
        return self.marker in ("training", "old training")

    @cached_property
    def lengths(self) -> list[list[int]]:
        """Of each step and layer: µs of the first kernel; a little different each time."""
        dice = random.Random(self.seed)  # noqa: S311
        return [[100 + dice.randint(0, 3) for _ in range(self.layers)] for _ in range(self.steps)]

    def pieces(self, rank: int) -> list[Piece]:
        """Return the work of a rank. A collective ends on all ranks at once and begins ``skew`` later each rank."""
        made = []
        at = self.base
        name, _, _ = COLLECTIVES[self.collective]
        for step, lengths in enumerate(self.lengths):
            for length in lengths:
                made.append(Piece(step, MARLIN, at, length, 7))
                if self.beside:
                    made.append(Piece(step, GEMM, at + 10, self.beside, 17))
                after = at + length - self.early
                phase = "backward" if self.training else "forward"
                made.append(Piece(step, ATTENTION, after, 50, 7, phase))
                wait = rank * self.skew
                made.append(Piece(step, name, after + 55 + wait, 60 - wait, 7, phase))
                at = after + 120
            last = ADAM if self.training else GEMM if self.marker == "inference" else SAMPLE
            made.append(Piece(step, last, at, 20, 7, "optimizer" if self.training else "forward"))
            if self.carry:
                made.append(Piece(step, GEMM, at + 5, 45 + self.carry, 29))
            at += 50
        return made

    def events(self, rank: int) -> list[Event]:
        """Return the trace of a rank."""
        events: list[Event] = []
        category, marker, _ = MARKERS[self.marker]
        pieces = self.pieces(rank)
        by_step: dict[int, list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_step[piece.step].append(piece)
        correlation = 1000
        _, _, arguments = COLLECTIVES[self.collective]
        for step, own in by_step.items():
            first = min(piece.start for piece in own)
            begin = (first - self.lag) * US
            events.append({**host(category, marker.format(step=step), begin, 20 * US)})
            graph = correlation
            if self.graphs:
                events.append(launch("cudaGraphLaunch", begin + 2 * US, graph))
            for place, piece in enumerate(own):
                correlation += 1
                in_graph = self.graphs and piece.phase == "forward" and piece.name in (MARLIN, ATTENTION)
                key = graph if in_graph else correlation
                at = begin + 3 * US + place * 100
                if not in_graph:
                    call = launch("cudaLaunchKernel", at, key)
                    if piece.phase == "backward":
                        call["tid"] = 416
                    events.append(call)
                is_collective = piece.name == COLLECTIVES[self.collective][0]
                if is_collective and self.collective == "all-to-all":
                    note = host("user_annotation", "nccl:all_to_all", at - 50, 90)
                    events.append({**note, "tid": events[-1]["tid"]})
                if piece.phase == "optimizer":
                    events.append(host("user_annotation", "Optimizer.step#AdamW.step", at - 50, 90))
                extra = arguments if is_collective else {}
                times = (piece.start * US, piece.length * US)
                events.append(kernel(piece.name, *times, stream=piece.stream, correlation=key, **extra))
            correlation += 10
        return events


@dataclass(frozen=True)
class StepTruth:
    """One step that has a next one, in µs."""

    wall: int
    busy: int
    idle: int
    sum: int
    others: int
    by_category: dict[str, int]


def truth(scenario: Scenario, rank: int = 0) -> list[StepTruth]:
    """Count each step's wall time on the grid."""
    pieces = scenario.pieces(rank)
    order = default_categories().order
    firsts = [min(piece.start for piece in pieces if piece.step == step) for step in range(scenario.steps)]
    found = []
    for step, (begin, end) in enumerate(pairwise(firsts)):
        inside = [piece for piece in pieces if piece.start < end and piece.end > begin]
        counts: dict[str, int] = defaultdict(int)
        others = 0
        for moment in range(begin, end):
            running = [piece for piece in inside if piece.start <= moment < piece.end]
            if running:
                counts[min((category_of(piece.name) for piece in running), key=order.index)] += 1
                others += all(piece.step != step for piece in running)
        busy = sum(counts.values())
        total = sum(min(piece.end, end) - max(piece.start, begin) for piece in inside)
        found.append(StepTruth(end - begin, busy, end - begin - busy, total, others, dict(counts)))
    return found


def category_of(name: str) -> str:
    return CATEGORY.get(name, "communication")


def covered(pieces: list[Piece]) -> int:
    """Return how many µs of the grid any piece covers."""
    return len({moment for piece in pieces for moment in range(piece.start, piece.end)})


def scenarios() -> Iterator[Scenario]:
    """Yield the table: every collective in every shape of a step, with markers, ranks and launches going round."""
    shapes = [
        {},
        {"beside": 30},
        {"early": 15},
        {"carry": 25},
        {"beside": 70, "early": 10, "carry": 60},
    ]
    markers, number = list(MARKERS), 0
    for collective in COLLECTIVES:
        for shape in shapes:
            yield Scenario(
                seed=number,
                collective=collective,
                marker=markers[number % len(markers)],
                ranks=1 + number % 3,
                skew=(0, 7, 11)[number % 3] if number % 3 else 0,
                graphs=number % 2 == 0,
                lag=(40, 77_000)[number % 4 == 3],
                base=(1_000_000, 1_661_938_466_000_000)[number % 5 == 4],
                **shape,
            )
            number += 1
    for marker in MARKERS:
        yield Scenario(seed=number, marker=marker, ranks=4, skew=5, beside=40, carry=30, graphs=False)
        number += 1

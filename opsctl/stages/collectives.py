"""Stage collectives: the model's own messages over this host's own links, and what that says of parallelism."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from opsctl.errors import StageError
from opsctl.options import Model
from opsctl.payload.collectives import CellSpec, Rendezvous, Spec
from opsctl.quantities import Duration, Size
from opsctl.results import Cell, StepResult
from opsctl.stages.advice import advise
from opsctl.stages.base import Invocation, Place, Stage, StageContext, needs_free_gpus, only_of, positive
from opsctl.stages.modelchoice import model_shapes, problems_of_model
from opsctl.stages.models import ModelShapes
from opsctl.stages.nccl import problems_of_sweep
from opsctl.stages.rendering import Column, FigureKind, LineChart, Rendering
from opsctl.stages.topology import parse_topology

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DEFAULT = "default"
"""The value of a sweep's axis that leaves the variable unset."""
_GRACE = 60.0
_PORT = 29511  # of the first host; each group of ranks takes the next one


class Collectives(Model):
    """All-reduce and its kin at the model's own message sizes."""

    model: str = "served"
    """kimi-k2.5 (built in), or `served`: the served model's own config.json."""
    tokens: tuple[int, ...] = (1, 8, 32)
    """Tokens in the step: each gives the message size of the model."""
    ops: tuple[str, ...] = OPS
    """Which collectives."""
    sizes: tuple[Size, ...] = ()
    """Own message sizes in bytes instead of a model's."""
    world_size: int | None = Field(default=None, ge=1)
    """Ranks; default: the service's tensor-parallel degree, else all GPUs."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: NCCL where the host has CUDA, else gloo."""
    sweep: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Environment axes, such as {NCCL_PROTO: [default, LL, LL128, Simple]}."""
    across_hosts: bool = False
    """One group over all hosts of the playbook, `world-size` ranks on each: they meet at the first one's address."""
    graphs: Literal["both", "on", "off"] = "both"
    """Under CUDA graphs, as decode runs them, and without."""
    repetitions: int = Field(default=200, ge=3)
    """Measurements of each cell."""
    smoke_limit: Duration = 60.0
    """Longest time for one small all-reduce before anything else: a topology that hangs is found early."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


def world_size(options: Collectives, context: StageContext) -> int:
    """Return the number of ranks over all hosts. Raises StageError."""
    return ranks(options, context) * (max(1, len(context.peers)) if options.across_hosts else 1)


def known_ranks(options: Collectives, place: Place) -> int | None:
    """Return the number of ranks of a host; None where nothing says how many."""
    return options.world_size or place.tensor_parallel or place.host.gpus


def ranks(options: Collectives, context: StageContext) -> int:
    """Return the number of ranks of a host. Raises StageError where nothing says how many."""
    found = known_ranks(options, context)
    if not found:
        raise StageError(
            f"{context.step}: the number of ranks is not known",
            where=context.host_name,
            hint="give the step `world-size`, or the host `gpus`",
        )
    return found


def too_few_gpus(options: Collectives, place: Place, gpus: int | None) -> Iterable[tuple[str, str]]:
    """Yield the problem of ranks that would share a GPU. A host of one GPU has none: its cells do not apply there."""
    wanted = known_ranks(options, place)
    if options.backend == "gloo" or not wanted or not gpus or (gpus == 1 and not options.across_hosts):
        return
    if gpus < wanted:
        yield "world-size", f"wanted a GPU for each rank, found {wanted} ranks and {gpus} GPUs on {place.host_name}"


def message_bytes(op: str, tokens: int, shapes: ModelShapes, world: int) -> int:
    """Return a collective's message at a batch, as nccl-tests counts it.

    all_reduce and reduce_scatter carry the hidden states, all_gather the logits; all_to_all the dispatch of expert
    parallelism (each rank's share of the tokens, to top-k experts each), or the hidden states of a dense model.
    """
    hidden = shapes.hidden * 2
    if op == "all_gather":
        logits = next((plan.bytes_per_token for plan in shapes.collectives if plan.op == "all_gather"), hidden)
        return tokens * logits
    if op == "all_to_all" and shapes.top_k:
        return -(-tokens // world) * shapes.top_k * hidden
    return tokens * hidden


def _sizes(options: Collectives, context: StageContext, world: int) -> list[tuple[str, int, int | None]]:
    """Return (op, bytes, tokens) of each message."""
    if options.sizes:
        return [(op, size, None) for op in options.ops for size in dict.fromkeys(options.sizes)]
    shapes = model_shapes(options.model, context, tensor_parallel=world)
    return [
        (op, message_bytes(op, tokens, shapes, world), tokens)
        for op in options.ops
        for tokens in dict.fromkeys(options.tokens)
    ]


def _rendezvous(context: StageContext) -> Rendezvous:
    """Return where the hosts meet. Raises StageError."""
    names = [name for name, _ in context.peers]
    if len(names) < 2 or context.host_name not in names:
        raise StageError(
            f"{context.step}: across-hosts wants a run over several hosts",
            seen=f"{len(names)} hosts: {', '.join(names) or 'none are known'}",
            where=context.host_name,
            hint="give the playbook a group of hosts",
        )
    return Rendezvous(context.peers[0][1], _PORT, names.index(context.host_name), len(names))


def _graphs(options: Collectives) -> tuple[str, ...]:
    if options.backend == "gloo":
        return ("off",)
    return {"both": ("on", "off"), "on": ("on",), "off": ("off",)}[options.graphs]


class CollectivesStage(Stage):
    """One cell a collective, message, graph or not, and setting of the sweep."""

    name = "collectives"
    options = Collectives
    about = "collectives by themselves, and with them any advice on parallelism"
    figures = (
        FigureKind("collective.time.p50", "lower", headline=True),
        FigureKind("collective.time.*", "lower"),
        FigureKind("collective.*bw", "higher"),
        FigureKind("*"),
    )
    incidental = ("tokens", "sizes", "ops", "sweep", "graphs", "smoke-limit")
    rendering = Rendering(
        title="Collectives against message size",
        short="Collectives",
        columns=(
            Column("Operation", axes=("op",)),
            Column("Size", axes=("bytes",), form="size"),
            Column("Tokens", axes=("tokens",)),
            Column("How"),
            Column("p50, µs", "collective.time.p50", form="spread"),
            Column("p99, µs", "collective.time.p99"),
            Column("algbw, GB/s", "collective.algbw"),
            Column("busbw, GB/s", "collective.busbw"),
        ),
        note="algbw = bytes / time; busbw = algbw × 2(n-1)/n for all_reduce and × (n-1)/n for all_gather, "
        "reduce_scatter and all_to_all, as nccl-tests defines them. Results were checked. A size with tokens is the "
        "model's own: tokens × hidden × bytes of the type.",
        charts=(
            LineChart(
                "collectives",
                "Collectives against message size",
                x=("bytes",),
                x_title="message size (tokens where it is the model's own)",
                figures=("collective.time.p50",),
                y_title="p50, µs",
                y_log=True,
                sizes=True,
                ticks="tokens",
            ),
        ),
    )

    def problems(self, options: Collectives, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield what cannot be measured: GPUs in use, unknown collectives, a number of ranks that is not known."""
        yield from positive("tokens", options.tokens)
        yield from only_of("ops", options.ops, OPS)
        yield from problems_of_model(options.model)
        yield from (("sweep", words) for words in problems_of_sweep(options.sweep, DEFAULT))
        if options.backend != "gloo":
            yield from needs_free_gpus(self.name, places)
        if options.across_hosts and len(places) == 1:
            yield "across-hosts", f"wanted a playbook over several hosts, found one: {places[0].host_name}"
        for place in places:
            if known_ranks(options, place) is None:
                ways = "give the step `world-size`, production `tensor-parallel`, or the host `gpus`"
                yield "", f"the number of ranks on {place.host_name} is not known: {ways}"
            yield from too_few_gpus(options, place, place.host.gpus)

    def cells(self, options: Collectives, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate. Raises StageError when the ranks or messages are not known, or the host has too few GPUs."""
        for option, problem in too_few_gpus(options, context, context.gpus):
            hint = "lower world-size (often a var of the playbook), or backend: gloo"
            raise StageError(f"{context.step}: {option}: {problem}", where=context.host_name, hint=hint)
        planned = []
        axes = [[(name, value) for value in dict.fromkeys(values)] for name, values in options.sweep.items()]
        for setting in itertools.product(*axes):
            for op, size, tokens in _sizes(options, context, world_size(options, context)):
                for graph in _graphs(options):
                    named = "".join(f"/{name}={value}" for name, value in setting)
                    batch = f"M={tokens}" if tokens is not None else f"{size}B"
                    planned.append(
                        Cell(
                            id=f"{op}/{batch}/graph={graph}{named}",
                            axes={
                                "op": op,
                                "bytes": size,
                                **({"tokens": tokens} if tokens is not None else {}),
                                "graph": graph,
                                **dict(setting),
                            },
                        )
                    )
        return tuple(planned)

    def invocation(self, options: Collectives, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError."""
        where = _rendezvous(context) if options.across_hosts else None
        spec = Spec(
            world_size=ranks(options, context) * (where.nodes if where else 1),
            backend=options.backend,
            repetitions=options.repetitions,
            smoke_limit=options.smoke_limit,
            limit=options.limit,
            rendezvous=where,
            cells=tuple(
                CellSpec(
                    cell.id,
                    str(cell.axes["op"]),
                    int(cell.axes["bytes"]),
                    str(cell.axes["graph"]),
                    {name: str(cell.axes[name]) for name in options.sweep if cell.axes[name] != DEFAULT},
                )
                for cell in cells
            ),
        )
        return Invocation(stage=self.name, spec=spec, limit=options.limit + _GRACE)

    def judge(
        self,
        options: Collectives,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell, and in ``detail`` the topology and, for a model's own messages, the advice."""
        result = super().judge(options, context, planned, records)
        topology, findings = _topology(result.environment)
        findings = [*findings, *result.detail.get("findings", ())]
        detail: dict[str, Any] = {"topology": topology, "findings": findings}
        if not options.sizes:
            shapes = model_shapes(options.model, context, tensor_parallel=world_size(options, context))
            detail["model"] = shapes.name
            detail["expected_per_step"] = {plan.op: plan.calls for plan in shapes.collectives}
            detail["advice"] = advise(shapes, result.cells, topology).document()
        return result.model_copy(update={"detail": {**result.detail, **detail}})


def _topology(environment: Mapping[str, Any]) -> tuple[str, list[str]]:
    findings = [str(each) for each in environment.get("p2p_findings") or ()]
    backend = (environment.get("collectives") or {}).get("backend")
    if backend == "gloo":
        return "gloo over the host's network: no GPU links were measured", findings
    try:
        topology = parse_topology(str(environment.get("topology", "")), str(environment.get("p2p", "")))
    except ValueError as error:
        return f"topology unknown: {error}", findings
    return topology.summary(), [*topology.findings(), *findings]

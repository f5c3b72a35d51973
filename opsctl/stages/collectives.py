"""Stage collectives: the model's own messages over this host's own links, and what that says of parallelism."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from opsctl.errors import StageError
from opsctl.playbook.models import Model
from opsctl.playbook.steps import Collectives
from opsctl.results import Cell, StepResult
from opsctl.stages.advice import advise
from opsctl.stages.base import Invocation, StageContext
from opsctl.stages.judging import judge_records
from opsctl.stages.modelchoice import model_shapes
from opsctl.stages.models import ModelShapes
from opsctl.stages.topology import parse_topology

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
DEFAULT = "default"
"""The value of a sweep's axis that leaves the variable unset."""
_GRACE = 60.0
_PORT = 29511  # of the first host; each group of ranks takes the next one


def world_size(options: Collectives, context: StageContext) -> int:
    """Return the number of ranks over all hosts. Raises StageError."""
    return ranks(options, context) * (max(1, len(context.peers)) if options.across_hosts else 1)


def ranks(options: Collectives, context: StageContext) -> int:
    """Return the number of ranks of a host. Raises StageError where nothing says how many."""
    service = context.service
    found = options.world_size or (service.tensor_parallel if service else None) or context.host.gpus
    if not found:
        raise StageError(
            f"{context.step}: the number of ranks is not known",
            where=context.host_name,
            hint="give the step `world-size`, or the host `gpus`",
        )
    return found


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
    unknown = [op for op in options.ops if op not in OPS]
    if unknown:
        raise StageError(f"{context.step}: no such collective: {', '.join(unknown)}", wanted=", ".join(OPS))
    if options.sizes:
        return [(op, size, None) for op in options.ops for size in dict.fromkeys(options.sizes)]
    shapes = model_shapes(options.model, context, tensor_parallel=world)
    return [
        (op, message_bytes(op, tokens, shapes, world), tokens)
        for op in options.ops
        for tokens in dict.fromkeys(options.tokens)
    ]


def _rendezvous(context: StageContext, each: int) -> dict[str, Any]:
    """Return where the hosts meet, and how many ranks there are over all of them. Raises StageError."""
    names = [name for name, _ in context.peers]
    if len(names) < 2 or context.host_name not in names:
        raise StageError(
            f"{context.step}: across-hosts wants a run over several hosts",
            seen=f"{len(names)} hosts: {', '.join(names) or 'none are known'}",
            where=context.host_name,
            hint="give the playbook a group of hosts",
        )
    meeting = {
        "address": context.peers[0][1],
        "port": _PORT,
        "node": names.index(context.host_name),
        "nodes": len(names),
    }
    return {"world_size": each * len(names), "rendezvous": meeting}


def _graphs(options: Collectives) -> tuple[str, ...]:
    if options.backend == "gloo":
        return ("off",)
    return {"both": ("on", "off"), "on": ("on",), "off": ("off",)}[options.graphs]


class CollectivesStage:
    """One cell a collective, message, graph or not, and setting of the sweep."""

    name: ClassVar[str] = "collectives"
    options: ClassVar[type[Model]] = Collectives
    needs: ClassVar[Literal["serving", "nothing", "any"]] = "nothing"

    def cells(self, options: Collectives, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate. Raises StageError when the ranks or the messages are not known."""
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
        spec: dict[str, Any] = {
            "world_size": ranks(options, context),
            "backend": options.backend,
            **options.model_dump(include={"repetitions", "smoke_limit", "limit"}),
            "cells": [
                {
                    "id": cell.id,
                    "op": cell.axes["op"],
                    "bytes": cell.axes["bytes"],
                    "graph": cell.axes["graph"],
                    "environment": {name: str(cell.axes[name]) for name in options.sweep if cell.axes[name] != DEFAULT},
                }
                for cell in cells
            ],
        }
        if options.across_hosts:
            spec |= _rendezvous(context, spec["world_size"])
        return Invocation(
            payload=self.name, spec=spec, limit=options.limit + _GRACE, exclusive_gpu=options.backend != "gloo"
        )

    def judge(
        self,
        options: Collectives,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell, and in ``detail`` the topology and, for a model's own messages, the advice."""
        result = judge_records(self.name, planned, records)
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

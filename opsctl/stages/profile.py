"""Stage profile: traces of steady decode, each rank's file proven whole, analysed where it lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

from opsctl.engines import ENGINES
from opsctl.errors import StageError
from opsctl.playbook.models import Model
from opsctl.playbook.steps import Profile
from opsctl.results import Cell, StepResult
from opsctl.stages.base import Invocation, StageContext
from opsctl.stages.judging import judge_records
from opsctl.stages.models import derive
from opsctl.stages.serving_benchmark import served

_REQUEST_LIMIT = 600.0
_FETCH = {
    "all": ("traces/*/*",),
    # The rank stands in the name: …_rank0.<time>…, …-rank-0.<time>… (vLLM), …-TP-0.trace… (SGLang).
    "rank0": ("traces/*/*rank0.*", "traces/*/*rank-0.*", "traces/*/*TP-0*", "traces/*/*.nsys-rep"),
    "none": (),
}


def _expected(context: StageContext, ranks: int) -> dict[str, Any]:
    """Return what a decode step of the served model should hold; nothing where its shapes are not known."""
    if context.model_config is None:
        return {}
    try:
        shapes = derive(context.model_config, name="served", tensor_parallel=ranks)
    except ValueError:
        return {}  # a profile needs no shapes: it only has nothing to compare its counts with
    if not shapes.collectives:
        return {}
    return {
        "expected": {plan.op: plan.calls for plan in shapes.collectives},
        "token_bytes": next(plan.bytes_per_token for plan in shapes.collectives if plan.op == "all_reduce"),
    }


def _profiler(context: StageContext, trace_dir: str, tool: str) -> dict[str, Any]:
    """Return how the server's profiler is started and stopped. Raises StageError for a server that has none."""
    engine = ENGINES[context.service.engine if context.service else "vllm"]
    routes = engine.profile_routes(trace_dir, tool)
    if routes is None:
        raise StageError(
            f"{context.step}: {engine.title} has no torch profiler",
            where=context.host_name,
            hint="remove the step: serving-benchmark measures this server, profile cannot",
        )
    return asdict(routes)


class ProfileStage:
    """One cell a concurrency and window."""

    name: ClassVar[str] = "profile"
    options: ClassVar[type[Model]] = Profile
    needs: ClassVar[Literal["serving", "nothing", "any"]] = "serving"

    def cells(self, options: Profile, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate windows of each concurrency."""
        return tuple(
            Cell(id=f"concurrency={count}/window={window}", axes={"concurrency": count, "window": window})
            for count in dict.fromkeys(options.concurrency)
            for window in range(1, options.windows + 1)
        )

    def invocation(self, options: Profile, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError when the ranks or the folder of the traces are not known."""
        url, model = served(context)
        service = context.service
        ranks = service.tensor_parallel if service else None
        if ranks is None:
            raise StageError(
                f"{context.step}: the number of ranks of {context.service_name} is not known",
                where=context.host_name,
                hint="give the service `tensor-parallel` in the inventory",
            )
        if not context.trace_dir:
            raise StageError(
                f"{context.step}: {context.service_name} has no folder for traces",
                where=context.host_name,
                hint="profile a variant with `profiler: torch`: production runs without",
            )
        spec = {
            "url": url,
            "model": model,
            "api_key_file": service.api_key_file if service else None,
            "profiler": _profiler(context, context.trace_dir, options.with_),
            "trace_dir": context.trace_dir,
            "ranks": ranks,
            "with": options.with_,
            "request_limit": _REQUEST_LIMIT,
            **options.model_dump(
                include={"warmup_requests", "requests", "input_tokens", "output_tokens", "flush_limit", "limit"}
            ),
            **_expected(context, ranks),
            "cells": [{"id": cell.id, **cell.axes} for cell in cells],
        }
        collect = ("trace-*.json", *_FETCH[options.fetch])
        return Invocation(payload=self.name, spec=spec, limit=options.limit, collect=collect)

    def judge(
        self,
        options: Profile,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every window. Profiled numbers are slow numbers: the result says that it is profiled."""
        return judge_records(self.name, planned, records, profiled=True)

"""Stage serving-benchmark: load on the phase's service, as ``vllm bench serve`` defines its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from opsctl.errors import StageError
from opsctl.playbook.models import Model
from opsctl.playbook.steps import ServingBenchmark
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import Invocation, StageContext
from opsctl.stages.judging import judge_records

SLO_NAMES = ("ttft", "tpot", "itl", "e2el")


def served(context: StageContext) -> tuple[str, str]:
    """Return (url, model) of what serves in this phase. Raises StageError where the inventory does not say."""
    service = context.service
    if service is None or not service.url or not service.model:
        missing = "no service serves" if service is None else f"{context.service_name} has no url or model"
        raise StageError(
            f"{context.step} wants a service that serves, and {missing}",
            where=context.host_name,
            hint="give the service `url` and `model` in the inventory, and the phase a `serve` that is a service",
        )
    return service.url, service.model


class ServingBenchmarkStage:
    """One cell a concurrency (closed loop) or request rate (open loop)."""

    name: ClassVar[str] = "serving-benchmark"
    options: ClassVar[type[Model]] = ServingBenchmark
    needs: ClassVar[Literal["serving", "nothing", "any"]] = "serving"

    def cells(self, options: ServingBenchmark, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate concurrencies, then rates; concurrency 1 where the playbook names neither."""
        concurrency = options.concurrency or (() if options.request_rate else (1,))
        closed = [Cell(id=f"concurrency={count}", axes={"concurrency": count}) for count in dict.fromkeys(concurrency)]
        opened = [
            Cell(id=f"rate={rate:g}", axes={"request_rate": rate}) for rate in dict.fromkeys(options.request_rate)
        ]
        return (*closed, *opened)

    def invocation(self, options: ServingBenchmark, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError for a service without address, or an unknown name in ``slo``."""
        url, model = served(context)
        unknown = sorted(set(options.slo) - set(SLO_NAMES))
        if unknown:
            raise StageError(
                f"{context.step}: slo names {', '.join(unknown)}",
                wanted=f"one of {', '.join(SLO_NAMES)}",
            )
        spec = {
            "url": url,
            "model": model,
            "api_key_file": context.service.api_key_file if context.service else None,
            **options.model_dump(
                include={
                    "input_tokens",
                    "output_tokens",
                    "requests",
                    "duration",
                    "warmup_requests",
                    "rounds",
                    "seed",
                    "slo",
                    "request_limit",
                    "limit",
                    "quiet",
                }
            ),
            "cells": [{"id": cell.id, **cell.axes} for cell in cells],
        }
        return Invocation(payload=self.name, spec=spec, limit=options.limit, collect=("requests-*.jsonl.gz",))

    def judge(
        self,
        options: ServingBenchmark,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell with its figures. Inconclusive where production was in use, before or meanwhile."""
        result = judge_records(self.name, planned, records)
        end: Mapping[str, Any] = next((record for record in reversed(records) if record.get("record") == "end"), {})
        failed = any(cell.state is State.FAILED for cell in result.cells)
        if options.quiet is not None and end.get("state") == "inconclusive" and not failed:
            return result.model_copy(update={"state": State.INCONCLUSIVE, "reason": str(end.get("reason", ""))})
        return result

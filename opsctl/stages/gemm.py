"""Stage gemm: what the matrix products of one decode step cost, kernel by kernel, beside the weight-read floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from opsctl.errors import StageError
from opsctl.playbook.models import Model
from opsctl.playbook.steps import Gemm
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import Invocation, StageContext
from opsctl.stages.gemm_sums import step_sums
from opsctl.stages.judging import judge_records
from opsctl.stages.modelchoice import model_shapes
from opsctl.stages.models import DenseOp, ExpertsOp, ModelShapes

#: By weight format, the kernels that may be there; the first is what vLLM runs.
_KERNELS = {"bf16": ("torch",), "w4a16": ("marlin", "int4pack")}
BACKENDS = ("torch", "marlin", "int4pack")
NO_KERNEL = "none"


def backends_for(dtype: str) -> tuple[str, ...]:
    """Return the kernels that may take a weight format; ``none`` where no backend here takes it."""
    return _KERNELS.get(dtype.split("-", 1)[0], (NO_KERNEL,))


def shapes_of(options: Gemm, context: StageContext) -> ModelShapes:
    """Return the shapes that are asked for: own ones, or those of the model. Raises StageError."""
    if options.shapes:
        ops = tuple(DenseOp(f"{n}x{k}", n, k, calls=0) for n, k in dict.fromkeys(options.shapes))
        return ModelShapes("own shapes", 1, 1, hidden=0, layers=0, ops=ops)
    return model_shapes(
        options.model,
        context,
        tensor_parallel=options.tensor_parallel,
        expert_parallel=options.expert_parallel,
    )


def _chosen(options: Gemm, shapes: ModelShapes, context: StageContext) -> tuple[DenseOp | ExpertsOp, ...]:
    unknown = [name for name in options.ops if name not in shapes.names]
    if unknown:
        raise StageError(
            f"{context.step}: {shapes.name} has no operation {', '.join(unknown)}",
            wanted=", ".join(shapes.names),
        )
    odd = [name for name in options.backends if name not in BACKENDS]
    if odd:
        raise StageError(f"{context.step}: no such backend: {', '.join(odd)}", wanted=", ".join(BACKENDS))
    return tuple(op for op in shapes.ops if not options.ops or op.name in options.ops)


def _size(op: DenseOp | ExpertsOp) -> tuple[int, int]:
    if isinstance(op, ExpertsOp):
        return 2 * op.intermediate, op.hidden
    return op.n, op.k


def _spec(op: DenseOp | ExpertsOp) -> dict[str, Any]:
    if isinstance(op, ExpertsOp):
        return {
            "kind": "experts",
            "experts": op.experts,
            "all_experts": op.all_experts,
            "top_k": op.top_k,
            "hidden": op.hidden,
            "intermediate": op.intermediate,
            "dtype": op.dtype,
        }
    return {"kind": "dense", "n": op.n, "k": op.k, "dtype": op.dtype, "batch": op.batch}


class GemmStage:
    """One cell an operation, batch and kernel."""

    name: ClassVar[str] = "gemm"
    options: ClassVar[type[Model]] = Gemm
    needs: ClassVar[Literal["serving", "nothing", "any"]] = "nothing"

    def cells(self, options: Gemm, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate operation × tokens × kernel. Raises StageError when the model's shapes are not known."""
        planned = []
        for op in _chosen(options, shapes_of(options, context), context):
            n, k = _size(op)
            kernels = [name for name in backends_for(op.dtype) if not options.backends or name in options.backends]
            for tokens in dict.fromkeys(options.tokens):
                for backend in kernels:
                    axes = {"op": op.name, "m": tokens, "n": n, "k": k, "dtype": op.dtype, "backend": backend}
                    detail = {"calls_per_step": op.calls, **({"note": op.note} if isinstance(op, DenseOp) else {})}
                    planned.append(Cell(id=f"{op.name}/M={tokens}/{backend}", axes=axes, detail=detail))
        if not planned:
            raise StageError(f"{context.step}: nothing to measure: no operation has one of the backends asked for")
        return tuple(planned)

    def invocation(self, options: Gemm, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError."""
        ops = {op.name: _spec(op) for op in _chosen(options, shapes_of(options, context), context)}
        spec = {
            "device": options.device,
            "repetitions": options.repetitions,
            "limit": options.limit,
            "ops": ops,
            "cells": [
                {"id": each.id, "op": each.axes["op"], "m": each.axes["m"], "backend": each.axes["backend"]}
                for each in cells
            ],
        }
        return Invocation(payload=self.name, spec=spec, limit=options.limit + 60, exclusive_gpu=options.device != "cpu")

    def judge(
        self,
        options: Gemm,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell, and in ``detail`` the sums of a decode step at each batch.

        An operation that no kernel measured at a batch makes the step inconclusive: its sum would lie.
        """
        result = judge_records(self.name, planned, records)
        shapes = shapes_of(options, context)
        sums = step_sums(shapes, result.cells, result.environment.get("ceilings"))
        result = result.model_copy(update={"detail": {**result.detail, "model": shapes.name, "sums": sums}})
        measured = {(cell.axes["op"], cell.axes["m"]) for cell in result.cells if cell.state is State.VERIFIED}
        wanted = dict.fromkeys((cell.axes["op"], cell.axes["m"]) for cell in planned)
        bare = [f"{op} at M={tokens}" for op, tokens in wanted if (op, tokens) not in measured]
        if bare and result.state is State.VERIFIED:
            reason = f"{result.reason}; no kernel measured {', '.join(bare[:4])}{' …' if len(bare) > 4 else ''}"
            return result.model_copy(update={"state": State.INCONCLUSIVE, "reason": reason})
        return result

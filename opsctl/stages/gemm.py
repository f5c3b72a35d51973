"""Stage gemm: what the matrix products of one decode step cost, kernel by kernel, beside the weight-read floor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from opsctl.errors import StageError
from opsctl.options import Model
from opsctl.payload.gemm import CellSpec, OpSpec, Spec
from opsctl.quantities import Duration
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import Invocation, Place, Stage, StageContext, needs_free_gpus, only_of, positive
from opsctl.stages.gemm_sums import step_sums
from opsctl.stages.modelchoice import KIMI, model_shapes, problems_of_model
from opsctl.stages.models import DenseOp, ExpertsOp, ModelShapes
from opsctl.stages.rendering import Column, FigureKind, LineChart, Rendering, ResultTable

#: By weight format, the kernels that may be there; the first is what vLLM runs.
_KERNELS = {"bf16": ("torch",), "w4a16": ("marlin", "int4pack")}
BACKENDS = ("torch", "marlin", "int4pack")
NO_KERNEL = "none"


class Gemm(Model):
    """Matrix products at the model's exact shapes."""

    model: str = "served"
    """kimi-k2.5 (built in), or `served`: the served model's own config.json."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """Ranks that share a matrix; default: the production service's."""
    expert_parallel: int = Field(default=1, ge=1)
    """Ranks that share the experts."""
    tokens: tuple[int, ...] = (1, 8, 32)
    """Tokens in the step (M), one cell for each shape."""
    ops: tuple[str, ...] = ()
    """Only these operations; default: all of the model's."""
    backends: tuple[str, ...] = ()
    """Only these backends; default: all that the host has."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Own N × K pairs (BF16) instead of a model's."""
    repetitions: int = Field(default=100, ge=3)
    """Measurements of each cell; the median is reported."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: CUDA where the host has it."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


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
    return tuple(op for op in shapes.ops if not options.ops or op.name in options.ops)


def _size(op: DenseOp | ExpertsOp) -> tuple[int, int]:
    if isinstance(op, ExpertsOp):
        return 2 * op.intermediate, op.hidden
    return op.n, op.k


def _spec(op: DenseOp | ExpertsOp) -> OpSpec:
    if isinstance(op, ExpertsOp):
        return OpSpec(
            op.name,
            "experts",
            op.dtype,
            experts=op.experts,
            all_experts=op.all_experts,
            top_k=op.top_k,
            hidden=op.hidden,
            intermediate=op.intermediate,
        )
    return OpSpec(op.name, "dense", op.dtype, n=op.n, k=op.k, batch=op.batch)


class GemmStage(Stage):
    """One cell an operation, batch and kernel."""

    name = "gemm"
    options = Gemm
    about = "matrix products by themselves"
    figures = (
        FigureKind("gemm.time", "lower", headline=True),
        FigureKind("gemm.bandwidth", "higher"),
        FigureKind("gemm.rate", "higher"),
        FigureKind("gemm.share_of_*", "higher"),
        FigureKind("*"),
    )
    incidental = ("tokens", "ops", "backends", "shapes")
    rendering = Rendering(
        title="Matrix products against the bandwidth roof",
        short="Matrix products",
        columns=(
            Column("Operation", axes=("op",)),
            Column("Backend", axes=("backend",)),
            Column("M", axes=("m",)),
            Column("N × K", axes=("n", "k")),
            Column("µs", "gemm.time", form="spread"),
            Column("GB/s", "gemm.bandwidth"),
            Column("TFLOP/s", "gemm.rate"),
            Column("Of copy bandwidth", "gemm.share_of_bandwidth", form="share"),
            Column("Of matrix rate", "gemm.share_of_rate", form="share"),
            Column("Error", "gemm.error", form="exponent"),
        ),
        note="Median time of one call under a CUDA graph with cold L2 where there is a GPU. Bandwidth counts the bytes "
        "of weights, scales, input and output; its share is of the copy bandwidth measured on the same machine in the "
        "same step. Every backend was checked against a dequantised float64 reference before it was timed.",
        charts=(
            LineChart(
                "gemm",
                "Matrix products under the bandwidth roof",
                x=("m",),
                x_title="tokens in the step (M)",
                figures=("gemm.bandwidth",),
                y_title="GB/s",
                lines=("op", "backend"),
                roof="gemm.share_of_bandwidth",
                roof_title="measured copy bandwidth",
            ),
        ),
    )

    def problems(self, options: Gemm, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield what cannot be measured: GPUs in use, unknown kernels."""
        yield from positive("tokens", options.tokens)
        if options.device != "cpu":
            yield from needs_free_gpus(self.name, places)
        yield from only_of("backends", options.backends, BACKENDS)
        yield from problems_of_model(options.model)
        if options.shapes or options.model == KIMI:
            yield from self.unplannable(options, places)

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
        spec = Spec(
            device=options.device,
            repetitions=options.repetitions,
            limit=options.limit,
            ops=tuple(_spec(op) for op in _chosen(options, shapes_of(options, context), context)),
            cells=tuple(
                CellSpec(each.id, str(each.axes["op"]), int(each.axes["m"]), str(each.axes["backend"]))
                for each in cells
            ),
        )
        return Invocation(stage=self.name, spec=spec, limit=options.limit + 60)

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
        result = super().judge(options, context, planned, records)
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

    def tables(self, result: StepResult) -> tuple[ResultTable, ...]:
        """Return what the products of one decode step cost together, a row a batch."""
        rows = []
        for each in result.detail.get("sums") or ():
            cost, floor = each["gemm_us_per_step"], each["weight_floor_us"]
            rows.append(
                (
                    str(each["tokens"]),
                    cost / 1e3,
                    None if floor is None else floor / 1e3,
                    f"{cost / floor:.2f} ×" if cost and floor else None,
                    ", ".join(each["missing"]) or "nothing",
                )
            )
        if not rows:
            return ()
        return (
            ResultTable(
                "Matrix products of one decode step",
                ("Tokens", "Products, ms a step", "Weight-read floor, ms", "Against the floor", "Missing from the sum"),
                tuple(rows),
                "Calls × time of the fastest verified kernel, over the operations of one decode step; the floor is the "
                "bytes of weights read / the copy bandwidth measured in the same step. Attention and collectives are "
                "not in it, and an operation that is missing makes the sum too small.",
            ),
        )

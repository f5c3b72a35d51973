"""Stage profile: traces of steady decode, each rank's file proven complete, analysed on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from opsctl.engines import DEFAULT, ENGINES, Engine, routes_of_all
from opsctl.engines.base import ProfileRoutes
from opsctl.errors import StageError
from opsctl.options import Model
from opsctl.payload.profile_spec import CellSpec, Spec
from opsctl.quantities import Duration
from opsctl.results import Cell
from opsctl.stages.base import Invocation, Place, Stage, StageContext, needs_server, positive, served
from opsctl.stages.models import derive

_REQUEST_LIMIT = 600.0


class Profile(Model):
    """Capture torch.profiler traces of steady decode, and verify that they are complete."""

    warmup_requests: int = Field(default=3, ge=0)
    """Requests before the profiler is switched on."""
    windows: int = Field(default=3, ge=1)
    """Captures of each concurrency."""
    requests: int | None = Field(default=None, ge=1)
    """Requests in a window, never fewer than the concurrency; default: 5 × concurrency."""
    input_tokens: int = Field(default=128, ge=1)
    """Tokens in each prompt."""
    output_tokens: int = Field(default=32, ge=2)
    """Tokens generated for each request: decode steps in the window."""
    concurrency: tuple[int, ...] = (1,)
    """Requests in flight, one cell each."""
    with_: Literal["torch", "nsys"] = "torch"
    """torch: the server's own profiler. nsys: Nsight Systems, which the variant's exec-prefix starts."""
    flush_limit: Duration = 45 * 60.0
    """/stop_profile has no limit of its own; 20 minutes were seen."""
    fetch: Literal["all", "rank0", "none"] = "all"
    """Which trace files are fetched to the controller; all are analysed on the host."""
    limit: Duration = 3 * 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


def _expected(context: StageContext, ranks: int) -> tuple[dict[str, int] | None, int | None]:
    """Return what a decode step of the served model should hold, and bytes of a token; None where not known."""
    if context.model_config is None:
        return None, None
    try:
        shapes = derive(context.model_config, name="served", tensor_parallel=ranks)
    except ValueError:
        return None, None  # a profile needs no shapes: it only has nothing to compare its counts with
    if not shapes.collectives:
        return None, None
    expected = {plan.op: plan.calls for plan in shapes.collectives}
    return expected, next(plan.bytes_per_token for plan in shapes.collectives if plan.op == "all_reduce")


def _engine(context: StageContext) -> Engine:
    return ENGINES[context.service.engine if context.service else DEFAULT]


def _fetched(options: Profile, engine: Engine) -> tuple[str, ...]:
    """Return globs of the trace files that are fetched to the controller."""
    names = {"all": ("*",), "rank0": (*engine.rank_files(0), "*.nsys-rep"), "none": ()}[options.fetch]
    return tuple(f"traces/*/{name}" for name in names)


def _profiler(context: StageContext, trace_dir: str, tool: str) -> ProfileRoutes:
    """Return how the server's profiler is started and stopped. Raises StageError for a server that has none."""
    engine = _engine(context)
    routes = engine.profile_routes(trace_dir, tool)
    if routes is None:
        raise StageError(
            f"{context.step}: {engine.title} has no torch profiler",
            where=context.host_name,
            hint="remove the step: serving-benchmark measures this server, profile cannot",
        )
    return routes


class ProfileStage(Stage):
    """One cell a concurrency and window."""

    name = "profile"
    options = Profile
    about = "what a decode step is made of"
    figures = ()
    incidental = ("concurrency", "flush-limit", "fetch")
    profiled = True

    def problems(self, options: Profile, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield what cannot be profiled: no server, or one without the profiler."""
        yield from needs_server(self.name, places)
        yield from positive("concurrency", options.concurrency)
        for place in places:
            if place.service is not None and place.tensor_parallel is None:
                yield (
                    "",
                    f"the ranks of `{place.service_name}` are not known: give it `tensor-parallel` in the inventory",
                )
        for place in places[:1]:
            if place.service is None:
                continue
            engine = ENGINES[place.service.engine]
            if engine.profile_routes("", options.with_) is None:
                yield (
                    "",
                    f"{engine.title} has no profiler that opsctl can start: `{place.service_name}` cannot be profiled",
                )
            elif options.with_ == "torch" and place.service.profiler is None:
                yield (
                    "",
                    f"service `{place.service_name}` has no profiler: serve a variant of it with `profiler: torch`",
                )
            if options.with_ == "nsys" and not any("nsys" in word for word in place.service.exec_prefix):
                yield (
                    "with",
                    f"service `{place.service_name}` does not run under nsys: give a variant `exec-prefix: [nsys, …]`",
                )

    def cells(self, options: Profile, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate windows of each concurrency."""
        return tuple(
            Cell(id=f"concurrency={count}/window={window}", axes={"concurrency": count, "window": window})
            for count in dict.fromkeys(options.concurrency)
            for window in range(1, options.windows + 1)
        )

    def invocation(self, options: Profile, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError when the ranks or the folder of the traces are not known."""
        target = served(context)
        ranks = context.tensor_parallel
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
        expected, token_bytes = _expected(context, ranks)
        routes = _profiler(context, context.trace_dir, options.with_)
        spec = Spec(
            **target,
            start=routes.start,
            stop=routes.stop,
            start_body=dict(routes.body) if routes.body is not None else None,
            accepted=routes.accepted,
            trace_dir=context.trace_dir,
            ranks=ranks,
            profiler=options.with_,
            warmup_requests=options.warmup_requests,
            requests=options.requests,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            flush_limit=options.flush_limit,
            request_limit=_REQUEST_LIMIT,
            limit=options.limit,
            expected=expected,
            token_bytes=token_bytes,
            version=routes_of_all().version,
            cells=tuple(CellSpec(cell.id, int(cell.axes["concurrency"]), int(cell.axes["window"])) for cell in cells),
        )
        collect = ("trace-*.json", *_fetched(options, _engine(context)))
        return Invocation(stage=self.name, spec=spec, limit=options.limit, collect=collect)

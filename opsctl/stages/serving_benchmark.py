"""Stage serving-benchmark: load on the phase's service, as ``vllm bench serve`` defines its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field

from opsctl.engines import routes_of_all
from opsctl.options import Model
from opsctl.payload.serving_spec import CellSpec, Metrics, QuietSpec, Spec
from opsctl.quantities import Duration
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import Invocation, Place, Stage, StageContext, needs_server, only_of, positive, served
from opsctl.stages.rendering import Column, FigureKind, LineChart, Rendering

LATENCIES = ("ttft", "tpot", "itl", "e2el")
_LOAD = ("concurrency", "request_rate")
_LOAD_TITLE = "concurrency (or requests a second)"


class Quiet(Model):
    """Measure only while the server has no other requests, as its own counters say."""

    wait: Duration = 30 * 60.0
    """Longest wait for quiet; then the step is skipped, with the reason, and the run is inconclusive."""
    stable: Duration = 30.0
    """It must be quiet for this long."""
    running: int = Field(default=0, ge=0)
    """Requests of others that still count as quiet."""


class ServingBenchmark(Model):
    """Load on the model server, as `vllm bench serve` defines its figures."""

    concurrency: tuple[int, ...] = ()
    """Closed loop: requests in flight, one cell each."""
    request_rate: tuple[float, ...] = ()
    """Open loop: requests a second (Poisson arrivals), one cell each."""
    input_tokens: int = Field(default=1024, ge=1)
    """Tokens in each prompt."""
    output_tokens: int = Field(default=256, ge=1)
    """Tokens generated for each request (ignore_eos)."""
    requests: int | None = Field(default=None, ge=1)
    """Requests in a round, never fewer than the concurrency; default: 4 × concurrency, at least 8."""
    duration: Duration | None = None
    """A round lasts this long, instead of a count."""
    warmup_requests: int = Field(default=2, ge=0)
    """Requests in a wave of the warm-up, at least; 0: none. Waves at the cell's own load come until they are steady."""
    warmup_limit: Duration = 5 * 60.0
    """Longest warm-up of a cell; one that is not steady by then is measured, and says so."""
    rounds: int = Field(default=3, ge=1)
    """Repetitions of every cell; the intervals are over them."""
    seed: int = 0
    """Seed of the arrival times. Prompts are unique per request and per run, whatever the seed."""
    slo: dict[str, Duration] = Field(default_factory=dict)
    """Goodput: limits such as {ttft: 2s, tpot: 0.05s}."""
    quiet: Quiet | None = None
    """Wait for a quiet server first, and stop when other traffic arrives. For production that stays in use."""
    request_limit: Duration = 10 * 60.0
    """Longest time for one request; a longer one counts as failed."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


class ServingBenchmarkStage(Stage):
    """One cell a concurrency (closed loop) or request rate (open loop)."""

    name = "serving-benchmark"
    options = ServingBenchmark
    about = "latency and throughput as a client sees them"
    figures = (
        FigureKind("tpot.p50", "lower", headline=True, watched="lowest load"),
        FigureKind("output_throughput", "higher", headline=True, watched="highest load"),
        *(FigureKind(f"{name}.{each}", "lower", headline=True) for name in ("ttft", "tpot") for each in ("p50", "p99")),
        FigureKind("request_throughput", "higher", headline=True),
        FigureKind("goodput", "higher", headline=True),
        *(FigureKind(f"{name}.*", "lower") for name in (*LATENCIES, "send_lag", "client_lag")),
        FigureKind("*throughput", "higher"),
        FigureKind("steady.t*", "lower"),
        *(
            FigureKind(name)
            for name in ("steady.*", "achieved_concurrency", "prefix_cache_hit_rate", "client_cpu", "warmup.time")
        ),
    )
    incidental = ("concurrency", "request-rate", "request-limit", "warmup-limit", "seed")
    rendering = Rendering(
        title="Serving: latency and throughput",
        short="Serving",
        columns=(
            Column("Cell", axes=("id",)),
            Column("TTFT p50, ms", "ttft.p50"),
            Column("TTFT p99, ms", "ttft.p99"),
            Column("TPOT p50, ms", "tpot.p50"),
            Column("TPOT p99, ms", "tpot.p99"),
            Column("Output, tok/s", "output_throughput"),
            Column("Requests, req/s", "request_throughput"),
            Column("Achieved concurrency", "achieved_concurrency"),
            Column("Cache hits", "prefix_cache_hit_rate", form="share"),
            Column("Client CPU", "client_cpu", form="share"),
            Column("Warm-up, s", "warmup.time"),
        ),
        note="TTFT = first token - send. E2EL = last token - send. "
        "TPOT = (E2EL - TTFT) / (output tokens - 1) per request; a request with one output token has none. ITL = gaps "
        "between chunks. Output tokens come from the server's usage, never from chunks. Failed requests enter no "
        "latency. Warm-up: waves at the cell's own load until two took equally long; not measured.",
        charts=(
            LineChart(
                "tpot",
                "TPOT against concurrency",
                figures=("tpot.p50", "tpot.p99"),
                y_title="TPOT, ms",
                one_line_a_step=True,
                x=_LOAD,
                x_title=_LOAD_TITLE,
            ),
            LineChart(
                "throughput",
                "Output throughput against concurrency",
                figures=("output_throughput",),
                y_title="output, tok/s",
                one_line_a_step=True,
                x=_LOAD,
                x_title=_LOAD_TITLE,
            ),
        ),
        statistics=LATENCIES,
        told=("input-tokens", "output-tokens"),
    )

    def problems(self, options: ServingBenchmark, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield what cannot be measured: no server, no load, two lengths of a round."""
        yield from needs_server(self.name, places)
        if not options.concurrency and not options.request_rate:
            yield "", "wanted `concurrency` or `request-rate` with at least one value, found neither"
        if options.requests is not None and options.duration is not None:
            yield "duration", "wanted `requests` or `duration`, found both"
        yield from positive("concurrency", options.concurrency)
        yield from positive("request-rate", options.request_rate)
        yield from only_of("slo", options.slo, LATENCIES)

    def cells(self, options: ServingBenchmark, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate concurrencies, then rates."""
        closed = [Cell(id=f"concurrency={count}", axes={"concurrency": count}) for count in options.concurrency]
        opened = [Cell(id=f"rate={rate:g}", axes={"request_rate": rate}) for rate in options.request_rate]
        return (*closed, *opened)

    def invocation(self, options: ServingBenchmark, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError for a service without address."""
        target = served(context)
        quiet, routes = options.quiet, routes_of_all()
        spec = Spec(
            **target,
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            requests=options.requests,
            duration=options.duration,
            warmup_requests=options.warmup_requests,
            warmup_limit=options.warmup_limit,
            rounds=options.rounds,
            seed=options.seed,
            slo=options.slo,
            request_limit=options.request_limit,
            limit=options.limit,
            quiet=None if quiet is None else QuietSpec(quiet.wait, quiet.stable, quiet.running),
            # `opsctl bench serving` does not know the engine.
            metrics=Metrics(
                running=routes.running,
                waiting=routes.waiting,
                finished=routes.finished,
                cache_hits=routes.cache_hits,
                cache_queries=routes.cache_queries,
            ),
            version=routes.version,
            cells=tuple(CellSpec(cell.id, **cell.axes) for cell in cells),  # type: ignore[arg-type]
        )
        return Invocation(stage=self.name, spec=spec, limit=options.limit, collect=("requests-*.jsonl.gz",))

    def judge(
        self,
        options: ServingBenchmark,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell with its figures. Inconclusive where production was in use, before or meanwhile."""
        result = super().judge(options, context, planned, records)
        end: Mapping[str, Any] = next((record for record in reversed(records) if record.get("record") == "end"), {})
        failed = any(cell.state is State.FAILED for cell in result.cells)
        if options.quiet is not None and end.get("state") == "inconclusive" and not failed:
            return result.model_copy(update={"state": State.INCONCLUSIVE, "reason": str(end.get("reason", ""))})
        return result

"""What the measuring stages found: serving, matrix products, collectives, and any other program's figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opsctl.quantities import format_size
from opsctl.report import charts
from opsctl.report.document import Block, Inline, Mark, Prose, Section, table
from opsctl.report.numbers import ABSENT, PLUS_MINUS, amount, digits, share, with_spread
from opsctl.report.reading import Material, Placed
from opsctl.report.sections.overview import state
from opsctl.results import Cell

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "std", "p50", "p90", "p95", "p99")
SERVING_HEAD = (
    ("TTFT p50, ms", "ttft.p50"),
    ("TTFT p99, ms", "ttft.p99"),
    ("TPOT p50, ms", "tpot.p50"),
    ("TPOT p99, ms", "tpot.p99"),
    ("Output, tok/s", "output_throughput"),
    ("Requests, req/s", "request_throughput"),
    ("Achieved concurrency", "achieved_concurrency"),
)
SERVING_NOTE = (
    f"{PLUS_MINUS} TTFT = first token - send. E2EL = last token - send. "
    "TPOT = (E2EL - TTFT) / (output tokens - 1) per request; a request with one output token has none. ITL = gaps "
    "between chunks. Output tokens come from the server's usage, never from chunks. Failed requests enter no latency."
)


def serving(material: Material) -> Section | None:
    """Show latency and throughput against concurrency, a table a service."""
    placed = material.cells("serving-benchmark")
    if not placed:
        return None
    blocks: list[Block] = []
    if any(item.cell.figures for item in placed):
        blocks.extend(charts.serving(placed))
    for place in dict.fromkeys(item.place for item in placed):
        mine = [item for item in placed if item.place == place]
        blocks.append(_serving_table(mine))
        blocks.append(_every_statistic(mine))
    return Section("serving", "Serving: latency and throughput", tuple(blocks), short="Serving")


def _serving_table(placed: Sequence[Placed]) -> Block:
    first = placed[0]
    asked = first.step.options
    load = ", ".join(f"{key} {asked[key]}" for key in ("input-tokens", "output-tokens") if key in asked)
    profiled = " Under a profiler: slow numbers, kept out of the history." if first.profiled else ""
    return table(
        ("Cell", "State", *(head for head, _ in SERVING_HEAD)),
        [
            (
                Mark(item.cell.id, "code"),
                state(item.cell.state),
                *(with_spread(item.cell.figure(name)) for _, name in SERVING_HEAD),
            )
            for item in placed
        ],
        numeric=range(2, 2 + len(SERVING_HEAD)),
        caption=f"{first.phase.serve}, {first.place}" + (f" ({load})" if load else ""),
        note=SERVING_NOTE + profiled,
    )


def _every_statistic(placed: Sequence[Placed]) -> Block:
    rows: list[tuple[Inline, ...]] = [
        (
            Mark(item.cell.id, "code"),
            latency.upper(),
            *(with_spread(item.cell.figure(f"{latency}.{statistic}")) for statistic in STATISTICS),
        )
        for item in placed
        for latency in LATENCIES
        if any(item.cell.figure(f"{latency}.{statistic}") for statistic in STATISTICS)
    ]
    return table(
        ("Cell", "Latency, ms", *STATISTICS),
        rows,
        numeric=range(2, 2 + len(STATISTICS)),
        folded=True,
        caption=f"Every statistic of {placed[0].place}",
    )


def gemm(material: Material) -> Section | None:
    """Put the matrix products beside the machine's own measured roof."""
    placed = material.cells("gemm")
    if not placed:
        return None
    blocks: list[Block] = []
    if any(item.cell.figure("gemm.time") for item in placed):
        blocks.append(charts.gemm(placed))
    rows: list[tuple[Inline, ...]] = []
    for item in placed:
        cell, axes = item.cell, item.cell.axes
        rows.append(
            (
                str(axes.get("op", cell.id)),
                str(axes.get("backend", ABSENT)),
                str(axes.get("m", ABSENT)),
                f"{axes.get('n', ABSENT)} × {axes.get('k', ABSENT)}",
                state(cell.state),
                with_spread(cell.figure("gemm.time")),
                digits(value(cell, "gemm.bandwidth")),
                digits(value(cell, "gemm.rate")),
                share(value(cell, "gemm.share_of_bandwidth")),
            )
        )
    note = (
        f"{PLUS_MINUS} "
        "Median time of one call under a CUDA graph with cold L2 where there is a GPU. Bandwidth counts the bytes of "
        "weights, scales, input and output; its share is of the copy bandwidth measured on the same machine in the "
        "same step. Every backend was checked against a dequantised float64 reference before it was timed."
    )
    head = ("Operation", "Backend", "M", "N × K", "State", "µs", "GB/s", "TFLOP/s", "Of copy bandwidth")
    blocks.append(table(head, rows, numeric=(2, 3, 5, 6, 7, 8), note=note))
    return Section("gemm", "Matrix products against the bandwidth roof", tuple(blocks), short="Matrix products")


def value(cell: Cell, name: str) -> float | None:
    """Return a figure's number, or None."""
    found = cell.figure(name)
    return None if found is None else found.value


def collectives(material: Material) -> Section | None:
    """Show collectives against message size, with the model's own sizes marked."""
    placed = material.cells("collectives")
    if not placed:
        return None
    blocks: list[Block] = []
    if any(item.cell.figure("collective.time.p50") for item in placed):
        blocks.append(charts.collectives(placed))
    rows: list[tuple[Inline, ...]] = []
    for item in placed:
        cell, axes = item.cell, item.cell.axes
        size = axes.get("bytes")
        variant = ", ".join(f"{key}={axes[key]}" for key in axes if key not in {"op", "bytes", "tokens"})
        rows.append(
            (
                str(axes.get("op", cell.id)),
                format_size(size) if isinstance(size, int | float) else ABSENT,
                str(axes.get("tokens", ABSENT)),
                variant or ABSENT,
                state(cell.state),
                with_spread(cell.figure("collective.time.p50")),
                digits(value(cell, "collective.time.p99")),
                digits(value(cell, "collective.algbw")),
                digits(value(cell, "collective.busbw")),
            )
        )
    note = (
        f"{PLUS_MINUS} "
        "algbw = bytes / time; busbw = algbw × 2(n-1)/n for all_reduce and × (n-1)/n for all_gather, reduce_scatter "
        "and all_to_all, as nccl-tests defines them. Results were checked. A size with tokens is the model's own: "
        "tokens × hidden × bytes of the type."
    )
    head = ("Operation", "Size", "Tokens", "How", "State", "p50, µs", "p99, µs", "algbw, GB/s", "busbw, GB/s")
    blocks.append(table(head, rows, numeric=(1, 2, 5, 6, 7, 8), note=note))
    return Section("collectives", "Collectives against message size", tuple(blocks), short="Collectives")


def others(material: Material) -> Section | None:
    """List the figures of stages that have no section of their own."""
    own = {"serving-benchmark", "gemm", "collectives", "profile"}
    placed = [item for item in material.cells() if item.step.stage not in own]
    if not placed:
        return None
    rows = list(_figure_rows(placed))
    block: Block = (
        table(("Step", "Cell", "Figure", "Value", "± or interval", "Samples", "Formula"), rows, numeric=(3, 4, 5))
        if rows
        else Prose("They ended without figures; Scope has their states.")
    )
    return Section("others", "Other measurements", (block,), short="Others")


def _figure_rows(placed: Iterable[Placed]) -> Iterable[tuple[Inline, ...]]:
    for item in placed:
        for figure in item.cell.figures:
            interval = (
                f"{digits(figure.low)} to {digits(figure.high)}"
                if figure.low is not None
                else ABSENT
                if figure.spread is None
                else f"± {digits(figure.spread, 2)}"
            )
            yield (
                Mark(item.place, "code"),
                Mark(item.cell.id, "code"),
                figure.name,
                amount(figure.value, figure.unit),
                interval,
                str(figure.samples),
                figure.formula or ABSENT,
            )

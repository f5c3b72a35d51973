"""What ``opsctl bench`` does with options and results: reading the one, showing the other."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from opsctl.commands.terminal import Terminal
from opsctl.errors import UnfitError
from opsctl.playbook.models import ServiceEntry
from opsctl.quantities import format_size, parse_duration
from opsctl.results import Cell, State, StepResult
from opsctl.stages.locally import local_context, read_model_config, run_here
from opsctl.stages.modelchoice import KIMI
from opsctl.stages.vllm_format import vllm_document

if TYPE_CHECKING:
    from rich.status import Status

_WIDTH = 160  # columns, where nobody watches
_SHOWN = ("ttft", "tpot", "itl", "e2el")


def has_gpu() -> bool:
    """Return whether this machine seems to have an NVIDIA GPU, without importing torch."""
    return shutil.which("nvidia-smi") is not None


def parse_shapes(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return N × K pairs from ``7168x1024``. Raises UnfitError."""
    shapes = []
    for text in texts:
        n, mark, k = text.lower().replace("×", "x").partition("x")
        if not (mark and n.strip().isdecimal() and k.strip().isdecimal()):
            raise UnfitError(f"--shape: {text!r} is no shape", wanted="NxK, such as 7168x1024")
        shapes.append((int(n), int(k)))
    return tuple(shapes)


def parse_sweep(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return axes from ``NCCL_PROTO=default,LL``. Raises UnfitError."""
    axes = {}
    for text in texts:
        name, mark, values = text.partition("=")
        if not (mark and name and values):
            raise UnfitError(f"--sweep: {text!r} is no axis", wanted="NAME=VALUE,VALUE, such as NCCL_PROTO=default,LL")
        axes[name] = tuple(value for value in values.split(",") if value)
    return axes


def parse_slo(texts: Sequence[str]) -> dict[str, float]:
    """Return limits in seconds from ``ttft=2s``. Raises UnfitError."""
    limits = {}
    for text in texts:
        name, _, limit = text.partition("=")
        try:
            limits[name] = parse_duration(limit)
        except ValueError as error:
            raise UnfitError(f"--slo: {text!r} is no limit", wanted="NAME=DURATION, such as ttft=2s") from error
    return limits


def serving_service(url: str, model: str, api_key_file: str | None) -> ServiceEntry:
    """Return the server as a stage sees it."""
    return ServiceEntry(url=url, model=model, api_key_file=api_key_file)


def first_served(url: str, api_key_file: str | None) -> str:
    """Return the first model that a server lists. Raises UnfitError."""
    from opsctl.payload.errors import PayloadError
    from opsctl.payload.server import Server

    try:
        with Server(url, api_key_file=api_key_file) as server:
            models = server.models()
    except PayloadError as error:
        raise UnfitError(str(error), hint="name the server with --url, and its key with --api-key-file") from error
    if not models:
        raise UnfitError(f"{url} serves no model")
    return models[0]


def measure(
    stage: str, options: Any, *, folder: Path, python: str | None, quiet: bool, service: Any, model: str
) -> StepResult:
    """Run a stage here, with what it is at on the terminal."""
    from opsctl.payload import build_zipapp

    config = read_model_config(Path(model)) if model not in {"", KIMI} else None
    context = local_context(folder, service=service, model_config=config)
    payload = build_zipapp(folder) if python else None
    console = Terminal(stderr=True)
    with console.status(f"{stage}: starting") as status:

        def progress(record: Mapping[str, Any]) -> None:
            _say(record, stage, status, console, quiet=quiet)

        result = run_here(stage, options, context, python=python or sys.executable, payload=payload, progress=progress)
    if not quiet:
        console.print(f"results: {folder}", style="dim", highlight=False)
    return result


def _say(record: Mapping[str, Any], stage: str, status: Status, console: Console, *, quiet: bool) -> None:
    if record.get("record") == "progress" and record.get("of"):
        status.update(f"{stage}: {record['text']} ({record['done']:g} of {record['of']:g})")
    elif record.get("record") == "cell" and record.get("state") == "failed" and not quiet:
        console.print(f"{record['id']}: {record['reason']}", style="red", highlight=False, markup=False)


def show(result: StepResult, tables: Sequence[Table], *, json_: bool) -> None:
    """Print the result as one JSON document, or as tables with the verdict last."""
    if json_:
        print(json.dumps(result.model_dump(mode="json"), indent=1))
        return
    console = Terminal()
    if not console.is_terminal:
        console = Terminal(width=_WIDTH)
    for table in tables:
        console.print(table)
    for line in (result.detail.get("advice") or {}).get("lines", ()):
        console.print(f"advice: {line}", markup=False, highlight=False)
    colour = {State.VERIFIED: "green", State.FAILED: "red"}.get(result.state, "yellow")
    console.print(f"[{colour}]{result.state.value}[/]: ", end="", highlight=False)
    console.print(result.reason, markup=False, highlight=False)


def show_vllm(result: StepResult) -> None:
    """Print ``vllm bench serve``'s keys: one document a cell, alone where there is one."""
    documents = [vllm_document(cell) for cell in result.cells if cell.figures]
    print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))


def _number(cell: Cell, name: str, form: str = "{:.1f}", scale: float = 1.0) -> str:
    figure = cell.figure(name)
    return form.format(figure.value * scale) if figure else "–"


def _table(title: str, columns: Sequence[str], *, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=True, overflow="ellipsis")
    return table


def gemm_tables(result: StepResult) -> list[Table]:
    """Return the kernels, and the sums of a decode step."""
    kernels = _table(
        f"matrix products of {result.detail.get('model', '')}",
        ("op", "N×K", "M", "kernel", "µs", "GB/s", "TFLOP/s", "copy", "rate", "error", "state"),
    )
    for cell in result.cells:
        axes = cell.axes
        kernels.add_row(
            str(axes["op"]),
            f"{axes['n']}×{axes['k']}",
            str(axes["m"]),
            str(axes["backend"]),
            _number(cell, "gemm.time"),
            _number(cell, "gemm.bandwidth"),
            _number(cell, "gemm.rate", "{:.2f}"),
            _number(cell, "gemm.share_of_bandwidth", "{:.0%}"),
            _number(cell, "gemm.share_of_rate", "{:.0%}"),
            _number(cell, "gemm.error", "{:.1e}"),
            cell.state.value,
        )
    sums = _table(
        "one decode step: sum of its products beside the floor of reading the weights",
        ("M", "GEMM ms", "weights GB", "floor ms", "not measured"),
    )
    for each in result.detail.get("sums", ()):
        floor = each["weight_floor_us"]
        sums.add_row(
            str(each["tokens"]),
            f"{each['gemm_us_per_step'] / 1e3:.2f}",
            f"{each['weight_bytes_per_step'] / 1e9:.2f}",
            f"{floor / 1e3:.2f}" if floor is not None else "unknown",
            ", ".join(each["missing"]) or "–",
        )
    return [kernels, sums] if result.detail.get("sums") else [kernels]


def collectives_tables(result: StepResult) -> list[Table]:
    """Return the collectives."""
    table = _table(
        f"collectives, {result.detail.get('topology', '')}",
        ("op", "tokens", "bytes", "graph", "settings", "p50 µs", "p99 µs", "algbw GB/s", "busbw GB/s", "state"),
    )
    for cell in result.cells:
        axes = cell.axes
        settings = [f"{k}={v}" for k, v in axes.items() if k not in {"op", "tokens", "bytes", "graph"}]
        table.add_row(
            str(axes["op"]),
            str(axes.get("tokens", "–")),
            format_size(float(axes["bytes"])),
            str(axes["graph"]),
            ", ".join(settings) or "–",
            _number(cell, "collective.time.p50"),
            _number(cell, "collective.time.p99"),
            _number(cell, "collective.algbw", "{:.2f}"),
            _number(cell, "collective.busbw", "{:.2f}"),
            cell.state.value,
        )
    return [table]


def serving_tables(result: StepResult) -> list[Table]:
    """Return latencies and throughput, a row a cell."""
    columns = ["cell", *(f"{name} {statistic}" for name in _SHOWN for statistic in ("p50", "p99"))]
    columns += ["out tok/s", "req/s", "in flight", "cache hits", "client CPU", "state"]
    table = _table("latencies in ms", columns)
    for cell in result.cells:
        latencies = [_number(cell, f"{name}.{each}", "{:.2f}") for name in _SHOWN for each in ("p50", "p99")]
        table.add_row(
            cell.id,
            *latencies,
            _number(cell, "output_throughput"),
            _number(cell, "request_throughput", "{:.2f}"),
            _number(cell, "achieved_concurrency"),
            _number(cell, "prefix_cache_hit_rate", "{:.1%}"),
            _number(cell, "client_cpu", "{:.0%}"),
            cell.state.value,
        )
    return [table]

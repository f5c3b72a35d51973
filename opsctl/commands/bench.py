"""``opsctl bench …``: one measuring stage on this machine, without a campaign."""

from __future__ import annotations

import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.errors import ExitCode, UnfitError

if TYPE_CHECKING:
    from opsctl.stages.base import Served

app = typer.Typer(no_args_is_help=True, help="Run one measuring stage on this machine.")

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Folder = Annotated[
    Path | None, typer.Option(help="Keep results here, and take up those that stand there; default: a folder in /tmp.")
]
Python = Annotated[
    str | None,
    typer.Option(help="Python of the serving environment, where torch and vLLM are; default: opsctl's own."),
]
Tokens = Annotated[str, typer.Option(help="Tokens in a step (M), such as 1,8,32.")]
ModelName = Annotated[str, typer.Option(help="kimi-k2.5, or a model's folder or config.json.")]


class Form(StrEnum):
    """How ``bench serving`` writes what it found."""

    TABLE = "table"
    JSON = "json"
    VLLM = "vllm"


class Device(StrEnum):
    """Where matrix products run."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


class Backend(StrEnum):
    """What carries collectives."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


def _list(text: str | None, what: str, kind: type = int) -> tuple[Any, ...]:
    """Return ``1,8,32`` as numbers or words. Raises UnfitError."""
    if not text:
        return ()
    try:
        values = tuple(kind(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise UnfitError(f"{what}: {text!r} is no list of numbers", wanted="such as 1,8,32") from None
    if kind is not str and any(value <= 0 for value in values):
        raise UnfitError(f"{what}: {text!r} holds a number that is not above 0")
    return values


def _options(stage: str, **values: Any) -> Any:
    from pydantic import ValidationError

    from opsctl.stages import STAGES

    try:
        return STAGES[stage].options(**values)
    except ValidationError as error:
        first = error.errors()[0]
        named = ".".join(str(part) for part in first["loc"])
        raise UnfitError(f"{named}: {first['msg']}", seen=repr(first.get("input"))) from error


def _chosen_model(name: str) -> str:
    """Return the option `model` for a built-in model, or for the config.json that a path leads to."""
    from opsctl.stages.modelchoice import KIMI, SERVED

    return name if name == KIMI else SERVED


def _run(
    stage: str,
    options: Any,
    *,
    folder: Path | None,
    python: str | None,
    form: Form,
    server: Served | None = None,
    model: str = "",
) -> None:
    """Run a stage, show its result, and leave with its exit code."""
    from opsctl.commands.terminal import Terminal
    from opsctl.stages.local_run import local_context, read_model_config
    from opsctl.stages.modelchoice import KIMI
    from opsctl.terminal.bench_view import show, vllm_json, watch

    chosen = (folder or Path(tempfile.mkdtemp(prefix="opsctl-bench-"))).resolve()
    config = read_model_config(Path(model)) if model not in {"", KIMI} else None
    context = local_context(chosen, server=server, model_config=config)
    result = watch(stage, options, context, Terminal(stderr=True), python=python, quiet=form is not Form.TABLE)
    if form is Form.TABLE:
        show(result, Terminal())
    else:
        print(vllm_json(result) if form is Form.VLLM else result.model_dump_json(indent=1))
    codes = {"verified": ExitCode.VERIFIED, "inconclusive": ExitCode.INCONCLUSIVE}
    raise typer.Exit(codes.get(result.state.value, ExitCode.FAILED))


@app.command()
def step(
    written: Annotated[str, typer.Argument(metavar="STEP", help="As in a playbook: 'gemm: {tokens: [1, 8]}'.")],
    url: Annotated[str | None, typer.Option(help="The server that the stage measures, where it measures one.")] = None,
    model: Annotated[str | None, typer.Option(help="Its served model name; default: the first that it serves.")] = None,
    config: Annotated[str, typer.Option(help="A model's folder or config.json, for `model: served`.")] = "",
    api_key_file: Annotated[str | None, typer.Option(help="File that holds the API key.")] = None,
    folder: Folder = None,
    python: Python = None,
    json_: AsJson = False,
) -> None:
    """Run any stage, with the options that a playbook gives it.

    [bold]Exit codes[/bold]: 0 every cell verified · 1 a cell failed · 2 not fit · 5 not all measured.

    [bold]Examples[/bold]

    opsctl bench step gpu-check

    opsctl bench step 'gemm: {model: kimi-k2.5, tokens: [1, 8]}' --python /opt/vllm/bin/python
    """
    from opsctl.playbook.loading import read_step
    from opsctl.stages.local_run import find_server

    stage, options = read_step(written)
    server = find_server(url, model, api_key_file) if url else None
    form = Form.JSON if json_ else Form.TABLE
    _run(stage, options, folder=folder, python=python, form=form, server=server, model=config)


@app.command()
def gemm(
    model: ModelName = "kimi-k2.5",
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="Ranks that a layer is split over.")] = None,
    expert_parallel: Annotated[int, typer.Option(min=1, help="Ranks that the experts are split over.")] = 1,
    tokens: Tokens = "1,8,32",
    ops: Annotated[str | None, typer.Option(help="Only these operations, such as experts,o_proj.")] = None,
    backends: Annotated[str | None, typer.Option(help="Only these kernels: torch, marlin, int4pack.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="An own shape NxK in BF16; may be repeated.")] = None,
    repetitions: Annotated[int | None, typer.Option(min=3, help="Default: 100 on a GPU, 5 on a processor.")] = None,
    device: Device = Device.AUTO,
    folder: Folder = None,
    python: Python = None,
    json_: AsJson = False,
) -> None:
    """Measure matrix products at a model's exact shapes, each kernel checked against float64 first.

    [bold]Exit codes[/bold]: 0 every cell verified · 1 a kernel is wrong or failed · 2 not fit · 5 not all measured.

    [bold]Examples[/bold]

    opsctl bench gemm --model kimi-k2.5 --tensor-parallel 8 --tokens 1,8,32

    opsctl bench gemm --shape 7168x7168 --tokens 1 --json
    """
    from opsctl.commands.bench_arguments import has_gpu, parse_shapes

    few = 5 if device is Device.CPU or (device is Device.AUTO and not has_gpu()) else 100
    options = _options(
        "gemm",
        model=_chosen_model(model),
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        tokens=_list(tokens, "--tokens"),
        ops=_list(ops, "--ops", str),
        backends=_list(backends, "--backends", str),
        shapes=parse_shapes(shape or []),
        repetitions=repetitions or few,
        device=device.value,
    )
    form = Form.JSON if json_ else Form.TABLE
    _run("gemm", options, folder=folder, python=python, form=form, model="" if shape else model)


@app.command()
def collectives(
    model: ModelName = "kimi-k2.5",
    world_size: Annotated[int, typer.Option(min=1, help="Ranks on this machine.")] = 2,
    backend: Backend = Backend.AUTO,
    tokens: Tokens = "1,8,32",
    ops: Annotated[str | None, typer.Option(help="Only these, such as all_reduce,all_to_all.")] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Own message sizes, such as 14KiB,1MiB, instead of a model's.")
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help="An environment axis, such as NCCL_PROTO=default,LL,LL128.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=3)] = 200,
    folder: Folder = None,
    python: Python = None,
    json_: AsJson = False,
) -> None:
    """Measure all_reduce, all_gather, reduce_scatter and all_to_all at a model's own message sizes.

    [bold]Exit codes[/bold]: 0 every cell verified · 1 a result is wrong or a cell failed · 2 not fit.

    [bold]Examples[/bold]

    opsctl bench collectives --model kimi-k2.5 --world-size 2 --backend gloo

    opsctl bench collectives --world-size 8 --sweep NCCL_PROTO=default,LL,LL128,Simple --json
    """
    from opsctl.commands.bench_arguments import parse_sweep

    values: dict[str, Any] = {
        "model": _chosen_model(model),
        "world_size": world_size,
        "backend": backend.value,
        "tokens": _list(tokens, "--tokens"),
        "sizes": _list(sizes, "--sizes", str),
        "sweep": parse_sweep(sweep or []),
        "repetitions": repetitions,
    }
    if ops:
        values["ops"] = _list(ops, "--ops", str)
    options = _options("collectives", **values)
    form = Form.JSON if json_ else Form.TABLE
    _run("collectives", options, folder=folder, python=python, form=form, model="" if sizes else model)


@app.command()
def serving(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Served model name; default: the first that it serves.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Requests in flight, such as 1,8,64 (default 1).")] = None,
    request_rate: Annotated[str | None, typer.Option(help="Arrivals a second (Poisson), such as 2,4.5.")] = None,
    input_tokens: Annotated[int, typer.Option(min=1)] = 1024,
    output_tokens: Annotated[int, typer.Option(min=1)] = 256,
    requests: Annotated[int | None, typer.Option(min=1, help="A round's requests; default 4 × concurrency.")] = None,
    duration: Annotated[str | None, typer.Option(help="A round lasts this long, such as 60s, not a count.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    warmup_requests: Annotated[int, typer.Option(min=0)] = 2,
    seed: Annotated[int, typer.Option(help="Of the arrival times; prompts are unique whatever it is.")] = 0,
    slo: Annotated[
        list[str] | None, typer.Option(help="A limit for goodput, such as ttft=2s; may be repeated.")
    ] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File that holds the API key.")] = None,
    format_: Annotated[Form, typer.Option("--format", help="vllm: the keys of vllm bench serve.")] = Form.TABLE,
    folder: Folder = None,
    json_: AsJson = False,
) -> None:
    """Put load on a model server: TTFT, TPOT, ITL, E2EL and throughput, as vllm bench serve defines them.

    [bold]Exit codes[/bold]: 0 every cell measured · 1 a cell failed · 2 not fit.

    [bold]Examples[/bold]

    opsctl bench serving --url http://127.0.0.1:8000 --concurrency 1,8,64

    opsctl bench serving --request-rate 4 --duration 60s --slo ttft=2s --slo tpot=0.05s --format vllm
    """
    from opsctl.commands.bench_arguments import parse_slo
    from opsctl.stages.local_run import find_server

    server = find_server(url, model, api_key_file)
    options = _options(
        "serving-benchmark",
        concurrency=_list(concurrency, "--concurrency") or (() if request_rate else (1,)),
        request_rate=_list(request_rate, "--request-rate", float),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        requests=requests,
        duration=duration,
        rounds=rounds,
        warmup_requests=warmup_requests,
        seed=seed,
        slo=parse_slo(slo or []),
    )
    form = Form.JSON if json_ else format_
    _run("serving-benchmark", options, folder=folder, python=None, form=form, server=server)

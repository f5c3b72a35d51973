"""What a stand-in is told: vLLM's own command line, and ``STANDIN_`` variables for what vLLM does not know."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from opsctl.serving.launch.config_file import arguments_of

VERSION = "0.32.0"
"""The version that it claims unless STANDIN_VERSION says another."""

# Flags that real units carry and that change nothing here. True: takes a value.
_IGNORED = {
    "--dtype": True,
    "--gpu-memory-utilization": True,
    "--max-num-seqs": True,
    "--max-num-batched-tokens": True,
    "--kv-cache-dtype": True,
    "--quantization": True,
    "--tool-call-parser": True,
    "--reasoning-parser": True,
    "--mm-encoder-tp-mode": True,
    "--decode-context-parallel-size": True,
    "--distributed-executor-backend": True,
    "--seed": True,
    "--swap-space": True,
    "--compilation-config": True,
    "--trust-remote-code": False,
    "--enforce-eager": False,
    "--enable-auto-tool-choice": False,
    "--enable-prefix-caching": False,
    "--no-enable-prefix-caching": False,
    "--enable-expert-parallel": False,
    "--disable-log-requests": False,
    "--no-enable-log-requests": False,
    "--disable-custom-all-reduce": False,
    "--async-scheduling": False,
}


@dataclass(frozen=True)
class ProfilerSettings:
    """vLLM's ProfilerConfig, as far as it matters here."""

    folder: Path
    with_stack: bool = True
    use_gzip: bool = True
    record_shapes: bool = False
    ignore_frontend: bool = False


@dataclass(frozen=True)
class Settings:
    """One stand-in."""

    model: str
    served_names: tuple[str, ...]
    host: str
    port: int
    tensor_parallel: int
    max_model_len: int
    api_keys: tuple[str, ...]
    profiler: ProfilerSettings | None
    version: str
    engine: Literal["paced", "torch"]
    load_seconds: float
    shards: int
    layers: int
    ttft: float
    """Seconds of a prefill, whatever its length."""
    tpot: float
    """Seconds of a decode step of one request."""
    arguments: dict[str, Any]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}\n")


def _parser() -> _Parser:
    parser = _Parser(prog="vllm", add_help=True, allow_abbrev=False)
    parser.add_argument("--version", "-v", action="store_true")
    commands = parser.add_subparsers(dest="command", parser_class=_Parser)
    serve = commands.add_parser("serve", allow_abbrev=False)
    serve.add_argument("model_tag", nargs="?")
    serve.add_argument("--model")
    serve.add_argument("--served-model-name", nargs="+")
    serve.add_argument("--host", default="0.0.0.0")  # noqa: S104 - vLLM's own default
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    serve.add_argument("--max-model-len", type=int, default=8192)
    serve.add_argument("--api-key", nargs="+")
    serve.add_argument("--profiler-config")
    serve.add_argument("--profiler-config.profiler", dest="profiler_name")
    serve.add_argument("--profiler-config.torch_profiler_dir", dest="profiler_dir")
    serve.add_argument("--profiler-config.torch_profiler_with_stack", dest="profiler_stack")
    for flag, takes_value in _IGNORED.items():
        serve.add_argument(flag, action="store" if takes_value else "store_true")
    return parser


def _with_config(argv: Sequence[str]) -> list[str]:
    """Put the arguments of ``--config FILE`` behind ``serve``, as vLLM does: those of the line come later and win."""
    words = list(argv)
    while "--config" in words[:-1]:
        at = words.index("--config")
        found = arguments_of(Path(words[at + 1]).read_text(encoding="utf-8"))
        words = [words[0], *found, *words[1:at], *words[at + 2 :]]
    return words


def release(version: str) -> tuple[int, int]:
    """Return (major, minor): 0.16.0rc2.dev344 behaves as 0.16, though PEP 440 sorts it below."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"not a version: {version!r}")
    return int(found[1]), int(found[2])


def _profiler(options: argparse.Namespace, version: str, environment: Mapping[str, str]) -> ProfilerSettings | None:
    config: dict[str, Any] = json.loads(options.profiler_config) if options.profiler_config else {}
    dotted = (("profiler", "name"), ("torch_profiler_dir", "dir"), ("torch_profiler_with_stack", "stack"))
    for key, flag in dotted:
        value = getattr(options, f"profiler_{flag}")
        if value is not None:
            config[key] = value if key != "torch_profiler_with_stack" else value.lower() == "true"
    if release(version) <= (0, 12):
        config = {}
    if release(version) <= (0, 14) and "VLLM_TORCH_PROFILER_DIR" in environment:
        config.setdefault("profiler", "torch")
        config.setdefault("torch_profiler_dir", environment["VLLM_TORCH_PROFILER_DIR"])
        with_stack = environment.get("VLLM_TORCH_PROFILER_WITH_STACK", "1")
        config.setdefault("torch_profiler_with_stack", with_stack != "0")
    if config.get("profiler") != "torch":
        return None
    folder = Path(config.get("torch_profiler_dir", ""))
    if not folder.is_absolute():
        raise ValueError("torch_profiler_dir must be set to an absolute path when profiler is 'torch'")
    return ProfilerSettings(
        folder,
        with_stack=config.get("torch_profiler_with_stack", True),
        use_gzip=config.get("torch_profiler_use_gzip", True),
        record_shapes=config.get("torch_profiler_record_shapes", False),
        ignore_frontend=config.get("ignore_frontend", False),
    )


def read(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings | None:
    """Return the settings; None when only the version was asked for, which is printed.

    Ends the process with status 2, as vLLM does, on a command line that it does not know.
    """
    parser = _parser()
    options = parser.parse_args(_with_config(argv))
    version = environment.get("STANDIN_VERSION", VERSION)
    if options.version:
        print(version)
        return None
    if options.command != "serve":
        parser.error("the stand-in only knows: vllm serve")
    model = options.model_tag or options.model
    if not model:
        parser.error("the following arguments are required: model_tag")
    if options.profiler_config and release(version) <= (0, 12):
        parser.error("unrecognized arguments: --profiler-config")
    try:
        profiler = _profiler(options, version, environment)
    except ValueError as error:
        parser.error(str(error))
    key = environment.get("VLLM_API_KEY")
    engine = environment.get("STANDIN_ENGINE", "paced")
    if engine not in {"paced", "torch"}:
        parser.error(f"STANDIN_ENGINE is paced or torch, found {engine!r}")
    return Settings(
        model=model,
        served_names=tuple(options.served_model_name or [model]),
        host=options.host,
        port=options.port,
        tensor_parallel=options.tensor_parallel_size,
        max_model_len=options.max_model_len,
        api_keys=tuple(options.api_key or ([key] if key else [])),
        profiler=profiler,
        version=version,
        engine="torch" if engine == "torch" else "paced",
        load_seconds=float(environment.get("STANDIN_LOAD_SECONDS", "0.2")),
        shards=int(environment.get("STANDIN_SHARDS", "6")),
        layers=int(environment.get("STANDIN_LAYERS", "4")),
        ttft=float(environment.get("STANDIN_TTFT", "0.01")),
        tpot=float(environment.get("STANDIN_TPOT", "0.002")),
        arguments={"model_tag": model, "port": options.port, "tensor_parallel_size": options.tensor_parallel_size},
    )

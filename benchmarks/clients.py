"""Two load generators on the same server, with the same keys: ours, and ``vllm bench serve`` where it is installed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opsctl.payload.collectives import free_port
from opsctl.results import Cell
from opsctl.stages.judging import judge_records
from opsctl.stages.vllm_format import vllm_document

HERE = Path(__file__).parent
ROOT = HERE.parent
VLLM = ROOT / ".venv-vllm" / "bin" / "vllm"
TINY_MODEL = ROOT / ".venv-vllm" / "tiny-model"


def cores() -> tuple[int | None, int | None]:
    """Return a core for the server and one for the client; (None, None) where there is only one."""
    there = sorted(os.sched_getaffinity(0))
    return (there[-1], there[0]) if len(there) > 1 else (None, None)


def pinned(argv: Sequence[str], core: int | None) -> list[str]:
    """Return a command that runs on one core; where we may, ahead of whatever else this machine does meanwhile.

    Real-time priority, not nice: with autogrouping nice counts only within a session.
    """
    first = ["chrt", "--rr", "1"] if os.geteuid() == 0 else []
    return [*first, "taskset", "-c", str(core), *argv] if core is not None else list(argv)


@contextmanager
def paced_server(*, ttft: float, interval: float, core: int | None) -> Iterator[str]:
    """Yield the URL of a paced server of its own process."""
    argv = [sys.executable, str(HERE / "paced_server.py"), "--ttft", str(ttft), "--interval", str(interval)]
    argv = pinned(argv, core)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield f"http://127.0.0.1:{int(line)}"
        finally:
            process.terminate()
            process.wait(10)


@contextmanager
def vllm_server(*, core: int | None = None, limit: float = 900.0) -> Iterator[str]:
    """Yield the URL of a real CPU vLLM that serves the tiny model, on one core where one is given.

    Raises RuntimeError when it does not come up.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [str(VLLM), "serve", str(TINY_MODEL), "--served-model-name", "tiny", "--port", str(port)]
    argv += ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16", "--host", "127.0.0.1"]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    if core is not None:
        argv = ["taskset", "-c", str(core), *argv]
        environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": str(core)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
        try:
            end = time.monotonic() + limit
            while process.poll() is not None or not _answers(f"{url}/v1/models"):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    msg = f"vLLM did not come up: {log.read()[-2000:].decode(errors='replace')}"
                    raise RuntimeError(msg)
                time.sleep(1.0)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310 - a URL of ours
            return bool(answer.status == 200)
    except OSError:
        return False


def get_json(url: str) -> dict[str, Any]:
    """Return a JSON document."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - a URL of ours
        document: dict[str, Any] = json.load(answer)
    return document


def _timed(argv: Sequence[str], **how: Any) -> float:
    """Run a program; return the CPU seconds of it and its children. Raises RuntimeError with its last words."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, **how)
    if done.returncode:
        msg = f"{argv[0]} ended with {done.returncode}: {done.stdout[-1500:].decode(errors='replace')}"
        raise RuntimeError(msg)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(
    url: str,
    model: str,
    *,
    streams: int,
    requests: int,
    inputs: int,
    outputs: int,
    core: int | None = None,
    warm: int = 1,
) -> dict[str, Any]:
    """Run one round with opsctl's payload; return vLLM's keys, and ``client_cpu`` as a share of one core."""
    spec = {
        "url": url,
        "model": model,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "requests": requests,
        "warmup_requests": warm,
        "rounds": 1,
        "seed": 0,
        "slo": {},
        "request_limit": 300.0,
        "limit": 500.0,
        "cells": [{"id": "cell", "concurrency": streams}],
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        payload = ["-m", "opsctl.payload", "serving-benchmark", "--spec", "spec.json", "--out", "results.jsonl"]
        subprocess.run(pinned([sys.executable, *payload], core), cwd=folder, check=False, timeout=600)
        lines = (Path(folder) / "results.jsonl").read_bytes().splitlines()
    (cell,) = judge_records("serving-benchmark", (Cell(id="cell"),), [json.loads(line) for line in lines]).cells
    document = vllm_document(cell)
    figure = cell.figure("client_cpu")
    if figure is None:
        msg = f"opsctl's round did not end: {cell.reason}"
        raise RuntimeError(msg)
    return {
        **document,
        "client_cpu": figure.value,
        "cpu_per_token": figure.value * document["duration"] / max(1, document["total_output_tokens"]),
    }


def vllms(
    url: str,
    model: str,
    *,
    streams: int,
    requests: int,
    inputs: int,
    outputs: int,
    core: int | None = None,
    seed: int = 0,
    program: Path = VLLM,
    tokenizer: Path = TINY_MODEL,
) -> dict[str, Any]:
    """Run one round with ``vllm bench serve``; ``process_cpu`` is CPU seconds, its imports included."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            str(program),
            "bench",
            "serve",
            "--backend",
            "openai",
            "--base-url",
            url,
            "--endpoint",
            "/v1/completions",
        ]
        argv += ["--model", model, "--tokenizer", str(tokenizer), "--dataset-name", "random", "--ignore-eos"]
        argv += ["--random-input-len", str(inputs), "--random-output-len", str(outputs), "--num-prompts", str(requests)]
        argv += ["--max-concurrency", str(streams), "--request-rate", "inf", "--temperature", "0", "--seed", str(seed)]
        argv += ["--save-result", "--result-dir", folder, "--result-filename", "r.json", "--disable-tqdm"]
        argv += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
        # In a folder of its own: `python -m` looks for packages where it is started.
        used = _timed(pinned(argv, core), env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=folder)
        document: dict[str, Any] = json.loads((Path(folder) / "r.json").read_bytes())
    return {**document, "process_cpu": used}

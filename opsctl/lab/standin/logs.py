"""vLLM's own log lines, from the log of a real 0.32.0 on two CPU ranks. Readers of progress are tested on these."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Speaker:
    """One process of the server, as it names itself at the head of its lines."""

    name: str
    pid: int

    def say(self, source: str, message: str, level: str = "INFO") -> None:
        """Write one line to standard error. ``source`` is file:line in vLLM."""
        stamp = time.strftime("%m-%d %H:%M:%S")
        sys.stderr.write(f"({self.name} pid={self.pid}) {level} {stamp} [{source}] {message}\n")
        sys.stderr.flush()

    def error(self, source: str, message: str) -> None:
        """Write an ERROR line."""
        self.say(source, message, "ERROR")


def api_server() -> Speaker:
    """Return the process that answers HTTP."""
    return Speaker("APIServer", os.getpid())


def engine_core(pid: int) -> Speaker:
    """Return the process that schedules."""
    return Speaker("EngineCore", pid)


def worker(rank: int, pid: int) -> Speaker:
    """Return a rank's process."""
    return Speaker(f"Worker_TP{rank}", pid)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def shard_progress(done: int, total: int, elapsed: float) -> None:
    """Write one update of the progress bar as tqdm does there: carriage return first, newline last, no name."""
    rate = done / elapsed if done and elapsed > 0 else 0.0
    shown = "?" if not rate else (f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it")
    left = _clock((total - done) / rate) if rate else "?"
    tail = f"[{_clock(elapsed)}<{left}, {shown if rate else '?it/s'}]"
    percent = round(100 * done / total)
    sys.stderr.write(
        f"\rLoading safetensors checkpoint shards: {percent:3d}% Completed | {done}/{total} {tail}\n",
    )
    sys.stderr.flush()


def banner(version: str, model: str) -> None:
    """Write how a start begins."""
    speaker = api_server()
    speaker.say("api_utils.py:347", f"  version {version}\r")
    speaker.say("api_utils.py:347", f"  model   {model}\r")


def load_begins(speaker: Speaker, model: str) -> None:
    """Write that a worker starts to load."""
    speaker.say("gpu_model_runner.py:68", f"Starting to load model {model}...")


def load_ends(speaker: Speaker, seconds: float, mebibytes: float) -> None:
    """Write that a worker has its weights."""
    speaker.say("default_loader.py:501", f"Loading weights took {seconds:.2f} seconds")
    speaker.say(
        "gpu_model_runner.py:3338",
        f"Model loading took {mebibytes / 1024:.2f} GiB memory and {seconds:.6f} seconds",
    )


def engine_ready(core: Speaker, seconds: float) -> None:
    """Write the engine's last lines before the server listens."""
    core.say("kv_cache_utils.py:2327", "Available KV cache memory: 1.00 GiB")
    core.say("gpu_model_runner.py:4244", "Graph capturing finished in 1 secs, took 0.10 GiB")
    core.say("core.py:402", f"init engine (profile, create kv cache, warmup model) took {seconds:.2f} s")


def routes(listed: list[tuple[str, str]], host: str, port: int) -> None:
    """Write the routes that the server has."""
    speaker = api_server()
    speaker.say("entry.py:140", f"Starting vLLM server on http://{host}:{port}")
    speaker.say("launcher.py:186", "Available routes are:")
    for path, methods in listed:
        speaker.say("launcher.py:195", f"Route: {path}, Methods: {methods}")


def worker_died(core: Speaker, rank: int) -> None:
    """Write how a dead worker ends the engine."""
    core.error("multiproc_executor.py:273", f"Worker proc VllmWorker-{rank} died unexpectedly, shutting down executor.")
    core.error("core.py:1070", "EngineCore encountered a fatal error.")
    api_server().error(
        "async_llm.py:906",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
        "See stack trace (above) for the root cause.",
    )


def load_failed(speaker: Speaker, core: Speaker, cause: str) -> None:
    """Write how a failed load ends the server."""
    speaker.error("multiproc_executor.py:772", "WorkerProc failed to start.")
    speaker.error("multiproc_executor.py:772", cause)
    core.error("core.py:1070", "EngineCore failed to start.")
    api_server().error(
        "launcher.py:270",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    )


def every_shard(
    total: int,
    seconds: float,
    load: Callable[[int], None],
    *,
    show: bool,
    before: Callable[[int], None],
) -> float:
    """Load shard after shard at a pace, with the progress of rank 0, and return the seconds it took.

    ``load(k)`` and ``before(k)`` get the shard's number, from 1; ``before`` is where faults happen.
    """
    begun = time.monotonic()
    if show:
        shard_progress(0, total, 0.0)
    for number in range(1, total + 1):
        before(number)
        load(number)
        time.sleep(max(0.0, begun + seconds * number / total - time.monotonic()))
        if show:
            shard_progress(number, total, time.monotonic() - begun)
    return time.monotonic() - begun

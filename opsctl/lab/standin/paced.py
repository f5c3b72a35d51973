"""The engine that computes nothing: it holds GPUs, keeps the time it is told, and writes small traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from opsctl.lab.standin import logs, traces
from opsctl.lab.standin.executor import EngineDeadError, LoadFaults, Step
from opsctl.lab.standin.faults import Faults
from opsctl.lab.standin.settings import Settings

_HOLDER = Path(__file__).with_name("holder.py")
_PREFILL_RATE = 100_000
"""Prompt tokens a second, beside the fixed part (Settings.ttft)."""


class PacedExecutor:
    """Executor without torch."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self._settings = settings
        self._faults = faults
        self._holders: list[subprocess.Popen[str]] = []
        self._recorded: list[traces.RecordedStep] | None = None
        self._counter = 0

    def load(self) -> None:
        """Take the GPUs, then pretend to read shards."""
        settings, core = self._settings, logs.engine_core(os.getpid())
        for rank in range(settings.tensor_parallel):
            name = f"VLLM::Worker_TP{rank}"
            argv = [sys.executable, "-I", "-S", str(_HOLDER), str(rank), name, self._faults.text()]
            self._holders.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        speakers = [logs.worker(rank, holder.pid) for rank, holder in enumerate(self._holders)]
        # All are heard before one that failed ends the others: which breaches are on record is no race.
        answers = [_heard(holder) for holder in self._holders]
        for speaker, answer in zip(speakers, answers, strict=True):
            if "error" in answer:
                cause = (
                    f"ValueError: Free memory on device is less than desired GPU memory utilization. {answer['error']}"
                )
                logs.load_failed(speaker, core, cause)
                self.close()
                sys.exit(1)
        for speaker in speakers:
            logs.load_begins(speaker, settings.model)
        faults = LoadFaults(self._faults, speakers[0], core)
        took = logs.every_shard(
            settings.shards, settings.load_seconds, lambda _: None, show=True, before=faults.before_shard
        )
        faults.after_shards()
        for speaker in speakers:
            logs.load_ends(speaker, took, 1024.0)
        logs.engine_ready(core, 0.1)

    def step(self, step: Step) -> dict[int, int]:
        """Sleep as long as the step would take; tokens are letters, and now and then one without text."""
        self._check_workers()
        begun = time.time_ns()
        seconds = 0.0
        if step.prefills:
            fresh = max(0, step.context_tokens - step.cached)
            seconds += self._settings.ttft + fresh / _PREFILL_RATE
        if step.decodes:
            seconds += self._settings.tpot * (1 + 0.02 * (len(step.decodes) - 1))
        time.sleep(seconds)
        if self._recorded is not None:
            self._recorded.append(traces.RecordedStep(step, begun, time.time_ns()))
        return {request: self._next_token() for request in (*dict(step.prefills), *dict(step.decodes))}

    def _next_token(self) -> int:
        self._counter += 1
        return 256 + 5 if self._counter % 4 == 3 else ord("a") + self._counter % 26

    def _check_workers(self) -> None:
        for rank, holder in enumerate(self._holders):
            if holder.poll() is not None:
                logs.worker_died(logs.engine_core(os.getpid()), rank)
                raise EngineDeadError(f"worker {rank} died")

    def start_profile(self) -> None:
        """Record steps from now on."""
        self._recorded = []

    def stop_profile(self) -> None:
        """Write one synthetic trace a rank."""
        recorded, self._recorded = self._recorded, None
        if recorded is None or self._settings.profiler is None:
            return
        traces.write_ranks(self._settings, self._faults, recorded, [holder.pid for holder in self._holders])

    def close(self) -> None:
        """End the workers by closing their standard input."""
        for holder in self._holders:
            if holder.stdin is not None:
                holder.stdin.close()


def _heard(holder: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a holder says of its GPU."""
    assert holder.stdout is not None  # noqa: S101 - a pipe was asked for
    answer: dict[str, Any] = json.loads(holder.stdout.readline() or '{"error": "worker died"}')
    return answer

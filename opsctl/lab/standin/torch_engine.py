"""The engine with a real model: one process a rank (``rank.py``), each sent the same steps."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from opsctl.lab.standin import logs
from opsctl.lab.standin.executor import EngineDeadError, Step
from opsctl.lab.standin.faults import Faults
from opsctl.lab.standin.settings import Settings


class TorchExecutor:
    """Executor with torch; torch itself is loaded in the ranks alone."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self._settings = settings
        self._faults = faults
        self._ranks: list[subprocess.Popen[str]] = []

    def load(self) -> None:
        """Start the ranks and wait until each has its weights; a rank that fails ends the server."""
        core = logs.engine_core(os.getpid())
        meeting = Path(tempfile.mkdtemp(prefix="standin-")) / "meeting"
        for rank in range(self._settings.tensor_parallel):
            argv = [sys.executable, "-m", "opsctl.lab.standin.rank", json.dumps(self._task(rank, meeting))]
            self._ranks.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for rank, process in enumerate(self._ranks):
            answer = self._read(rank)
            if "ready" not in answer:
                logs.load_failed(logs.worker(rank, process.pid), core, answer.get("error", "worker died"))
                for other in self._ranks:
                    other.kill()
                sys.exit(1)
        logs.engine_ready(core, 0.1)

    def _task(self, rank: int, meeting: Path) -> dict[str, Any]:
        settings, profiler = self._settings, self._settings.profiler
        return {
            "rank": rank,
            "world": settings.tensor_parallel,
            "model": settings.model,
            "version": settings.version,
            "load_seconds": settings.load_seconds,
            "faults": self._faults.text(),
            "meeting": str(meeting),
            "profiler": None
            if profiler is None
            else {
                "folder": str(profiler.folder),
                "with_stack": profiler.with_stack,
                "use_gzip": profiler.use_gzip,
                "record_shapes": profiler.record_shapes,
            },
        }

    def _read(self, rank: int) -> dict[str, Any]:
        stdout = self._ranks[rank].stdout
        line = stdout.readline() if stdout is not None else ""
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def _all(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command to every rank and return rank 0's answer. Raises EngineDeadError when one is gone."""
        text = json.dumps(command) + "\n"
        for rank, process in enumerate(self._ranks):
            if process.stdin is None or process.poll() is not None:
                self._died(rank)
            try:
                process.stdin.write(text)
                process.stdin.flush()
            except BrokenPipeError:
                self._died(rank)
        answers = [self._read(rank) for rank in range(len(self._ranks))]
        silent = [rank for rank, answer in enumerate(answers) if not answer]
        if silent:
            # A rank that was killed takes its peers along: gloo raises in them. The killed one is the cause.
            killed = [rank for rank in silent if (self._ranks[rank].poll() or 0) < 0]
            self._died((killed or silent)[0])
        return answers[0]

    def _died(self, rank: int) -> NoReturn:
        logs.worker_died(logs.engine_core(os.getpid()), rank)
        raise EngineDeadError(f"worker {rank} died")

    def step(self, step: Step) -> dict[int, int]:
        """Run one forward pass on every rank."""
        command = {"do": "step", "prefills": step.prefills, "decodes": step.decodes, "finished": step.finished}
        return {number: token for number, token in self._all(command)["tokens"]}  # noqa: C416 - JSON has lists, not pairs

    def start_profile(self) -> None:
        """Start torch's profiler in every rank."""
        self._all({"do": "start_profile"})

    def stop_profile(self) -> None:
        """Have every rank write its trace."""
        self._all({"do": "stop_profile"})

    def close(self) -> None:
        """End the ranks by closing their standard input, and by SIGTERM where one sits in a collective."""
        for process in self._ranks:
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
            process.terminate()

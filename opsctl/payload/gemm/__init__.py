"""gemm: matrix products at a model's exact shapes, each kernel checked before it is timed.

The measuring runs in a child process (``worker.py``): a kernel that crashes the process, corrupts the CUDA context
or never ends costs its own cell, and a fresh child takes up the rest.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opsctl.payload import records
from opsctl.payload.errors import PayloadError
from opsctl.payload.output import Output
from opsctl.payload.records import CellRecord, Record, many

_CELL_LIMIT = 300.0  # seconds for one cell, the making of its weights included
_START_LIMIT = 300.0  # importing torch and vLLM from a cold disk, and the ceilings


@dataclass(frozen=True)
class OpSpec(Record):
    """One operation. Kind dense: ``n``, ``k``, ``batch``; kind experts: the other numbers."""

    name: str
    kind: str
    dtype: str = "bf16"
    n: int = 0
    k: int = 0
    batch: int = 1
    experts: int = 0
    """Of this rank."""
    all_experts: int = 0
    top_k: int = 0
    hidden: int = 0
    intermediate: int = 0


@dataclass(frozen=True)
class CellSpec(Record):
    """One operation at ``m`` tokens by one kernel."""

    id: str
    op: str
    m: int
    backend: str


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is measured. ``limit`` is in seconds."""

    ops: tuple[OpSpec, ...] = many(OpSpec)
    cells: tuple[CellSpec, ...] = many(CellSpec)
    device: str = "auto"
    repetitions: int = 100
    limit: float = 3600.0


def self_command() -> list[str]:
    """Return how to start this same payload again: the zipapp, or the package."""
    main = sys.argv[0]
    if main.endswith(".pyz"):
        return [sys.executable, "-B", main]
    return [sys.executable, "-m", "opsctl.payload"]


class _Worker:
    """One child, its lines, and the cell that it is at."""

    def __init__(self, spec: Spec, output: Output) -> None:
        path = output.folder / "gemm-worker.json"
        path.write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        self.log = (output.folder / "gemm-worker.stderr").open("ab")
        self.process = subprocess.Popen(
            [*self_command(), "--worker", "gemm.worker", str(path)],
            stdout=subprocess.PIPE,
            stderr=self.log,
            stdin=subprocess.DEVNULL,
        )
        self.at: str | None = None

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield messages. Ends with the child's output; raises TimeoutError when none came for the limit."""
        stdout = self.process.stdout
        if stdout is None:
            return
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(_START_LIMIT if self.at is None else _CELL_LIMIT):
                    raise TimeoutError
                data = os.read(stdout.fileno(), 65536)
                if not data:
                    return
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    message = _message(line)
                    if message is not None:
                        yield message

    def close(self) -> int:
        """End the child and return its status."""
        if self.process.poll() is None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()
        return self.process.wait()


def _message(line: bytes) -> dict[str, Any] | None:
    # Libraries print to stdout too; only lines of ours count.
    if not line.startswith(b'{"gemm":'):
        return None
    try:
        message = json.loads(line)["gemm"]
    except (ValueError, KeyError):
        return None
    return message if isinstance(message, dict) else None


def _how_it_died(status: int, output: Output) -> str:
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    path = output.folder / "gemm-worker.stderr"
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"the measuring process ended {how}{f': {lines[-1][:300]}' if lines else ''}"


class _Supervisor:
    """Runs children until each cell has an outcome."""

    def __init__(self, spec: Spec, output: Output) -> None:
        self.spec = spec
        self.output = output
        self.left = {cell.id: cell for cell in spec.cells if cell.id not in output.verified}
        self.states: dict[str, str] = dict.fromkeys(output.verified, "verified")
        self.end = time.monotonic() + spec.limit

    def _take(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        if "environment" in message:
            self.output.environment(message["environment"])
        elif "at" in message:
            worker.at = message["at"]
            of = len(self.spec.cells)
            self.output.progress(f"gemm {worker.at}", of - len(self.left), of, every=1.0)
        elif "cell" in message:
            cell = CellRecord.from_dict(message["cell"])
            self.output.write(cell)
            self.states[cell.id] = cell.state
            self.left.pop(cell.id, None)
            worker.at = ""

    def _fail(self, name: str, reason: str) -> None:
        self.output.cell(name, "failed", reason=reason)
        self.states[name] = "failed"
        self.left.pop(name, None)

    def once(self) -> None:
        """Run one child as far as it goes. Raises PayloadError when it did not come to measure anything."""
        before = len(self.left)
        worker = _Worker(replace(self.spec, cells=tuple(self.left.values())), self.output)
        hung = False
        try:
            for message in worker.lines():
                self._take(worker, message)
                if time.monotonic() > self.end:
                    msg = f"the limit of {self.spec.limit:g} s is reached"
                    raise PayloadError(msg)
        except TimeoutError:
            hung = True
        finally:
            if hung or sys.exc_info()[0] is not None:
                worker.process.kill()
            status = worker.close()
        if hung and not worker.at:
            msg = f"the measuring process did not start within {_START_LIMIT:g} s"
            raise PayloadError(msg)
        if worker.at and worker.at in self.left:
            why = f"no end within {_CELL_LIMIT:g} s" if hung else _how_it_died(status, self.output)
            self._fail(worker.at, why)
        elif self.left and len(self.left) == before:
            raise PayloadError(_how_it_died(status, self.output))


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Measure every cell. Returns the state and reason of the ``end`` record."""
    supervisor = _Supervisor(spec, output)
    while supervisor.left:
        supervisor.once()
    states = list(supervisor.states.values())
    counted = f"{states.count('verified')} of {len(states)} cells measured"
    if states.count("skipped"):
        counted += f", {states.count('skipped')} do not apply here"
    return ("failed" if "failed" in states or "verified" not in states else "verified"), counted

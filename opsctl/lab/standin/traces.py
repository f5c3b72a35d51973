"""Trace files as vLLM names and writes them: real ones come from torch, these are for the engine without it.

A synthetic trace holds what a reader looks for: step markers, 1 + 2 × layers all-reduces and one all-gather a step,
some operators, and the instant that closes a complete file.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.lab.standin.executor import Step
from opsctl.lab.standin.faults import Faults
from opsctl.lab.standin.settings import ProfilerSettings, Settings, release


@dataclass(frozen=True)
class RecordedStep:
    """A step that ran while the profiler was on. Times in ns since the epoch."""

    step: Step
    begun: int
    ended: int


def marker(step: Step, version: str) -> str:
    """Return the name of the annotation around a step, as that version writes it."""
    new, tokens, running = len(step.prefills), step.context_tokens, len(step.decodes)
    if release(version) <= (0, 13):
        return f"execute_new_{new}_cached_{running}"
    return f"execute_context_{new}({tokens})_generation_{running}({running})"


def worker_name(rank: int, version: str) -> str:
    """Return the first part of a rank's file names."""
    if release(version) <= (0, 13):
        return f"{socket.gethostname()}_{os.getpid()}-rank-{rank}"
    if release(version) < (0, 32):
        return f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}"
    return f"rank{rank}"


def summary_name(rank: int, version: str) -> str:
    """Return the name of a rank's table of averages."""
    return (
        f"profiler_out_{rank}.txt" if release(version) < (0, 32) else f"{worker_name(rank, version)}.profiler_out.txt"
    )


def front_end_name() -> str:
    """Return the first part of the front end's file names: not a rank."""
    return f"{socket.gethostname()}_{os.getpid()}.async_llm"


def spoil(path: Path, faults: Faults, rank: int) -> None:
    """Do to a rank's finished file what a fault wants done to it."""
    whole = path.read_bytes()
    if faults.rank("missing-rank", rank) or "silent-stop-profile" in faults:
        path.unlink()
    elif faults.rank("empty-rank", rank):
        path.write_bytes(b"")
    elif faults.rank("cut-rank", rank) or "dies-in-flush" in faults:
        path.write_bytes(whole[: len(whole) // 2])
    elif faults.rank("garbage-rank", rank):
        broken = b'{"schemaVersion": 1, "traceEvents": [ {"ph": "X", "name": "unquo'
        path.write_bytes(gzip.compress(broken) if path.suffix == ".gz" else broken)


def _write(folder: Path, name: str, document: dict[str, Any], *, use_gzip: bool) -> Path:
    text = json.dumps(document).encode()
    path = folder / f"{name}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
    path.write_bytes(gzip.compress(text, compresslevel=1) if use_gzip else text)
    return path


def copy_in(plain: Path, profiler: ProfilerSettings, worker: str) -> Path:
    """Copy a finished trace to its final name, compressed on the way, and return it."""
    path = profiler.folder / f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if profiler.use_gzip else ''}"
    if profiler.use_gzip:
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=1) as target:
            shutil.copyfileobj(source, target)
    else:
        shutil.copyfile(plain, path)
    return path


def summary(document: dict[str, Any]) -> str:
    """Return the table beside a trace: torch's columns that matter, from the events themselves.

    torch's own key_averages() takes longer than the measurement (27.9 s were seen for 5 × 32 tokens).
    """
    totals: dict[str, tuple[float, int]] = {}
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in {"cpu_op", "user_annotation"}:
            microseconds, calls = totals.get(event["name"], (0.0, 0))
            totals[event["name"]] = (microseconds + event["dur"], calls + 1)
    rule = "-" * 55 + "".join("  " + "-" * 12 for _ in range(3))
    lines = [rule, f"{'Name':>55s}  {'CPU total':>12s}  {'CPU time avg':>12s}  {'# of Calls':>12s}", rule]
    for name, (microseconds, calls) in sorted(totals.items(), key=lambda item: -item[1][0])[:50]:
        mean = microseconds / calls
        lines.append(f"{name[:55]:>55s}  {microseconds / 1000:10.3f}ms  {mean:10.3f}us  {calls:12d}")
    return "\n".join([*lines, rule]) + "\n"


def write_front_end(profiler: ProfilerSettings, version: str) -> None:
    """Write the front end's file: annotations of the window, no step, no device event."""
    if profiler.ignore_frontend:
        return
    profiler.folder.mkdir(parents=True, exist_ok=True)
    now = time.time_ns()
    document = _document(version, None, [_window_end(now)], now)
    _write(profiler.folder, front_end_name(), document, use_gzip=profiler.use_gzip)
    if release(version) >= (0, 32):
        (profiler.folder / f"{front_end_name()}.profiler_out.txt").write_text("\n")


def write_ranks(settings: Settings, faults: Faults, recorded: list[RecordedStep], pids: list[int]) -> None:
    """Write one trace and one table a rank, spoilt as the faults want it."""
    profiler = settings.profiler
    if profiler is None:
        return
    profiler.folder.mkdir(parents=True, exist_ok=True)
    base = recorded[0].begun if recorded else time.time_ns()
    for rank, pid in enumerate(pids):
        events = [event for at in recorded for event in _step_events(at, base, pid, rank, settings)]
        events.append(_window_end(time.time_ns() - base))
        document = _document(settings.version, (rank, len(pids)), events, base)
        name = worker_name(rank, settings.version)
        path = _write(profiler.folder, name, document, use_gzip=profiler.use_gzip)
        (profiler.folder / summary_name(rank, settings.version)).write_text(summary(document))
        spoil(path, faults, rank)


def _document(version: str, rank: tuple[int, int] | None, events: list[dict[str, Any]], base: int) -> dict[str, Any]:
    about: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], "with_stack": 0}
    if rank is not None:
        about["distributedInfo"] = {"backend": "gloo", "rank": rank[0], "world_size": rank[1]}
    about |= {"vllm_version": version, "host_name": socket.gethostname(), "displayTimeUnit": "ms"}
    return about | {"baseTimeNanoseconds": base, "traceEvents": events, "traceName": "/tmp/standin.json"}  # noqa: S108


def _window_end(ns: int) -> dict[str, Any]:
    return {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": ns / 1000}


def _step_events(at: RecordedStep, base: int, pid: int, rank: int, settings: Settings) -> Iterator[dict[str, Any]]:
    start, length = (at.begun - base) / 1000, (at.ended - at.begun) / 1000
    chance = random.Random(f"{at.begun} {rank}")  # noqa: S311 - ranks differ a little, as real ones do

    def event(category: str, name: str, tid: int, offset: float, share: float) -> dict[str, Any]:
        when = round(start + offset * length, 3)
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": when,
            "dur": round(share * length, 3),
            "args": {},
        }

    yield event("user_annotation", marker(at.step, settings.version), pid, 0.0, 1.0)
    reduces = 1 + 2 * settings.layers
    slot = 1.0 / (reduces + 1)
    for number in range(reduces):
        yield event("cpu_op", "aten::mm", pid, number * slot, 0.55 * slot)
        share = slot * chance.uniform(0.25, 0.35)
        yield event("user_annotation", "gloo:all_reduce", pid + 1, (number + 0.6) * slot, share)
    yield event("cpu_op", "aten::mm", pid, reduces * slot, 0.55 * slot)
    yield event("user_annotation", "gloo:all_gather", pid + 1, (reduces + 0.6) * slot, 0.3 * slot)

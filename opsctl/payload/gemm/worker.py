"""The child that measures: one message a line on standard output, ``{"gemm": {…}}``."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from opsctl.payload.environment import torch_facts
from opsctl.payload.errors import CellFailed, CellSkipped
from opsctl.payload.gemm import CellSpec, Spec
from opsctl.payload.gemm.case import DEFAULT_CACHE, Backend, Case, Machine
from opsctl.payload.gemm.dense import Bf16, Int4PackDense, MarlinDense
from opsctl.payload.gemm.experts import Int4PackExperts, MarlinExperts
from opsctl.payload.gemm.timing import Timing, ceilings, time_on_cpu, time_on_cuda
from opsctl.payload.records import CellRecord, Figure
from opsctl.payload.statistics import figure

_BACKENDS: dict[tuple[str, str], Callable[[Machine], Backend]] = {
    ("dense", "torch"): Bf16,
    ("dense", "int4pack"): Int4PackDense,
    ("dense", "marlin"): MarlinDense,
    ("experts", "int4pack"): Int4PackExperts,
    ("experts", "marlin"): MarlinExperts,
}
_BROKEN = ("CUDA error", "cudaErr", "device-side assert", "CUDNN_STATUS", "CUBLAS_STATUS_EXECUTION_FAILED")


class ContextBroken(Exception):
    """The CUDA context of this process is of no more use: a fresh one must go on."""


def say(**message: Any) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"gemm": message}) + "\n")
    sys.stdout.flush()


def _told(name: str, state: str, reason: str = "", *, figures: Sequence[Figure] = (), detail: Any = None) -> None:
    say(cell=CellRecord(name, state, reason, tuple(figures), detail or {}).to_dict())


def _load(device: str) -> Machine:
    """Return torch and the device. Raises CellFailed when they are not there."""
    try:
        import torch
    except ImportError as error:
        msg = f"torch is not in the serving environment's Python ({sys.executable}): {error}"
        raise CellFailed(msg) from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        msg = "no GPU: torch sees no CUDA device"
        raise CellFailed(msg)
    cache = DEFAULT_CACHE
    if device == "cuda":
        cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or DEFAULT_CACHE
    torch.manual_seed(0)
    return Machine(torch, device, cache)


def _figures(case: Case, timing: Timing, error: float, limits: Mapping[str, Any]) -> list[Figure]:
    total = case.weight_bytes + case.activation_bytes
    bandwidth, rate = total / timing.seconds, case.flops / timing.seconds
    counted = "bytes = weights, scales and activations once"
    return [
        figure(
            "gemm.time",
            timing.seconds * 1e6,
            "us",
            samples=timing.repetitions,
            spread=timing.spread * 1e6,
            formula=timing.how,
        ),
        figure("gemm.bandwidth", bandwidth / 1e9, "GB/s", formula=f"bytes / time; {counted}"),
        figure("gemm.rate", rate / 1e12, "TFLOP/s", formula="2·M·N·K / time"),
        figure(
            "gemm.share_of_bandwidth",
            bandwidth / limits["copy_bandwidth"],
            "ratio",
            formula="bandwidth / copy bandwidth measured in this run",
        ),
        figure(
            "gemm.share_of_rate",
            rate / limits["matrix_rate"],
            "ratio",
            formula="rate / BF16 matrix rate measured in this run",
        ),
        figure("gemm.bytes", total, "B", formula=counted),
        figure("gemm.error", error, "ratio", formula="‖out − ref‖ / ‖ref‖, ref from dequantised weights in float64"),
    ]


def _measure(machine: Machine, backend: Backend, cell: CellSpec, spec: Spec, limits: Any) -> None:
    case = backend.case(cell.m)
    worst: list[float] = []

    def check(outputs: Sequence[Any]) -> None:
        worst.append(case.errors(outputs))
        if worst[-1] > case.tolerance:
            seen = f"relative error {worst[-1]:.2e} against float64"
            msg = f"the kernel is wrong here: {seen}, at most {case.tolerance:.0e}"
            raise CellFailed(msg)

    repetitions = spec.repetitions
    if machine.device == "cuda":
        # Once before a graph exists, so that a wrong kernel is told from a wrong capture.
        check([call() for call in case.calls])
        timing = time_on_cuda(machine.torch, case.calls, repetitions=repetitions, check=check)
    else:
        timing = time_on_cpu(case.calls, repetitions=repetitions, check=check)
    detail = {
        **case.detail,
        "weight_bytes": case.weight_bytes,
        "activation_bytes": case.activation_bytes,
        "flops": case.flops,
        "p10_us": timing.p10 * 1e6,
        "p90_us": timing.p90 * 1e6,
        "device": machine.device,
    }
    made = _figures(case, timing, max(worst), limits)
    _told(cell.id, "verified", figures=made, detail=detail)


def _outcome(machine: Machine, name: str, error: Exception) -> None:
    """Say what became of a cell that raised. Raises ContextBroken when nothing can follow in this process."""
    text = str(error).strip().split("\n")[0][:300]
    if isinstance(error, CellSkipped):
        _told(name, "skipped", str(error))
        return
    if isinstance(error, CellFailed):
        _told(name, "failed", str(error))
        return
    told = str(error).lower()
    if "out of memory" in told or "can't allocate memory" in told or isinstance(error, MemoryError):
        _told(name, "failed", f"out of memory: {text}")
        if machine.device == "cuda":
            machine.torch.cuda.empty_cache()
        return
    traceback.print_exc()
    _told(name, "failed", f"{type(error).__name__}: {text}")
    if any(mark in str(error) for mark in _BROKEN):
        raise ContextBroken(text)


def _groups(cells: Sequence[CellSpec]) -> Iterator[tuple[tuple[str, str], list[CellSpec]]]:
    """Yield cells that share weights: an operation and a backend."""
    order = {cell.op: place for place, cell in reversed(list(enumerate(cells)))}
    ordered = sorted(cells, key=lambda cell: (order[cell.op], cell.backend, cell.m))
    for key, group in groupby(ordered, key=lambda cell: (cell.op, cell.backend)):
        yield key, list(group)


def _run_group(machine: Machine, key: tuple[str, str], group: Sequence[CellSpec], spec: Spec, limits: Any) -> None:
    op = next(each for each in spec.ops if each.name == key[0])
    kind = _BACKENDS.get((op.kind, key[1]))
    say(at=group[0].id)
    if kind is None:
        for cell in group:
            _told(cell.id, "skipped", f"no kernel here takes {op.dtype} {op.kind}")
        return
    try:
        backend = kind(machine)
        backend.prepare(op)
    except Exception as error:  # noqa: BLE001 - each cell of the group says why
        for cell in group:
            _outcome(machine, cell.id, error)
        return
    for cell in group:
        say(at=cell.id)
        try:
            _measure(machine, backend, cell, spec, limits)
        except Exception as error:  # noqa: BLE001 - the others still run
            _outcome(machine, cell.id, error)


def main(argv: list[str]) -> int:
    """Measure the cells of a spec file."""
    spec = Spec.from_dict(json.loads(Path(argv[0]).read_bytes()))
    try:
        machine = _load(spec.device)
    except CellFailed as error:
        for cell in spec.cells:
            _told(cell.id, "failed", str(error))
        return 0
    with machine.torch.inference_mode():
        limits = ceilings(machine.torch, machine.device)
        say(environment={"torch": torch_facts(machine.torch), "ceilings": limits, "device": machine.device})
        for key, group in _groups(spec.cells):
            try:
                _run_group(machine, key, group, spec, limits)
            except ContextBroken:
                return 3
            if machine.device == "cuda":
                machine.torch.cuda.empty_cache()
    return 0

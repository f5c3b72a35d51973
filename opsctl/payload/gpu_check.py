"""gpu-check: memory bandwidth of each GPU, and copies between the host and each GPU, one GPU after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.payload import records
from opsctl.payload.environment import run_tool, torch_facts
from opsctl.payload.errors import CellFailed, PayloadError
from opsctl.payload.output import Output
from opsctl.payload.records import Figure
from opsctl.payload.statistics import figure, percentile, std

_WARM_UP = 3
#: By test: bytes moved for each byte of the buffer, and what was done.
MOVED = {
    "device-copy": (2, "b.copy_(a) on the GPU, bytes read and written"),
    "device-triad": (3, "a = b + s · c on the GPU, bytes read and written"),
    "host-to-device-pinned": (1, "from pinned host memory"),
    "device-to-host-pinned": (1, "to pinned host memory"),
    "host-to-device-pageable": (1, "from pageable host memory"),
    "device-to-host-pageable": (1, "to pageable host memory"),
    "cpu-copy": (2, "b.copy_(a) in host memory, all threads of torch, bytes read and written"),
}


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is measured. Sizes are bytes of one buffer; ``cells`` are names of MOVED."""

    cells: tuple[str, ...]
    size: int = 1 << 30
    host_size: int = 256 << 20
    repetitions: int = 20
    device: str = "auto"


def link_limits() -> list[float | None]:
    """Return GB/s one way of each GPU's PCIe link by its highest generation and width; None where it does not say.

    After line coding: 8 GT/s × 128/130 a lane for generation 3, doubled with each generation; packets cost more.
    """
    text, _ = run_tool(
        "nvidia-smi", "--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader,nounits"
    )
    limits: list[float | None] = []
    for line in (text or "").splitlines():
        generation, _, width = (word.strip() for word in line.partition(","))
        told = generation.isdecimal() and width.isdecimal() and int(generation) >= 3
        limits.append(8 * 2 ** (int(generation) - 3) * 128 / 130 * int(width) / 8 if told else None)
    return limits


def _cuda_samples(torch: Any, gpu: int, work: Callable[[], Any], repetitions: int) -> list[float]:
    """Return seconds of each repetition, by CUDA events around it."""
    for _ in range(_WARM_UP):
        work()
    torch.cuda.synchronize(gpu)
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repetitions)]
    for start, end in pairs:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize(gpu)
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


def _wall_samples(work: Callable[[], Any], repetitions: int, wait: Callable[[], Any] = lambda: None) -> list[float]:
    for _ in range(_WARM_UP):
        work()
    wait()
    samples = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        wait()
        samples.append(time.perf_counter() - began)
    return samples


def _arrived(torch: Any, source: Any, target: Any) -> None:
    """Compare a copy with what was copied. Raises CellFailed."""
    if not bool(torch.equal(source.cpu(), target.cpu())):
        msg = "the copy arrived wrong"
        raise CellFailed(msg)


def _on_device(torch: Any, spec: Spec, test: str, gpu: int) -> list[float]:
    count, buffers = spec.size // 4, MOVED[test][0]
    free, _ = torch.cuda.mem_get_info(gpu)
    if free < buffers * spec.size:
        msg = f"{free >> 20} MiB are free, {buffers * spec.size >> 20} MiB are needed"
        raise CellFailed(msg)
    first = torch.arange(count, dtype=torch.float32, device=f"cuda:{gpu}")
    second = torch.zeros_like(first)
    if test == "device-copy":
        samples = _cuda_samples(torch, gpu, lambda: second.copy_(first), spec.repetitions)
        if not bool(torch.equal(first, second)):
            msg = "the copy arrived wrong"
            raise CellFailed(msg)
        return samples
    third = torch.empty_like(first)
    samples = _cuda_samples(torch, gpu, lambda: torch.add(second, first, alpha=3.0, out=third), spec.repetitions)
    if not bool(torch.equal(third, first * 3.0)):
        msg = "the triad is wrong"
        raise CellFailed(msg)
    return samples


def _across(torch: Any, spec: Spec, test: str, gpu: int) -> list[float]:
    pinned = test.endswith("pinned")
    host = torch.arange(spec.host_size // 4, dtype=torch.int32, pin_memory=pinned)
    there = torch.zeros(spec.host_size // 4, dtype=torch.int32, device=f"cuda:{gpu}")
    source, target = host, there
    if test.startswith("device"):
        there.copy_(host)
        source, target = there, torch.zeros(spec.host_size // 4, dtype=torch.int32, pin_memory=pinned)
    if pinned:
        samples = _cuda_samples(torch, gpu, lambda: target.copy_(source, non_blocking=True), spec.repetitions)
    else:
        samples = _wall_samples(
            lambda: target.copy_(source), spec.repetitions, wait=lambda: torch.cuda.synchronize(gpu)
        )
    _arrived(torch, host, target)
    return samples


def _on_cpu(torch: Any, spec: Spec) -> list[float]:
    first = torch.arange(spec.host_size // 4, dtype=torch.int32)
    second = torch.zeros_like(first)
    samples = _wall_samples(lambda: second.copy_(first), spec.repetitions)
    _arrived(torch, first, second)
    return samples


def _figures(test: str, size: int, samples: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Return the bandwidth of each device, and over devices the least, the median and the most. GB/s."""
    factor, how = MOVED[test]
    made = []
    for name, seconds in samples.items():
        rates = [factor * size / each / 1e9 for each in seconds]
        made.append(
            figure(
                f"bandwidth.{name}",
                factor * size / percentile(seconds, 50) / 1e9,
                "GB/s",
                samples=len(rates),
                spread=std(rates, sample=True),
                formula=f"{size >> 20} MiB {how}; median of {len(rates)}",
            )
        )
    values = [each.value for each in made]
    over = {"min": min(values), "median": percentile(values, 50), "max": max(values)}
    count = len(values)
    return [
        *(
            figure(f"bandwidth.{name}", value, "GB/s", samples=count, formula=f"{name} over {count} devices")
            for name, value in over.items()
        ),
        *made,
    ]


def _measure(torch: Any, spec: Spec, test: str, gpus: int, output: Output) -> list[Figure]:
    """Return a test's figures over all GPUs. Raises CellFailed with the GPU."""
    if test == "cpu-copy":
        return _figures(test, spec.host_size, {"cpu": _on_cpu(torch, spec)})
    on_device = test in {"device-copy", "device-triad"}
    samples: dict[str, Sequence[float]] = {}
    for gpu in range(gpus):
        output.progress(f"{test}, GPU {gpu}", gpu, gpus)
        try:
            with torch.cuda.device(gpu):
                samples[f"gpu{gpu}"] = (_on_device if on_device else _across)(torch, spec, test, gpu)
                torch.cuda.empty_cache()
        except (CellFailed, RuntimeError) as error:
            msg = f"GPU {gpu}: {str(error).strip().splitlines()[0][:300]}"
            raise CellFailed(msg) from error
    return _figures(test, spec.size if on_device else spec.host_size, samples)


def _gpus(torch: Any, device: str) -> tuple[int, str]:
    """Return how many GPUs there are to measure, and why there is none. Raises PayloadError for GPUs out of use."""
    if device == "cpu":
        return 0, "device: cpu"
    if torch.cuda.is_available():
        return int(torch.cuda.device_count()), ""
    listed, why = run_tool("nvidia-smi", "-L")
    if listed and listed.strip():
        msg = f"nvidia-smi lists {len(listed.strip().splitlines())} GPUs, and torch {torch.__version__} can use none"
        raise PayloadError(msg)
    if device == "cuda":
        msg = "no GPU: torch sees no CUDA device"
        raise PayloadError(msg)
    return 0, f"no GPU: torch sees no CUDA device, {why or 'nvidia-smi lists none'}"


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Measure every cell. Returns the state and reason of the ``end`` record."""
    try:
        import torch
    except ImportError as error:
        msg = f"torch is not in this Python environment: {error}"
        raise PayloadError(msg) from error
    gpus, why_none = _gpus(torch, spec.device)
    facts = torch_facts(torch)
    names = [torch.cuda.get_device_properties(gpu).name for gpu in range(gpus)]
    output.environment({"torch": facts, "gpu_names": names, "link_limits": link_limits()[:gpus]})
    failed = measured = 0
    for test in spec.cells:
        if test in output.verified:
            measured += 1
            continue
        if not gpus and test != "cpu-copy":
            output.cell(test, "skipped", reason=why_none)
            continue
        output.cell(test, "running")
        try:
            made = _measure(torch, spec, test, gpus, output)
        except (CellFailed, RuntimeError) as error:
            output.cell(test, "failed", reason=str(error))
            failed += 1
        else:
            output.cell(test, "verified", figures=made)
            measured += 1
    return "failed" if failed or not measured else "verified", f"{measured} of {len(spec.cells)} cells measured"

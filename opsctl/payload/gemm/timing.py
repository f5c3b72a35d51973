"""How long a kernel takes: under a CUDA graph with cold caches, or on the processor; and the machine's ceilings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.payload.statistics import mean, percentile, std

Call = Callable[[], Any]

_GRAPH_TIME = 400e-6  # seconds of work in a graph: its launch, some µs, must not show
_MOST_CALLS = 512
_BUDGET = 3.0  # seconds of timing a cell
_CPU_BUDGET = 0.5
_FEWEST = 5


@dataclass(frozen=True)
class Timing:
    """Seconds a call: the median over repetitions, their spread, and what was done."""

    seconds: float
    spread: float
    p10: float
    p90: float
    repetitions: int
    calls: int
    how: str


def _summary(samples: Sequence[float], calls: int, how: str) -> Timing:
    return Timing(
        seconds=percentile(samples, 50),
        spread=std(samples, sample=True),
        p10=percentile(samples, 10),
        p90=percentile(samples, 90),
        repetitions=len(samples),
        calls=calls,
        how=how,
    )


def time_on_cuda(torch: Any, calls: Sequence[Call], *, repetitions: int, check: Callable[[list[Any]], None]) -> Timing:
    """Time calls inside one CUDA graph, as decode runs them. ``calls`` have weights of their own, more than L2 holds.

    Before timing, the outputs are filled with NaN and the graph replayed once: ``check`` sees what the graph itself
    wrote. Raises what ``check`` raises, and torch's errors.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for call in calls:
            call()
        torch.cuda.synchronize()
        one = (time.perf_counter() - began) / len(calls)
    cycles = max(1, min(round(_GRAPH_TIME / max(one * len(calls), 1e-7)), max(1, _MOST_CALLS // len(calls))))
    graph = torch.cuda.CUDAGraph()
    outputs: list[Any] = []
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(cycles):
            outputs.extend(call() for call in calls)
    for output in outputs:
        output.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    check(outputs[: len(calls)])
    per_replay = max(one * len(outputs) / 10, 1e-6)
    count = max(_FEWEST, min(repetitions, int(_BUDGET / per_replay)))
    for _ in range(3):
        graph.replay()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in pairs:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    samples = [start.elapsed_time(end) * 1e-3 / len(outputs) for start, end in pairs]
    how = (
        f"CUDA graph of {len(outputs)} calls over {len(calls)} copies (cold L2), "
        f"median of {count} replays / {len(outputs)}"
    )
    return _summary(samples, len(outputs), how)


def time_on_cpu(calls: Sequence[Call], *, repetitions: int, check: Callable[[list[Any]], None]) -> Timing:
    """Time calls one by one, each with weights of its own in turn; few of them where they are slow.

    Raises what ``check`` raises.
    """
    check([call() for call in calls])
    samples: list[float] = []
    began = time.perf_counter()
    while len(samples) < repetitions:
        spent = time.perf_counter() - began
        if (spent > _CPU_BUDGET and len(samples) >= _FEWEST) or (spent > 4 * _CPU_BUDGET and samples):
            break
        call = calls[len(samples) % len(calls)]
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    count = len(samples)
    return _summary(samples, count, f"processor, {len(calls)} copies in turn, median of {count} calls")


def _device_time(torch: Any, device: str, work: Call, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        samples.append(time.perf_counter() - began)
    return samples


def ceilings(torch: Any, device: str) -> dict[str, Any]:
    """Measure this machine: copy bandwidth in B/s (bytes read and written) and BF16 matrix rate in FLOP/s."""
    size = (2 << 30) if device == "cuda" else (64 << 20)
    source = torch.ones(size // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    copies = _device_time(torch, device, lambda: target.copy_(source), 15 if device == "cuda" else 5)
    side = 8192 if device == "cuda" else 256
    left = torch.randn(side, side, device=device).to(torch.bfloat16)
    right = torch.randn(side, side, device=device).to(torch.bfloat16)
    for _ in range(3 if device == "cuda" else 1):
        torch.mm(left, right)
    products = _device_time(torch, device, lambda: torch.mm(left, right), 15 if device == "cuda" else 3)
    return {
        "copy_bandwidth": 2 * size / percentile(copies, 50),
        "copy_spread": std(copies, sample=True) / mean(copies),
        "copy_how": f"copy of {size >> 20} MiB, bytes read and written, median of {len(copies)}",
        "matrix_rate": 2 * side**3 / percentile(products, 50),
        "matrix_spread": std(products, sample=True) / mean(products),
        "matrix_how": f"BF16 product of side {side}, random data, median of {len(products)}",
    }

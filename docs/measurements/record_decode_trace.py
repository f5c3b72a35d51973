# ruff: noqa: INP001 (a script, no package)
"""Record a torch.profiler trace of a decode loop made of CUDA-graph replays, as a model server's worker would.

Run on a machine with a GPU, with nothing but torch::

    python record_decode_trace.py OUT_FOLDER

It writes ``rank0.<time_ns>.pt.trace.json.gz`` (Kineto's own layout), ``key_averages.json`` (what torch
itself says of every kernel: calls and self device time in µs), ``key_averages.txt`` and ``recording.json``
(versions, and the period of a step without the profiler, with the profiler armed and idle, and during
capture). Each layer forks a second stream inside the graph for its shared expert, so that the union of
busy time differs from the sum. Weights are random: only shapes, counts and clocks matter here.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own habit)
from torch.profiler import ProfilerActivity, profile, record_function

HIDDEN, HEADS, HEAD_DIM, MLP, VOCAB, CONTEXT = 2048, 16, 128, 4096, 32768, 1024


class Layer:
    """One decoder layer: norm, qkv, attention over a cache, output, and two experts, one on a side stream."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=dtype) * 0.02

        self.norm = torch.ones(HIDDEN, device=device, dtype=dtype)
        self.qkv, self.out = weight(3 * HIDDEN, HIDDEN), weight(HIDDEN, HIDDEN)
        self.up, self.down = weight(2 * MLP, HIDDEN), weight(HIDDEN, MLP)
        self.shared_up, self.shared_down = weight(MLP, HIDDEN), weight(HIDDEN, MLP // 2)

    def __call__(self, x: torch.Tensor, cache: torch.Tensor, side: Fork) -> torch.Tensor:
        """Return the layer's output for ``x`` [tokens, HIDDEN]; ``cache`` [2, batch, HEADS, CONTEXT, HEAD_DIM]."""
        normed = F.rms_norm(x, (HIDDEN,), self.norm)
        query, key, value = F.linear(normed, self.qkv).view(x.shape[0], 3, HEADS, 1, HEAD_DIM).unbind(1)
        cache[0, : x.shape[0], :, :1], cache[1, : x.shape[0], :, :1] = key, value
        attended = F.scaled_dot_product_attention(query, cache[0, : x.shape[0]], cache[1, : x.shape[0]])
        x = x + F.linear(attended.reshape(x.shape[0], HIDDEN), self.out)
        normed = F.rms_norm(x, (HIDDEN,), self.norm)
        with side.branch():
            gate, linear = F.linear(normed, self.shared_up).chunk(2, dim=-1)
            shared = F.linear(F.silu(gate) * linear, self.shared_down)
        gate, linear = F.linear(normed, self.up).chunk(2, dim=-1)
        routed = F.linear(F.silu(gate) * linear, self.down)
        side.join()
        return x + routed + shared


class Fork:
    """A second stream that a captured graph forks to and joins; on the CPU it does nothing."""

    def __init__(self, device: str) -> None:
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    @contextmanager
    def branch(self) -> Iterator[None]:
        """Run the body on the second stream, after what the current one holds."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the second one."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Model:
    """The layers, a head, and one captured graph a batch size."""

    def __init__(self, device: str, batches: tuple[int, ...], layers: int) -> None:
        self.device, dtype = device, torch.bfloat16
        self.layers = [Layer(device, dtype) for _ in range(layers)]
        self.head = torch.randn(VOCAB, HIDDEN, device=device, dtype=dtype) * 0.02
        self.embedding = torch.randn(VOCAB, HIDDEN, device=device, dtype=dtype) * 0.02
        self.caches = [
            torch.zeros(2, max(batches), HEADS, CONTEXT, HEAD_DIM, device=device, dtype=dtype) for _ in self.layers
        ]
        self.side = Fork(device)
        self.inputs = torch.zeros(max(batches), dtype=torch.long, device=device)
        self.replays: dict[int, tuple[Callable[[], None], torch.Tensor]] = {}
        for batch in batches:
            self.replays[batch] = self._capture(batch)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits [tokens, VOCAB]."""
        x = self.embedding[tokens]
        for layer, cache in zip(self.layers, self.caches, strict=True):
            x = layer(x, cache, self.side)
        return F.linear(x, self.head)

    def _capture(self, batch: int) -> tuple[Callable[[], None], torch.Tensor]:
        tokens = self.inputs[:batch]
        logits = self.forward(tokens)
        if self.device != "cuda":

            def eager() -> None:
                logits.copy_(self.forward(tokens))

            return eager, logits
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.forward(tokens)
        return graph.replay, logits

    def decode(self, batch: int) -> list[int]:
        """Run one decode step of ``batch`` tokens the way vLLM's worker marks it, sampling included."""
        replay, logits = self.replays[batch]
        with record_function(f"execute_context_0(0)_generation_{batch}({batch})"):
            replay()
            chosen = torch.argmax(torch.softmax(logits.float(), dim=-1), dim=-1)
            self.inputs[:batch].copy_(chosen)
        return [int(token) for token in chosen.tolist()]

    def prefill(self, tokens: int) -> None:
        """Run one eager prefill step."""
        with record_function(f"execute_context_1({tokens})_generation_0(0)"):
            self.forward(torch.zeros(min(tokens, self.inputs.shape[0]), dtype=torch.long, device=self.device))


def period_us(model: Model, batch: int, steps: int) -> float:
    """Return the mean wall time of a decode step in µs (each step ends in a copy to the host)."""
    model.decode(batch)
    start = time.perf_counter()
    for _ in range(steps):
        model.decode(batch)
    return (time.perf_counter() - start) / steps * 1e6


def record(model: Model, folder: Path, steps: dict[int, int]) -> dict[str, object]:
    """Profile a prefill and ``steps[batch]`` decode steps of each batch; write what torch says of them."""
    batch = min(steps)
    without = period_us(model, batch, steps[batch])
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if model.device == "cuda" else [])
    with profile(activities=activities):  # the first session pays for CUPTI's start
        model.decode(batch)
    armed = period_us(model, batch, steps[batch])
    started: dict[int, float] = {}
    with profile(activities=activities) as session:
        for size, count in steps.items():
            model.prefill(8)
            started[size] = period_us(model, size, count - 1)
        if model.device == "cuda":
            torch.cuda.synchronize()
    session.export_chrome_trace(str(folder / f"rank0.{time.time_ns()}.pt.trace.json.gz"))
    averages = session.key_averages()
    rows = [
        {"name": row.key, "calls": row.count, "self_device_us": row.self_device_time_total}
        for row in averages
        if str(row.device_type).endswith("CUDA")
    ]
    (folder / "key_averages.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = averages.table(sort_by="self_device_time_total", row_limit=60, max_name_column_width=90)
    (folder / "key_averages.txt").write_text(table)
    return {"off_us": without, "armed_us": armed, "capturing_us": started, "batch_off_and_armed": batch}


def main() -> None:
    """Parse the command line, record, and say what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=64, help="decode steps of each batch")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        model = Model(arguments.device, (1, 8), arguments.layers)
        periods = record(model, arguments.folder, {1: arguments.steps, 8: arguments.steps})
    about = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
        "layers": arguments.layers,
        "step_period_us": periods,
    }
    (arguments.folder / "recording.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about))


if __name__ == "__main__":
    main()

"""One rank: runs the cells it is given in step with the others, checks each result exactly, and times it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from opsctl.payload.collectives import CellSpec, Work
from opsctl.payload.records import CellRecord
from opsctl.payload.statistics import figure, mean, percentile, std

_WARM_UP = 5
_IN_GRAPH = 20
_BUDGET = 5.0  # seconds of timing a cell
_SMOKE_BYTES = 4096
_GROUP_LIMIT = timedelta(seconds=120)

#: busbw = algbw × factor(n), as nccl-tests' PERFORMANCE.md defines it.
BUS_FACTOR: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


def say(**message: Any) -> None:
    """Write one message for the parent."""
    sys.stdout.write(json.dumps({"collectives": message}) + "\n")
    sys.stdout.flush()


class Wrong(Exception):
    """A collective gave a wrong result."""


class Rank:
    """torch, the group, and this process's place in it."""

    def __init__(self, backend: str) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        if backend == "auto":
            backend = "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        self.backend = backend
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self.device)
        dist.init_process_group(backend, timeout=_GROUP_LIMIT)
        # Small objects travel over gloo, so that gathering the timings does not disturb NCCL's streams.
        self.side = dist.new_group(backend="gloo", timeout=_GROUP_LIMIT)

    def close(self) -> None:
        """Leave the group."""
        self.dist.destroy_process_group()

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value."""
        values: list[Any] = [None] * self.world
        self.dist.all_gather_object(values, value, group=self.side)
        return values

    def sync(self) -> None:
        """Wait for the device."""
        if self.backend == "nccl":
            self.torch.cuda.synchronize()

    def elements(self, size: int) -> int:
        """Return BF16 elements of a message, rounded up so that each rank has an equal part."""
        whole = max(1, size // 2)
        return -(-whole // self.world) * self.world


class Operation:
    """One collective on buffers with known contents. Sizes as nccl-tests counts them: the larger of the two buffers."""

    def __init__(self, rank: Rank, op: str, size: int) -> None:
        torch = rank.torch
        self.rank, self.op = rank, op
        total = rank.elements(size)
        self.bytes = 2 * total
        part = total // rank.world
        # Small integers: sums stay below 256 for 32 ranks and are exact in BF16, so results are compared exactly.
        pattern = (torch.arange(total, device=rank.device) % 4).to(torch.bfloat16)
        mine = pattern + rank.rank % 4
        if op == "all_reduce":
            self.source, self.target = mine, torch.empty_like(mine)
            added = sum(other % 4 for other in range(rank.world))
            self.expected = pattern * rank.world + added
        elif op == "all_gather":
            self.source, self.target = mine[:part].clone(), torch.empty_like(mine)
            self.expected = torch.cat([pattern[:part] + other % 4 for other in range(rank.world)])
        elif op == "reduce_scatter":
            self.source, self.target = mine, torch.empty_like(mine[:part])
            added = sum(other % 4 for other in range(rank.world))
            own = pattern[rank.rank * part : (rank.rank + 1) * part]
            self.expected = own * rank.world + added
        elif op == "all_to_all":
            self.source, self.target = mine, torch.empty_like(mine)
            own = pattern[rank.rank * part : (rank.rank + 1) * part]
            self.expected = torch.cat([own + other % 4 for other in range(rank.world)])
        else:
            msg = f"no such collective: {op}"
            raise ValueError(msg)

    def call(self) -> None:
        """Run it once. all_reduce works in place on a buffer that grows with each call: see ``check``."""
        dist = self.rank.dist
        if self.op == "all_reduce":
            dist.all_reduce(self.target)
        elif self.op == "all_gather":
            dist.all_gather_into_tensor(self.target, self.source)
        elif self.op == "reduce_scatter":
            # torch 2.13 renamed it, and warns of the old name.
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            scatter(self.target, self.source)
        else:
            dist.all_to_all_single(self.target, self.source)

    def fill(self) -> None:
        """Put the inputs in place, and poison the outputs."""
        if self.op == "all_reduce":
            self.target.copy_(self.source)
        else:
            self.target.fill_(float("nan"))

    def quiet(self) -> None:
        """Make repeated in-place sums harmless."""
        if self.op == "all_reduce":
            self.target.zero_()

    def check(self, run: Callable[[], None]) -> None:
        """Fill, run once, and compare exactly on every rank. Raises Wrong on all of them."""
        self.fill()
        run()
        self.rank.sync()
        right = bool(self.rank.torch.equal(self.target, self.expected))
        wrong = [place for place, fine in enumerate(self.rank.gather(right)) if not fine]
        if wrong:
            msg = f"wrong result on {'ranks' if len(wrong) > 1 else 'rank'} {', '.join(map(str, wrong))}"
            raise Wrong(msg)


def _count(rank: Rank, one: float, repetitions: int) -> int:
    """Return how often to repeat: the same number on every rank."""
    slowest = max(rank.gather(one))
    return max(3, min(repetitions, int(_BUDGET / max(slowest, 1e-7))))


def _plain(rank: Rank, operation: Operation, repetitions: int) -> tuple[list[float], str]:
    operation.check(operation.call)
    operation.quiet()
    for _ in range(_WARM_UP):
        operation.call()
    rank.sync()
    began = time.perf_counter()
    operation.call()
    rank.sync()
    count = _count(rank, time.perf_counter() - began, repetitions)
    if rank.backend == "nccl":
        cuda = rank.torch.cuda
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
        for start, end in pairs:
            start.record()
            operation.call()
            end.record()
        rank.sync()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs], "CUDA events around each call"
    samples = []
    for _ in range(count):
        began = time.perf_counter()
        operation.call()
        samples.append(time.perf_counter() - began)
    return samples, "wall time of each call"


def _graphed(rank: Rank, operation: Operation, repetitions: int) -> tuple[list[float], str]:
    cuda = rank.torch.cuda
    stream = cuda.Stream()
    with cuda.stream(stream):
        operation.quiet()
        for _ in range(_WARM_UP):
            operation.call()
    rank.sync()
    once, many = cuda.CUDAGraph(), cuda.CUDAGraph()
    with cuda.graph(once, stream=stream):
        operation.call()
    operation.check(once.replay)
    operation.quiet()
    with cuda.graph(many, stream=stream):
        for _ in range(_IN_GRAPH):
            operation.call()
    many.replay()
    rank.sync()
    began = time.perf_counter()
    many.replay()
    rank.sync()
    count = _count(rank, time.perf_counter() - began, repetitions)
    pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in pairs:
        start.record()
        many.replay()
        end.record()
    rank.sync()
    samples = [start.elapsed_time(end) * 1e-3 / _IN_GRAPH for start, end in pairs]
    return samples, f"CUDA graph of {_IN_GRAPH} calls, each sample the mean of one replay"


def _measure(rank: Rank, cell: CellSpec, repetitions: int) -> None:
    graphed = cell.graph == "on"
    if graphed and rank.backend != "nccl":
        if rank.local == 0:
            reason = f"{rank.backend} has no CUDA graphs"
            say(cell=CellRecord(cell.id, "skipped", reason).to_dict())
        return
    operation = Operation(rank, cell.op, cell.bytes)
    samples, how = (_graphed if graphed else _plain)(rank, operation, repetitions)
    if graphed:
        operation.rank.sync()
    # A collective has ended when its slowest rank has.
    slowest = [max(each) for each in zip(*rank.gather(samples))]
    if rank.local == 0:
        say(cell=_result(cell.id, rank, operation, slowest, how).to_dict())


def _result(name: str, rank: Rank, operation: Operation, samples: Sequence[float], how: str) -> CellRecord:
    p50 = percentile(samples, 50)
    algbw = operation.bytes / p50
    formula = f"{how}; the slowest rank of each of {len(samples)}"
    return CellRecord(
        name,
        "verified",
        figures=(
            figure(
                "collective.time.p50",
                p50 * 1e6,
                "us",
                samples=len(samples),
                spread=std(samples, sample=True) * 1e6,
                formula=f"p50; {formula}",
            ),
            figure("collective.time.p99", percentile(samples, 99) * 1e6, "us", samples=len(samples), formula=formula),
            figure("collective.algbw", algbw / 1e9, "GB/s", formula="bytes / p50"),
            figure(
                "collective.busbw",
                algbw * BUS_FACTOR[operation.op](rank.world) / 1e9,
                "GB/s",
                formula="algbw × 2(n − 1)/n for all_reduce, (n − 1)/n for the others (nccl-tests)",
            ),
        ),
        detail={
            "bytes": operation.bytes,
            "world_size": rank.world,
            "backend": rank.backend,
            "mean_us": mean(samples) * 1e6,
            "checked": "every element, on every rank, exactly",
        },
    )


def _smoke(rank: Rank, ops: Sequence[str]) -> None:
    for op in ops:
        operation = Operation(rank, op, _SMOKE_BYTES)
        operation.check(operation.call)
    if rank.local == 0:
        torch = rank.torch
        facts: dict[str, Any] = {"backend": rank.backend, "world_size": rank.world, "torch": torch.__version__}
        if rank.backend == "nccl":
            facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
            facts["cuda"] = torch.version.cuda
        say(environment=facts, smoke=True)


def _p2p() -> None:
    """Copy between every pair of GPUs that claim peer access, and compare what arrived."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    say(gpus=count)
    findings, copies = [], []
    for source in range(count):
        pattern = torch.arange(1 << 20, dtype=torch.int32, device=f"cuda:{source}")
        for target in range(count):
            if source == target:
                continue
            claimed = torch.cuda.can_device_access_peer(source, target)
            arrived = torch.full_like(pattern, -1, device=f"cuda:{target}")
            arrived.copy_(pattern)
            torch.cuda.synchronize(target)
            right = bool((arrived.cpu() == pattern.cpu()).all())
            copies.append({"from": source, "to": target, "claimed": claimed, "right": right})
            if not right:
                word = "claims P2P" if claimed else "goes through the host"
                findings.append(f"GPU {source} → GPU {target} {word} and its copy arrives wrong")
    say(p2p_findings=findings, p2p_copies=copies)


def _cells(rank: Rank, work: Work) -> None:
    for cell in work.cells:
        say(at=cell.id)
        problem = ""
        try:
            _measure(rank, cell, work.repetitions)
        except Wrong as error:
            problem = str(error)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            text = str(error).strip().split("\n")[0][:300]
            if "CUDA error" in text or "NCCL" in text or "Connection" in text or "timed out" in text.lower():
                raise  # nothing that this group says from here on can be trusted
            problem = f"{type(error).__name__}: {text}"
        if problem and rank.local == 0:
            say(cell=CellRecord(cell.id, "failed", problem).to_dict())


def main(argv: list[str]) -> int:
    """Run what the work file says, as one rank."""
    work = Work.from_dict(json.loads(Path(argv[0]).read_bytes()))
    if work.p2p:
        _p2p()
        return 0
    rank = Rank(work.backend)
    say(started=rank.rank)
    if work.smoke:
        _smoke(rank, work.smoke)
    else:
        _cells(rank, work)
    rank.close()
    return 0

"""One rank's process of the torch engine: holds its GPU, loads its shards, runs the steps that it is sent.

Commands come as lines of JSON on standard input, answers go as lines of JSON to standard output, and the log, as
vLLM's workers write it, to standard error. It ends with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open

from opsctl.lab.standin import gpus, logs, traces
from opsctl.lab.standin.executor import LoadFaults, Step
from opsctl.lab.standin.faults import Faults, parse
from opsctl.lab.standin.holder import leave_control_group
from opsctl.lab.standin.settings import ProfilerSettings
from opsctl.lab.standin.transformer import Shape, Transformer


class Rank:
    """The process' state between commands."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.rank: int = task["rank"]
        self.world: int = task["world"]
        self.version: str = task["version"]
        self.model = Path(task["model"])
        self.load_seconds: float = task["load_seconds"]
        self.faults: Faults = parse(task["faults"])
        self.speaker = logs.worker(self.rank, os.getpid())
        profiler = task["profiler"]
        self.profiler = ProfilerSettings(**{**profiler, "folder": Path(profiler["folder"])}) if profiler else None
        config = json.loads((self.model / "config.json").read_text())
        self.transformer = Transformer(Shape.read(config, self.world), self.rank, self.world)
        self._profile: torch.autograd.profiler.profile | None = None

    def load(self) -> None:
        """Read this rank's part of every shard, at the pace that was asked for."""
        logs.load_begins(self.speaker, str(self.model))
        shards = sorted(self.model.glob("*.safetensors"))
        if not shards:
            raise FileNotFoundError(f"Cannot find any model weights with `{self.model}`")
        faults = LoadFaults(self.faults, self.speaker)
        took = logs.every_shard(
            len(shards),
            self.load_seconds,
            lambda number: self._read(shards[number - 1]),
            show=self.rank == 0,
            before=faults.before_shard if self.rank == 0 else lambda _: None,
        )
        if self.rank == 0:
            faults.after_shards()
        held = sum(tensor.nbytes for tensor in self.transformer.weights.values())
        logs.load_ends(self.speaker, took, held / 2**20)

    def _read(self, shard: Path) -> None:
        with safe_open(shard, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                whole = opened.get_slice(name)

                def read(axis: int, begin: int, end: int, whole: Any = whole) -> torch.Tensor:
                    part: torch.Tensor = whole[begin:end] if axis == 0 else whole[:, begin:end]
                    return part.clone()

                self.transformer.take(name, read, tuple(whole.get_shape()))

    def step(self, step: Step) -> dict[int, int]:
        """Run one forward pass inside its marker."""
        with torch.profiler.record_function(traces.marker(step, self.version)):
            tokens: dict[int, int] = self.transformer.forward(step)
        return tokens

    def start_profile(self) -> None:
        """Record with torch's own profiler.

        The class below torch.profiler.profile: that one imports torch._inductor (1.5 s) to ask it a question.
        """
        if self.profiler is None:
            return
        self._profile = torch.autograd.profiler.profile(
            use_cpu=True,
            use_kineto=True,
            record_shapes=self.profiler.record_shapes,
            with_stack=self.profiler.with_stack,
        )
        self._profile.__enter__()
        about = {"backend": "gloo", "rank": self.rank, "world_size": self.world, "pg_count": 1}
        torch.autograd._add_metadata_json("distributedInfo", json.dumps(about))  # noqa: SLF001 - torch's own way
        torch.autograd._add_metadata_json("vllm_version", json.dumps(self.version))  # noqa: SLF001

    def stop_profile(self) -> None:
        """Write the trace and the table, then spoil them if a fault wants it.

        As torch does it: plain JSON to the temporary folder, then gzip into the final name, which can be seen half
        written.
        """
        if self._profile is None or self.profiler is None:
            return
        profile, self._profile = self._profile, None
        profile.__exit__(None, None, None)
        self.profiler.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(plain))
            table = traces.summary(json.loads(plain.read_text()))
            path = traces.copy_in(plain, self.profiler, traces.worker_name(self.rank, self.version))
        (self.profiler.folder / traces.summary_name(self.rank, self.version)).write_text(table)
        traces.spoil(path, self.faults, self.rank)


def _answer(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def _decode(command: dict[str, Any]) -> Step:
    return Step(
        prefills=tuple((number, tuple(tokens)) for number, tokens in command["prefills"]),
        decodes=tuple((number, token) for number, token in command["decodes"]),
        finished=tuple(command["finished"]),
    )


def main(task: dict[str, Any]) -> int:
    """Hold the GPU, load, and obey until standard input closes."""
    torch.set_num_threads(1)
    rank = Rank(task)
    stays = "leaves-child" in rank.faults and rank.rank == 0
    if stays or "ignores-sigterm" in rank.faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        held = gpus.hold(rank.rank, f"VLLM::Worker_TP{rank.rank}", gpus.GpuConfig.read())
    except gpus.GpuBusyError as error:
        _answer(error=f"ValueError: Free memory on device is less than desired GPU memory utilization. {error}")
        return 1
    if stays:
        leave_control_group()
    dist.init_process_group("gloo", init_method=f"file://{task['meeting']}", rank=rank.rank, world_size=rank.world)
    rank.load()
    _answer(ready=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "step":
            tokens = rank.step(_decode(command))
            _answer(tokens=list(tokens.items()))
        else:
            getattr(rank, command["do"])()
            _answer(done=command["do"])
    while stays:
        time.sleep(3600)
    del held
    sys.stdout.flush()
    os._exit(0)  # gloo's threads would keep a process whose peer is gone


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))

"""What the scheduler asks of an engine, and what happens at a load when a fault wants it to.

Calls block: the scheduler makes them from one thread, one at a time, as vLLM's engine core does. So a flush that
hangs stops the engine, and /health stays 200.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from opsctl.lab.standin import logs
from opsctl.lab.standin.faults import Faults


@dataclass(frozen=True)
class Step:
    """One forward pass: new requests with all their tokens, running ones with the last token of each."""

    prefills: tuple[tuple[int, tuple[int, ...]], ...] = ()
    decodes: tuple[tuple[int, int], ...] = ()
    finished: tuple[int, ...] = ()
    """Requests whose cache can go."""
    cached: int = 0
    """Prompt tokens that the prefix cache already has."""

    @property
    def context_tokens(self) -> int:
        """Prompt tokens in this step."""
        return sum(len(tokens) for _, tokens in self.prefills)


class EngineDeadError(Exception):
    """The engine cannot go on; the server ends."""


class Executor(Protocol):
    """A tensor-parallel group of workers."""

    def load(self) -> None:
        """Start the workers and load the weights. Ends the process when a fault wants it."""
        ...

    def step(self, step: Step) -> dict[int, int]:
        """Run one forward pass; return the next token of each request in it. Raises EngineDeadError."""
        ...

    def start_profile(self) -> None:
        """Record from now on, in every worker."""
        ...

    def stop_profile(self) -> None:
        """Write the traces. Raises EngineDeadError where a fault wants it."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


@dataclass(frozen=True)
class LoadFaults:
    """Faults of a load, carried out by rank 0's process, whichever that is."""

    faults: Faults
    worker: logs.Speaker
    core: logs.Speaker = field(default_factory=logs.api_server)

    def before_shard(self, number: int) -> None:
        """Block without end, or exit, if this is the shard."""
        if self.faults.value("stuck-at-shard") == number:
            _for_ever()
        if self.faults.value("dies-at-shard") == number:
            self._die("OSError: [Errno 5] Input/output error: reading a safetensors shard")
        if "out-of-memory" in self.faults and number == 1:
            self._die(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has a total capacity of "
                "139.80 GiB of which 1.07 GiB is free.",
            )

    def after_shards(self) -> None:
        """Block without end if the fault comes after the last shard."""
        if "stuck-after-load" in self.faults:
            self.worker.say(
                "shm_broadcast.py:681",
                "No available shared memory broadcast block found in 60 seconds. This typically happens when some "
                "processes are hanging or doing some time-consuming work (e.g. compilation, weight/kv cache "
                "quantization).",
            )
            _for_ever()

    def _die(self, cause: str) -> NoReturn:
        logs.load_failed(self.worker, self.core, cause)
        sys.exit(1)


def _for_ever() -> NoReturn:
    while True:
        time.sleep(3600)

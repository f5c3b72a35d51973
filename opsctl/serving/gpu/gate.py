"""The gate between stop and start: the GPUs are free when no process is left and memory is down, and stays so.

A server that starts beside the remains of another dies half an hour later of memory. So what remains is
named; its cgroup is killed where it is ours, and never otherwise unless that was asked for; a process that
cannot die ends the wait with the reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TypeVar

from opsctl.deadline import Deadline
from opsctl.errors import GpuNotFree
from opsctl.host.guard import GPU_IDLE_MIB
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host, Systemd
from opsctl.quantities import format_duration
from opsctl.results import Evidence
from opsctl.serving.gpu.killing import kill_process
from opsctl.serving.gpu.nvidia_smi import GpuProcess, GpuReading, device_holders, identify, read_gpus, read_memory
from opsctl.serving.load.background import Every
from opsctl.serving.waits import evidence, never, pause

Reading = TypeVar("Reading")

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used")
SAMPLES = 3
"""Samples in a row that must show free GPUs."""
EVERY = 0.05
"""Seconds between two samples (nvidia-smi's own time comes on top)."""
NAME_EVERY = 1.0
"""Seconds between two looks at who holds the GPUs, while their memory is held: that doubles a sample's time."""
STEADY = 64.0
"""MiB by which a GPU's memory may differ between two samples that count as the same."""
GRACE = 5.0
"""Seconds that a process may take to go by itself before it is killed."""
FOREIGN_GRACE = 30.0
"""Seconds that somebody else's process may take to go by itself before the wait gives up."""
DIE_WITHIN = 15.0
"""Seconds that a killed process may take; the driver tears big mappings down slowly."""
FALLING_FOR = 10.0
"""Seconds over which the fall of memory is measured for a hint."""
FALLING = 1.0
"""MiB/s from which memory counts as still falling."""
HANGS = 3
"""Readings in a row without an answer after which nvidia-smi counts as hanging."""


@dataclass(frozen=True)
class GateRecord:
    """How the GPUs became free. ``free`` None: the host shows no GPU that could be asked."""

    free: bool | None
    seconds: float
    samples: int
    memory: Mapping[str, float] = field(default_factory=dict)
    """MiB in use by GPU uuid, at the last sample; a GPU that does not say its memory is not in it."""
    killed: tuple[GpuProcess, ...] = ()
    reason: str = ""
    evidence: tuple[Evidence, ...] = ()


def await_gpus_free(
    host: Host,
    *,
    limit: Deadline,
    ours: Sequence[str] = (),
    kill_foreign: bool = False,
    systemd: Systemd | None = None,
    cancelled: Callable[[], bool] = never,
) -> GateRecord:
    """Wait until every GPU is free: no compute process, and memory at its idle level.

    A GPU that does not say its memory (unified memory, MIG, no permission) is judged by its processes alone: those
    that nvidia-smi lists, and those that have a GPU's device file open. ``ours`` are globs of units and slices;
    ``systemd`` is a fenced one, to kill with: without it nothing is killed.

    Raises GpuNotFree with what holds the GPUs and why it stays; Interrupted.
    """
    gate = _Gate(
        host,
        limit=limit,
        ours=tuple(ours),
        kill_foreign=kill_foreign,
        systemd=systemd,
    )
    while True:
        record = gate.look()
        if record is not None:
            return record
        if limit.expired:
            raise gate.refusal(f"not free within {format_duration(limit.seconds)}")
        pause(EVERY, deadline=limit, cancelled=cancelled, what=f"waiting for the GPUs of {host.name}")


class _Gate:
    """The state of one wait."""

    def __init__(
        self,
        host: Host,
        *,
        limit: Deadline,
        ours: tuple[str, ...],
        kill_foreign: bool,
        systemd: Systemd | None,
    ) -> None:
        self._host, self._limit, self._ours = host, limit, ours
        self._kill_foreign, self._systemd = kill_foreign, systemd
        self._began = time.monotonic()
        self._name_due = Every()
        self._seen_since: dict[int, float] = {}
        self._killed: dict[int, tuple[float, GpuProcess]] = {}
        self._reading = GpuReading()
        self._left: tuple[GpuProcess, ...] = ()
        self._good = self._samples = self._silent = 0
        self._last_memory: dict[str, float] = {}
        self._totals: deque[tuple[float, float]] = deque()

    def look(self) -> GateRecord | None:
        """Take one sample; return the record once the GPUs are free. Raises GpuNotFree where they never will be.

        Samples of memory come often. Who holds the GPUs is asked once a second, and in the last sample, which
        must show no process either.
        """
        last = self._good == SAMPLES - 1
        whole = last or self._name_due.due(NAME_EVERY)
        read = read_gpus if whole else read_memory
        reading = self._through(lambda: read(self._host, deadline=self._limit, fields=FIELDS))
        if self._limit.expired and not reading.known and self._reading.gpus:
            return None  # cut short by the end of the wait: the sample before says more
        self._reading = reading
        self._samples += 1
        if self._reading.absent:
            return self._record(free=None, reason=self._reading.problem)
        if not self._reading.known:
            self._good = 0
            self._silent += 1
            if self._silent >= HANGS:
                raise self.refusal(self._reading.problem)
            return None
        self._silent = 0
        self._note_memory()
        if self._reading.faults:
            raise self.refusal(self._reading.faults)
        if whole:
            self._left = self._through(self._leftovers)
            self._deal_with_leftovers()
        quiet = self._quiet() and not (whole and self._left)
        self._good = self._good + 1 if quiet else 0
        return self._record(free=True) if self._good >= SAMPLES else None

    def _through(self, reading: Callable[[], Reading]) -> Reading:
        return ride_out(self._host, reading, deadline=self._limit)

    def refusal(self, reason: str) -> GpuNotFree:
        """Return the error, with everything that is known of who holds the GPUs."""
        left = self._left
        if self._reading.known and not left and self._held():
            left = self._through(lambda: device_holders(self._host, deadline=Deadline(20, "naming the holders")))
        held = [f"GPU {index}: {used:.0f} MiB" for index, used in self._held()]
        return GpuNotFree(
            f"the GPUs of {self._host.name} are not free: {reason}",
            wanted="no compute process, and memory at its idle level",
            seen="; ".join([*(str(process) for process in left), *held]) or self._reading.problem or "nothing",
            where=f"host {self._host.name}",
            hint=self._advice(left),
        )

    def _advice(self, left: Sequence[GpuProcess]) -> str:
        if self._reading.faults:
            return "the driver asks for a reset of the GPU: nvidia-smi --gpu-reset, or a reboot"
        if any(process.state == "D" for process in left):
            return "a process in state D sits in the driver and cannot be killed: the host needs a reboot"
        if any(not self._is_ours(process) for process in left):
            return "stop it yourself, or allow opsctl to with --kill-foreign"
        if (rate := self._falling()) >= FALLING:
            return f"memory is still falling, {rate:.0f} MiB/s: raise stop.gpu-limit of the service"
        return "see nvidia-smi and dmesg on the host; memory without a process needs a reset of the GPU or a reboot"

    def _leftovers(self) -> tuple[GpuProcess, ...]:
        listed = self._reading.processes
        named = identify(self._host, listed, deadline=self._limit)
        if any(gpu.memory_used is None for gpu in self._reading.gpus):
            seen = {process.pid for process in named}
            holders = device_holders(self._host, deadline=self._limit)
            named = (*named, *(process for process in holders if process.pid not in seen))
        # A pid that /proc does not show lives in another pid namespace: it still holds the GPU.
        shown = {process.pid for process in named}
        return (*named, *(process for process in listed if process.pid not in shown and self._holds(process)))

    @staticmethod
    def _holds(process: GpuProcess) -> bool:
        return process.memory is None or process.memory > 0

    def _held(self) -> list[tuple[int, float]]:
        """Return (index, MiB) of the GPUs whose memory is above idle."""
        amounts = ((gpu.index, gpu.memory_used or 0.0) for gpu in self._reading.gpus)
        return [(index, used) for index, used in amounts if used > GPU_IDLE_MIB]

    def _note_memory(self) -> None:
        now = time.monotonic()
        self._totals.append((now, sum(gpu.memory_used or 0.0 for gpu in self._reading.gpus)))
        while now - self._totals[0][0] > FALLING_FOR:
            self._totals.popleft()

    def _falling(self) -> float:
        """Return by how many MiB/s memory fell over the last seconds, never below 0."""
        if len(self._totals) < 2:
            return 0.0
        (then, before), (now, after) = self._totals[0], self._totals[-1]
        return max(0.0, (before - after) / max(0.001, now - then))

    def _quiet(self) -> bool:
        """Return whether this sample shows memory at its idle level, no different from the last one."""
        memory = {gpu.uuid: gpu.memory_used or 0.0 for gpu in self._reading.gpus}
        before, self._last_memory = self._last_memory, memory
        steady = not before or all(abs(used - before.get(uuid, used)) < STEADY for uuid, used in memory.items())
        return steady and not self._held()

    def _is_ours(self, process: GpuProcess) -> bool:
        """Return whether a process belongs to a unit of ours, or to anything in a slice of ours."""
        return any(fnmatchcase(part, pattern) for part in process.cgroup.split("/") for pattern in self._ours)

    def _deal_with_leftovers(self) -> None:
        """Kill what is ours, and what may be killed, once it had its grace; give up on what cannot die."""
        now = time.monotonic()
        for process in self._left:
            since = self._seen_since.setdefault(process.pid, now)
            if process.pid in self._killed:
                if now - self._killed[process.pid][0] > DIE_WITHIN:
                    raise self.refusal(f"pid {process.pid} was killed and does not die")
            elif now - since > GRACE:
                self._kill(process, now)

    def _kill(self, process: GpuProcess, now: float) -> None:
        allowed = self._is_ours(process) or (self._kill_foreign and process.pid > 1 and bool(process.cgroup))
        if not allowed:
            if now - self._seen_since[process.pid] > FOREIGN_GRACE:
                raise self.refusal(f"pid {process.pid} is not opsctl's to kill")
            return
        if self._systemd is None:
            return
        kill_process(self._systemd, process, whole_cgroup=self._is_ours(process), deadline=self._limit)
        self._killed[process.pid] = (now, process)

    def _record(self, *, free: bool | None, reason: str = "") -> GateRecord:
        memory = {gpu.uuid: gpu.memory_used for gpu in self._reading.gpus if gpu.memory_used is not None}
        amounts = (f"{gpu.memory_used:.0f} MiB" if gpu.memory_used is not None else "memory not given"
                   for gpu in self._reading.gpus)  # fmt: skip
        observed = reason or f"no process, {', '.join(amounts)}, {self._good} times"
        killed = tuple(process for _, process in self._killed.values())
        proofs = (
            evidence("nvidia-smi: processes and memory", observed),
            *(evidence("killed, since it held a GPU", str(process)) for process in killed),
        )
        return GateRecord(free, time.monotonic() - self._began, self._samples, memory, killed, reason, proofs)

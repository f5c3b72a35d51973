"""GPUs that are not there: one lock each, held by a worker, seen by ``nvidia_smi.py``.

What a real GPU enforces by its memory the lock enforces by flock: a second server that wants a GPU fails, and the
breach is recorded in a file. Memory can stay for a while after its process is gone, as a driver's does. Standard
library only: the stand-in for nvidia-smi starts with every probe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path

CONFIG = Path("/etc/opsctl-lab/gpus.json")
_BEAT = 0.1


@dataclass(frozen=True)
class GpuConfig:
    """What the host's GPUs are like. ``/etc/opsctl-lab/gpus.json`` holds it; every probe reads it anew.

    ``release_seconds`` is how long memory stays after its process is gone. ``list_processes`` false: the process
    list is empty while memory is held, as inside containers. ``hang``: every call hangs. ``broken``: the driver
    does not answer. ``stuck_mib``: memory that no process holds and that is not freed.
    """

    count: int = 2
    name: str = "NVIDIA H200"
    memory_mib: int = 143771
    used_mib: int = 129394
    release_seconds: float = 0.0
    list_processes: bool = True
    hang: bool = False
    broken: bool = False
    stuck_mib: int = 0

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls) -> GpuConfig:
        """Return the host's configuration (``STANDIN_GPU_CONFIG`` names another file), defaults where there is none."""
        path = Path(os.environ.get("STANDIN_GPU_CONFIG", CONFIG))
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


@dataclass(frozen=True)
class Occupant:
    """Who holds a GPU. ``pid`` 0: no process, the memory is only not free yet."""

    pid: int
    name: str
    used_mib: int


class GpuBusyError(Exception):
    """Another process holds the GPU, or its memory is not free yet."""


def folder() -> Path:
    """Return where the locks lie: gone with a boot, as memory is."""
    return Path(os.environ.get("STANDIN_GPU_DIR", "/run/opsctl-lab/gpus"))


def breaches_file() -> Path:
    """Return the record of breaches: on disk, so that no reboot hides one."""
    return Path(os.environ.get("STANDIN_STATE", "/var/lib/opsctl-lab")) / "gpu-breaches.jsonl"


class Held:
    """A GPU that this process holds until it ends."""

    def __init__(self, lock: TextIOWrapper) -> None:
        self._lock = lock
        # The file's own time is the last moment at which the GPU was seen held: right after kill -9 too.
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while True:
            os.utime(self._lock.fileno())
            time.sleep(_BEAT)


def hold(index: int, name: str, config: GpuConfig) -> Held:
    """Take a GPU for good. Raises GpuBusyError, and records the breach, when it is not free."""
    folder().mkdir(parents=True, exist_ok=True)
    lock = (folder() / f"gpu{index}").open("a+")
    with contextlib.suppress(PermissionError):  # another user's file, which then is open to all already
        os.fchmod(lock.fileno(), 0o666)
    for _ in range(20):  # a probe holds the lock for microseconds
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
    else:
        _record_breach(index, name, _occupant_written(lock))
    if _still_full(lock, config):
        _record_breach(index, name, Occupant(0, "memory of a process that has ended", config.used_mib))
    lock.seek(0)
    lock.truncate()
    json.dump(asdict(Occupant(os.getpid(), name, config.used_mib)), lock)
    lock.flush()
    return Held(lock)


def look(index: int, config: GpuConfig) -> Occupant | None:
    """Return who or what holds a GPU's memory, None where it is free."""
    path = folder() / f"gpu{index}"
    if not path.exists():
        return None
    with path.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _occupant_written(lock)
        return Occupant(0, "", config.used_mib) if _still_full(lock, config) else None


def _still_full(lock: TextIOWrapper, config: GpuConfig) -> bool:
    about = os.fstat(lock.fileno())
    return about.st_size > 0 and time.time() < about.st_mtime + config.release_seconds


def _occupant_written(lock: TextIOWrapper) -> Occupant:
    lock.seek(0)
    try:
        return Occupant(**json.loads(lock.read()))
    except ValueError:  # it took the lock this very moment
        return Occupant(0, "", 0)


def _record_breach(index: int, name: str, occupant: Occupant) -> None:
    breach = {"time": time.time(), "gpu": index, "pid": os.getpid(), "wanted_by": name, "held_by": asdict(occupant)}
    breaches_file().parent.mkdir(parents=True, exist_ok=True)
    with breaches_file().open("a") as record:
        record.write(json.dumps(breach) + "\n")
    raise GpuBusyError(f"GPU {index} is held by {occupant.name or 'another process'} (pid {occupant.pid})")

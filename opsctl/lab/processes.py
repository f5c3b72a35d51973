"""Processes and control groups of lab hosts, seen from the machine that the lab runs on."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from opsctl.deadline import Deadline

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Process:
    """A process that is named so well that a recycled pid is not taken for it."""

    pid: int
    started: int
    """Start time in clock ticks since boot, as /proc/PID/stat has it."""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this pid now. Raises ProcessLookupError."""
        return cls(pid, _start_time(pid))

    @property
    def alive(self) -> bool:
        """Whether it still runs (a zombie does not)."""
        try:
            return _start_time(self.pid) == self.started
        except ProcessLookupError:
            return False

    def kill(self) -> None:
        """Send SIGKILL, unless it is gone."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)


def _start_time(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    fields = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(fields[19])


def is_init(pid: int) -> bool:
    """Whether a process is PID 1 of the pid namespace that it runs in. Raises ProcessLookupError."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    numbers = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return len(numbers) > 1 and numbers[-1] == "1"


def members(top: Path) -> list[int]:
    """Return the pids in a control group and those below it."""
    found: list[int] = []
    for listing in top.rglob("cgroup.procs"):
        try:
            found += [int(pid) for pid in listing.read_text().split()]
        except OSError:  # the group went away meanwhile
            continue
    return found


def group(index: int, number: int | None = None) -> Path:
    """Return the control group (version 2) of a host, or of a whole lab.

    On a machine that keeps version 1 beside it, version 2 is mounted one folder down.
    """
    top = _CGROUP if (_CGROUP / "cgroup.controllers").exists() else _CGROUP / "unified"
    lab = top / "opsctl-lab" / str(index)
    return lab if number is None else lab / str(number)


def make_group(index: int, number: int) -> Path:
    """Make a host's control group."""
    made = group(index, number)
    made.mkdir(parents=True, exist_ok=True)
    return made


def end_group(index: int, number: int | None, deadline: Deadline) -> None:
    """Kill whatever is left in a host's (or lab's) control group and remove it. Raises DeadlineExceeded."""
    top = group(index, number)
    while top.exists():
        survivors = _kill_below(top)
        if not survivors:
            _remove_tree(top)
        if top.exists():
            deadline.check(
                seen=f"processes {survivors} in {top}",
                hint="they sit in the kernel (state D?): ps -o pid,stat,wchan:30,cmd -p PID",
            )
            time.sleep(0.01)


def _kill_below(top: Path) -> list[int]:
    found = members(top)
    for pid in found:
        if pid > 0:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    return found


def _remove_tree(top: Path) -> None:
    below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
    for folder in [*below, top]:
        try:
            folder.rmdir()
        except OSError:  # not empty yet: the caller looks again
            return

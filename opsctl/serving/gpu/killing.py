"""Killing what holds a GPU, through the fenced bus alone: a controller that lost its lease kills nothing."""

from __future__ import annotations

import signal
import uuid
from contextlib import suppress

from opsctl.deadline import Deadline
from opsctl.errors import BusError, JobFailed, UnitNotFound
from opsctl.host.protocol import Systemd, TransientUnit
from opsctl.serving.gpu.nvidia_smi import GpuProcess
from opsctl.serving.waits import CALL_LIMIT

_KILL_CGROUP = """
cgroup=/sys/fs/cgroup$1
if [ -w "$cgroup/cgroup.kill" ]; then echo 1 >"$cgroup/cgroup.kill"; fi
if [ -r "$cgroup/cgroup.procs" ]; then xargs -r kill -KILL <"$cgroup/cgroup.procs"; fi
exit 0
"""


def kill_process(systemd: Systemd, process: GpuProcess, *, whole_cgroup: bool, deadline: Deadline) -> None:
    """Kill a process, or its whole unit. A unit that has ended leaves a cgroup that systemd no longer kills in:
    then a transient unit does, since that goes through the fence as well.
    """
    limit = deadline.within(CALL_LIMIT, f"killing pid {process.pid}")
    argv: tuple[str, ...] = ("/bin/kill", "-KILL", str(process.pid))
    if whole_cgroup:
        with suppress(BusError, UnitNotFound):
            systemd.kill(process.unit, signal.SIGKILL, deadline=limit)
        argv = ("/bin/sh", "-c", _KILL_CGROUP, "kill", process.cgroup)
    unit = TransientUnit(
        name=f"opsctl-kill-{process.pid}-{uuid.uuid4().hex[:8]}.service",
        argv=argv,
        description=f"opsctl: kill pid {process.pid}, which holds a GPU",
        runtime_max=10.0,
    )
    # The process may go by itself in between: whether it went is what the next sample shows.
    with suppress(JobFailed):
        systemd.start_transient(unit, deadline=limit)

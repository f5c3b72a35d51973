"""A unit's state, in words and in seconds."""

from __future__ import annotations

from opsctl.deadline import Deadline
from opsctl.errors import NotReady, UnitNotFound
from opsctl.host.protocol import Host, UnitStatus
from opsctl.serving.waits import CALL_LIMIT

EXIT_NAMES = {
    200: "the working directory cannot be entered (CHDIR)",
    202: "file descriptors could not be set up (FDS)",
    203: "the program of ExecStart could not be executed (EXEC)",
    206: "the resource limits could not be set (LIMITS)",
    209: "standard output could not be opened (STDOUT)",
    216: "the group does not exist (GROUP)",
    217: "the user does not exist (USER)",
    218: "the capabilities could not be set (CAPABILITIES)",
    219: "the cgroup could not be joined (CGROUP)",
    226: "the mount namespace could not be made (NAMESPACE): see ReadWritePaths=, BindPaths=, ProtectHome=",
}
"""What systemd's own exit statuses mean (systemd.exec(5), "Process Exit Codes")."""

_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "busybox"})
_NO_SERVERS = _SHELLS | {"sleep", "tail", "tee", "cat", "timeout", "env", "tini", "dumb-init", "sudo"}
_CONTAINERS = ("docker", "podman", "nerdctl", "lxc", "kube")
_WRAPPER_AGE = 60.0
"""Seconds after which a wrapper script that runs alone has lost its server: before, it may not have started it yet."""


def describe_unit(status: UnitStatus) -> str:
    """Return a unit's state in words: ``active (running), pid 412, restarts 0``."""
    text = f"{status.active_state} ({status.sub_state}), pid {status.main_pid}, restarts {status.n_restarts}"
    return text if status.result in {"", "success"} else f"{text}, result {status.result}"


def active_status(host: Host, unit: str, *, deadline: Deadline) -> UnitStatus:
    """Return the status of a unit that must be active. Raises UnitNotFound or NotReady."""
    status = host.systemd().status(unit, deadline=deadline.within(CALL_LIMIT, f"reading {unit}"))
    where = f"host {host.name}"
    if status.load_state == "not-found":
        raise UnitNotFound(f"{host.name} has no unit {unit}", where=where, hint="see `systemctl list-unit-files`")
    if not status.active:
        raise NotReady(f"{unit} is not active", seen=describe_unit(status), where=where, hint=f"journalctl -u {unit}")
    return status


def active_seconds(host: Host, status: UnitStatus, *, deadline: Deadline) -> float:
    """Return for how long the unit has been active, by the host's own clock; 0 where that cannot be told."""
    entered = status.properties.get("ActiveEnterTimestampMonotonic")
    if not isinstance(entered, int) or entered <= 0:
        return 0.0
    uptime = host.read_file("/proc/uptime", deadline=deadline.within(CALL_LIMIT, "the host's uptime"), limit=128)
    return max(0.0, float(uptime.split()[0]) - entered / 1e6)


def server_gone(host: Host, status: UnitStatus, *, deadline: Deadline) -> bool:
    """Return whether an active unit has no process left that could serve: its server died, its wrapper did not notice.

    Only where nothing listens at the service's url. A unit that starts a container is not judged: its server runs
    in another control group.
    """
    words = [word for line in status.exec_start for word in line]
    if not status.active or any(name in word for word in words for name in _CONTAINERS):
        return False
    programs = [
        command.split()[0].rpartition("/")[2].lstrip("-")
        for _, command in host.systemd().processes(status.name, deadline=deadline)
        if command.split()
    ]
    if not programs:
        return status.sub_state == "exited"
    alone = all(program in _NO_SERVERS for program in programs)
    return alone and active_seconds(host, status, deadline=deadline) > _WRAPPER_AGE


def last_started(status: UnitStatus) -> int:
    """Return when a unit last left "inactive", in microseconds of the host's monotonic clock; 0 where it never did."""
    value = status.properties.get("InactiveExitTimestampMonotonic")
    return value if isinstance(value, int) else 0


def came_up(stopped: UnitStatus, now: UnitStatus) -> str | None:
    """Return what shows that a unit was started after it was seen stopped, or None.

    A start that was over between two looks shows too: each start has an invocation of its own.
    """
    if not now.stopped:
        return f"{now.name} came up by itself: {describe_unit(now)}"
    if now.invocation_id and now.invocation_id != stopped.invocation_id:
        return f"{now.name} was started and stopped again meanwhile: {describe_unit(now)}"
    return None

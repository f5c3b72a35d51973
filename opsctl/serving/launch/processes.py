"""The engine's own processes: found in the unit's cgroup by what they run, never by MainPID."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES, Engine
from opsctl.host.protocol import Host
from opsctl.serving.launch.recognise import engine_of
from opsctl.serving.waits import CALL_LIMIT

_READ = """
for pid; do
  parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null) || continue
  line=$(base64 -w 0 "/proc/$pid/cmdline" 2>/dev/null) || continue
  environment=$(base64 -w 0 "/proc/$pid/environ" 2>/dev/null) || environment=-
  printf '%s %s %s %s\\n' "$pid" "${parent:-0}" "${line:-=}" "${environment:-=}"
done
exit 0"""
_TITLES = tuple(engine.process_title for engine in ENGINES.values() if engine.process_title)


@dataclass(frozen=True)
class Process:
    """One process as /proc shows it. ``environ`` None: it may not be read."""

    pid: int
    parent: int
    cmdline: tuple[str, ...]
    environ: Mapping[str, str] | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The engine's argv from its program on: without the interpreter that runs a console script."""
        runs_script = len(self.cmdline) > 1 and engine_of(self.cmdline[1:]) is not None
        return self.cmdline[1:] if runs_script else self.cmdline

    @property
    def engine(self) -> Engine | None:
        """Which engine it is, or None."""
        return engine_of(self.argv)

    @property
    def renamed(self) -> bool:
        """Whether it is an engine's that put a title in place of its command line."""
        return bool(self.cmdline) and self.cmdline[0].lower().startswith(_TITLES)


def engine_processes(
    host: Host, unit: str, *, container: tuple[str, str] | None = None, deadline: Deadline
) -> tuple[Process, ...]:
    """Return the engine's processes of a unit, without those that one of them started. Raises HostError.

    A fork of the server has its command line too: only the first of a family is the one that was started. A
    ``container`` (client, name) may have a cgroup of its own: it is asked for by name.
    """
    found = engines_among(unit_processes(host, unit, deadline=deadline))
    if found or container is None:
        return found
    return engines_among(container_processes(host, *container, deadline=deadline))


def unit_processes(host: Host, unit: str, *, deadline: Deadline) -> tuple[Process, ...]:
    """Return every process in a unit's cgroup. Raises HostError."""
    limit = deadline.within(CALL_LIMIT, f"the processes of {unit}")
    pids = [pid for pid, _ in host.systemd().processes(unit, deadline=limit)]
    return read_processes(host, pids, deadline=limit)


_OF_CONTAINER = """
pid=$("$1" inspect --format '{{.State.Pid}}' "$2") && [ "${pid:-0}" -gt 0 ] || exit 0
group=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
cat "/sys/fs/cgroup$group/cgroup.procs" 2>/dev/null || echo "$pid"
"""


def container_processes(host: Host, client: str, name: str, *, deadline: Deadline) -> tuple[Process, ...]:
    """Return every process of a running container; none where it does not run."""
    limit = deadline.within(CALL_LIMIT, f"the processes of container {name}")
    said = host.run(["sh", "-c", _OF_CONTAINER, "sh", client, name], deadline=limit, check=False)
    pids = [int(word) for word in said.text.split() if word.isdigit()]
    return read_processes(host, pids, deadline=limit)


def engines_among(processes: Sequence[Process]) -> tuple[Process, ...]:
    """Return the engines that no other engine among these started."""
    engines = {process.pid: process for process in processes if process.engine is not None}
    parents = {process.pid: process.parent for process in processes}

    def started_by_another(pid: int) -> bool:
        seen = {pid}
        while (pid := parents.get(pid, 0)) and pid not in seen:
            if pid in engines:
                return True
            seen.add(pid)
        return False

    return tuple(process for pid, process in sorted(engines.items()) if not started_by_another(pid))


def read_processes(host: Host, pids: Sequence[int], *, deadline: Deadline) -> tuple[Process, ...]:
    """Read command lines and environments. A process that ended meanwhile is left out."""
    if not pids:
        return ()
    said = host.run(["sh", "-c", _READ, "sh", *map(str, pids)], deadline=deadline)
    found = []
    for line in said.text.splitlines():
        pid, parent, cmdline, environ = line.split()
        entries = None if environ == "-" else _decoded(environ)
        variables = None if entries is None else dict(entry.split("=", 1) for entry in entries if "=" in entry)
        found.append(Process(int(pid), int(parent), _decoded(cmdline), variables))
    return tuple(found)


def _decoded(text: str) -> tuple[str, ...]:
    if text == "=":
        return ()
    data = base64.b64decode(text).decode(errors="surrogateescape")
    return tuple(data.rstrip("\0").split("\0")) if data else ()

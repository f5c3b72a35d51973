"""Reading what the doctor judges. Every reading is bounded; none touches anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.errors import BusError, CommandFailed, DeadlineExceeded
from opsctl.host.protocol import Host, Systemd
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.doctor.checks import Check, ok, stop, warning
from opsctl.serving.doctor.gpu import parse_topology
from opsctl.serving.doctor.place import ModelFiles, Space, parse_df
from opsctl.serving.doctor.reloads import DeviceRules, parse_rules
from opsctl.serving.doctor.unit import UnitFacts
from opsctl.serving.gpu.nvidia_smi import GpuProcess, GpuReading, device_holders, identify, read_gpus
from opsctl.serving.launch.line import Launch, NotSeen
from opsctl.serving.launch.processes import Process, container_processes, engines_among, unit_processes
from opsctl.serving.launch.recognise import engine_of
from opsctl.serving.launch.unit_line import launch_of
from opsctl.serving.listening import PortHolder, port_holder
from opsctl.serving.observation import observe

LIMIT = 15.0
"""Seconds for one reading."""


@dataclass(frozen=True)
class GpusSeen:
    """A reading, and its processes with their units."""

    reading: GpuReading
    processes: tuple[GpuProcess, ...]
    all_seen: bool = True
    """False: a GPU does not say its memory, and who has it open is not shown to this login either."""


def gpus(host: Host, deadline: Deadline) -> GpusSeen:
    """Read every GPU and who holds it. A process that /proc does not show keeps its bare pid.

    Where a GPU does not say its memory, those that have its device open count, as they do at the gate.
    """
    reading = read_gpus(host, deadline=deadline)
    named = identify(host, reading.processes, deadline=deadline)
    all_seen = True
    if any(gpu.memory_used is None for gpu in reading.gpus):
        listed = {process.pid for process in named}
        named = (*named, *(one for one in device_holders(host, deadline=deadline) if one.pid not in listed))
        all_seen = (_text(host, ["id", "-u"], deadline) or "").strip() == "0"
    shown = {process.pid for process in named}
    processes = (*named, *(one for one in reading.processes if one.pid not in shown))
    return GpusSeen(reading, processes, all_seen)


def container_scopes(
    host: Host, production: Sequence[ResolvedService], systemd: Systemd, deadline: Deadline
) -> list[str]:
    """Return globs of the scopes in which production's containers run: docker-ID.scope, libpod-ID.scope."""
    found = []
    for service in production:
        status = systemd.status(service.unit, deadline=deadline.within(LIMIT, f"reading {service.unit}"))
        launch = launch_of(host, status, deadline=deadline.within(LIMIT, f"the launch line of {service.unit}"))
        container = launch.container if isinstance(launch, Launch) else None
        if container is not None:
            asked = [container.client, "inspect", "--format", "{{.Id}}", container.called]
            identity = _text(host, asked, deadline) or ""
            found += [f"*-{identity}.scope"] if re.fullmatch(r"[0-9a-f]{12,64}", identity) else []
    return found


def device_rules(host: Host, scopes: Sequence[str], deadline: Deadline) -> list[DeviceRules]:
    """Read what systemd allows the processes of containers' scopes."""
    if not scopes:
        return []
    script = """
systemctl show -p Id -p DevicePolicy -p DeviceAllow -- "$@" && echo && echo "Nodes=$(ls /dev/char | tr '\\n' ' ')"
"""
    return parse_rules(_text(host, ["sh", "-c", script, "sh", *scopes], deadline) or "")


def topology(host: Host, deadline: Deadline) -> dict[tuple[int, int], str]:
    """Read how the GPUs are joined; empty where nvidia-smi does not say."""
    return parse_topology(_text(host, ["nvidia-smi", "topo", "-m"], deadline) or "")


def _text(host: Host, argv: Sequence[str], deadline: Deadline, *, statuses: tuple[int, ...] = (0,)) -> str | None:
    """Return what a program printed, or None when it is not there or ended badly."""
    said = host.run(argv, deadline=deadline.within(LIMIT, argv[0]), check=False)
    return said.text if said.exit_status in statuses else None


def spaces(host: Host, paths: Sequence[str], deadline: Deadline) -> list[Space]:
    """Read the free space of each path; for one that does not exist yet, of its nearest parent."""
    script = """
for path in "$@"; do
  at=$path; while [ ! -e "$at" ] && [ "$at" != / ]; do at=$(dirname "$at"); done
  printf '%s\\t%s\\n' "$path" "$(df -P -B1 "$at" | tail -n 1)"
done"""
    return parse_df(_text(host, ["sh", "-c", script, "df", *paths], deadline) or "")


_TROUBLE = "NVRM|I/O error|EXT4-fs error|XFS .*error|nvme.*timeout"
"""What the kernel says of a GPU or a disk that is in trouble, as grep -E -i takes it."""


def kernel_log(host: Host, deadline: Deadline, pattern: str = _TROUBLE) -> str | None:
    """Read the kernel's lines since boot that fit a pattern; "" where there are none, None if not readable."""
    script = """
lines=$(journalctl -k -b -q --no-pager -o short-iso 2>/dev/null) || lines=$(dmesg 2>/dev/null) || exit 9
[ -n "$lines" ] || lines=$(dmesg 2>/dev/null) || exit 9
printf '%s\\n' "$lines" | grep -E -i -e "$1" | tail -n 200
exit 0"""
    return _text(host, ["sh", "-c", script, "kernel", pattern], deadline)


def tools(host: Host, deadline: Deadline) -> tuple[str, ...]:
    """Return which of the tools that the guard and the stages use are there."""
    script = 'for one in "$@"; do command -v "$one" >/dev/null 2>&1 && echo "$one"; done; exit 0'
    wanted = ("curl", "flock", "nvidia-smi", "fincore", "nsys")
    return tuple((_text(host, ["sh", "-c", script, "tools", *wanted], deadline) or "").split())


def python(host: Host, deadline: Deadline) -> tuple[int, str]:
    """Return how the inventory's Python ends (124: not in time), and what it says: where it starts, its version.

    It runs as the stages do: with the same rights, and without the login's environment.
    """
    question = "import json, ssl, sys, zipimport, zlib; print('opsctl-python', *sys.version_info[:2])"
    argv = (
        "env",
        "-i",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
        host.entry.python,
        "-B",
        "-c",
        question,
    )
    try:
        done = host.run(argv, deadline=deadline.within(LIMIT, host.entry.python), check=False)
    except DeadlineExceeded:
        return 124, f"no answer within {LIMIT:g} s"
    return done.exit_status, done.text if done.exit_status == 0 else done.stderr.decode(errors="replace")


def has_program(host: Host, program: str, deadline: Deadline) -> bool:
    """Return whether a program can be run."""
    return _text(host, ["sh", "-c", 'command -v "$1"', "sh", program], deadline) is not None


def unit(host: Host, service: ResolvedService, systemd: Systemd, deadline: Deadline) -> UnitFacts:
    """Read a production unit, its process, and the versions on disk and in memory."""
    status = systemd.status(service.unit, deadline=deadline.within(LIMIT, f"reading {service.unit}"))
    if status.load_state != "loaded":
        return UnitFacts(status)
    running = observe(host, service, deadline=deadline).version if status.active else None
    launch = launch_of(host, status, deadline=deadline.within(LIMIT, f"the launch line of {service.unit}"))
    processes = _processes(host, service.unit, launch, deadline) if status.active else None
    return UnitFacts(
        status,
        launch=launch,
        processes=processes,
        installed_version=_installed_version(host, service, launch, processes or (), deadline),
        running_version=running,
    )


def _processes(host: Host, name: str, launch: Launch | NotSeen, deadline: Deadline) -> tuple[Process, ...] | None:
    limit = deadline.within(LIMIT, f"the processes of {name}")
    container = launch.container if isinstance(launch, Launch) else None
    try:
        found = unit_processes(host, name, deadline=limit)
        if container is not None and not engines_among(found):
            found += container_processes(host, container.client, container.called, deadline=limit)
    except (CommandFailed, BusError):
        return None
    return found


def _installed_version(
    host: Host,
    service: ResolvedService,
    launch: Launch | NotSeen,
    processes: Sequence[Process],
    deadline: Deadline,
) -> str | None:
    """Return the engine's version by its package's own folder: importing it would take ten seconds."""
    package = ENGINES[service.engine].package
    if package is None:
        return None
    argv = launch.argv if isinstance(launch, Launch) else ()
    engines = engines_among(processes)
    # What the process imports first: its PYTHONPATH (a wrapper script may have set it), then its program's environment.
    paths = [path for process in engines for path in (process.environ or {}).get("PYTHONPATH", "").split(":")]
    lines = [argv, *(process.cmdline for process in engines)]
    programs = [word for line in lines for word in line[:2]]
    places = [word for word in dict.fromkeys([*paths, "", *programs]) if word.startswith("/") or not word]
    script = """
package=$1 folders=1; shift
for place; do
  [ -n "$place" ] || { folders=; continue; }
  if [ -n "$folders" ]; then set -- "$place"; else set -- "${place%/*}"/../lib/python3*/site-packages; fi
  for folder; do
    for one in "$folder/$package"-*.dist-info; do [ -d "$one" ] && echo "${one##*/}"; done
  done
  echo
done
exit 0"""
    listed = _text(host, ["sh", "-c", script, "sh", package, *places], deadline) or ""
    found = [re.findall(rf"^{package}-(\S+)\.dist-info$", place, re.MULTILINE) for place in listed.split("\n\n")]
    first = next((versions for versions in found if versions), [])
    return first[0] if len(first) == 1 else None


def holder(host: Host, service: ResolvedService, group: str, deadline: Deadline) -> PortHolder:
    """Return who holds the service's port."""
    return port_holder(host, service, group, deadline=deadline.within(LIMIT, f"who listens at {service.url}"))


def model(host: Host, argv: Sequence[str], deadline: Deadline) -> tuple[ModelFiles | None, int | None]:
    """Return the model's files by the engine's command line, and the memory that is available in bytes."""
    path = model_path(argv)
    if path is None:
        return None, None
    if _option(argv, "--load-format") == "dummy":
        return ModelFiles(path, None, made_up=True), None
    script = """
grep MemAvailable /proc/meminfo | tr -dc '0-9'; echo
[ -e "$1" ] || exit 0
[ -r "$1" ] || { echo unreadable; exit 0; }
if [ -d "$1" ]; then
  [ -x "$1" ] || { echo unreadable; exit 0; }
  set -- "$1"/*.safetensors "$1"/*.bin "$1"/*.gguf
else # llama.cpp is given a file: the model, or the first of its parts
  case $1 in *-00001-of-*.gguf) set -- "${1%-00001-of-*}"-[0-9]*-of-*.gguf ;; esac
fi
for file; do
  [ -e "$file" ] || continue
  [ -r "$file" ] || { echo unreadable; exit 0; }
  stat -L -c 'size %s' "$file"
done
command -v fincore >/dev/null 2>&1 || exit 0
for file; do [ -e "$file" ] && fincore -b -n -r -o RES "$file" | sed 's/^ */cached /'; done
exit 0"""
    text = _text(host, ["sh", "-c", script, "model", path], deadline) or ""
    available, _, rest = text.partition("\n")
    sizes = [int(number) for number in re.findall(r"^size (\d+)$", rest, re.MULTILINE)]
    cached = [int(number) for number in re.findall(r"^cached (\d+)$", rest, re.MULTILINE)]
    readable = False if "unreadable" in rest else True if sizes else None
    files = ModelFiles(path, readable, sum(sizes), sum(cached) if cached else None)
    return files, int(available) * 1024 if available.isdigit() else None


def _option(argv: Sequence[str], name: str) -> str | None:
    """Return an option's value, given as ``--name value`` or ``--name=value``."""
    for place, word in enumerate(argv):
        if word == name:
            return argv[place + 1] if place + 1 < len(argv) else None
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def model_path(argv: Sequence[str]) -> str | None:
    """Return the model's folder by a server's command line, when it is a path."""
    engine = engine_of(argv)
    launch = engine.launch(argv) if engine else None
    return launch.path if launch else None


def key_file(host: Host, service: ResolvedService, deadline: Deadline) -> list[Check]:
    """Look at the API key's file without reading it."""
    if service.api_key_file is None:
        return []
    name = f"key file of {service.name}"
    mode = _text(host, ["stat", "-L", "-c", "%a %s", "--", service.api_key_file], deadline)
    if mode is None:
        return [stop(name, f"{service.api_key_file} is not there", "api-key-file is a path on the host")]
    bits, _, size = mode.partition(" ")
    if size == "0":
        return [stop(name, f"{service.api_key_file} is empty")]
    if int(bits, 8) & 0o004:
        return [warning(name, f"{service.api_key_file} can be read by everybody", f"chmod 600 {service.api_key_file}")]
    return [ok(name, service.api_key_file)]

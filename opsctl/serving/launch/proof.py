"""Proof that a variant's differences are in the process that runs, and that production runs again as it ran.

What was written to a unit proves nothing: a script may drop its arguments, a shell may have its own environment.
The comparisons are pure; ``prove_variant`` and ``what_runs`` read a host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.engines.argv import flag_name, flag_value
from opsctl.errors import NotProven
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.launch.line import Launch
from opsctl.serving.launch.line_edit import Intended
from opsctl.serving.launch.processes import Process, engine_processes
from opsctl.serving.launch.unit_line import launch_of
from opsctl.serving.launch.variant_unit import is_secret
from opsctl.serving.probing import ServerProbe, request_limit
from opsctl.serving.waits import evidence

_INFO = "/get_server_info"
_DECISIVE = (
    *("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "HF_", "TRITON_", "FLASHINFER_", "OMP_"),
    *(prefix for engine in ENGINES.values() for prefix in engine.variables),
)
"""How variables begin that decide how an engine runs; all others differ from start to start, or say nothing of it."""


def missing(intended: Intended, process: Process) -> list[str]:
    """Return which of a variant's differences the process does not show, each as intended beside seen. Pure."""
    engine, argv = intended.engine, process.argv
    names = {
        name for line in (intended.before, intended.after) for word in line if (name := flag_name(word, engine.flag))
    }
    wrong = []
    for name in sorted(names):
        before, after = flag_value(intended.before, name, engine.flag), flag_value(intended.after, name, engine.flag)
        seen = flag_value(argv, name, engine.flag)
        if before != after and not _same(after, seen):
            wrong.append(f"{_flag(name, after)} intended, {_flag(name, seen)} seen")
    flagless = [word for word in intended.after if word not in intended.before and not flag_name(word, engine.flag)]
    wrong += [f"the argument {word} intended, not seen" for word in flagless if not _among(word, argv)]
    return wrong + _environment(intended.env or {}, process)


def _among(word: str, argv: Sequence[str]) -> bool:
    return any(_same(word, seen) or word == seen.partition("=")[2] for seen in argv)


def _environment(env: Mapping[str, str], process: Process) -> list[str]:
    if not env:
        return []
    if process.environ is None:
        return [f"the environment {', '.join(env)} intended, that of pid {process.pid} cannot be read"]
    wrong = []
    for name, value in env.items():
        seen = process.environ.get(name)
        if seen != value:
            shown = "another value" if seen is not None and is_secret(name) else seen
            intended = "a value" if is_secret(name) else value
            wrong.append(f"{name}={intended} intended, {'it is not set' if seen is None else shown} seen")
    return wrong


def _same(wanted: str | None, seen: str | None) -> bool:
    """Compare two values; JSON by what it says, since a shell or a launcher may space it otherwise."""
    if wanted == seen or wanted is None or seen is None:
        return wanted == seen
    try:
        return bool(json.loads(wanted) == json.loads(seen))
    except json.JSONDecodeError:
        return False


def _flag(name: str, value: str | None) -> str:
    return f"no --{name}" if value is None else f"--{name} {value}".rstrip()


def disagreeing(intended: Intended, info: Mapping[str, Any]) -> list[str]:
    """Return where a server's own account of its arguments (SGLang's ``/get_server_info``) is another. Pure."""
    wrong = []
    for name in sorted({name for word in intended.after if (name := flag_name(word, intended.engine.flag))}):
        key = name.replace("-", "_")
        after = flag_value(intended.after, name, intended.engine.flag)
        if key not in info or after == flag_value(intended.before, name, intended.engine.flag):
            continue
        wanted: object = True if after == "" else after
        if str(info[key]) != str(wanted) and not _same(after, json.dumps(info[key])):
            wrong.append(f"{_flag(name, after)} intended, the server says {info[key]}")
    return wrong


def changed(before: Sequence[Process], after: Sequence[Process]) -> list[str]:
    """Return how production's processes differ from those that ran before the outage. Pure."""
    was, now = sorted(process.argv for process in before), sorted(process.argv for process in after)
    wrong = []
    if was != now:
        wrong.append(f"ran {_lines(was)}; runs {_lines(now)}")
    if len(before) == len(after) == 1:
        old, new = _own(before[0]), _own(after[0])
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        wrong += [f"the environment differs in {', '.join(names)}"] if names else []
    return wrong


def _own(process: Process) -> dict[str, str]:
    return {name: value for name, value in (process.environ or {}).items() if name.startswith(_DECISIVE)}


def _lines(argvs: Sequence[Sequence[str]]) -> str:
    return " and ".join(" ".join(argv)[:300] for argv in argvs) or "no engine"


def prove_variant(
    host: Host, service: ResolvedService, intended: Intended, *, deadline: Deadline
) -> tuple[Evidence, ...]:
    """Prove that a variant that serves runs with its differences. Raises NotProven with intended beside seen."""
    processes = engine_processes(host, service.unit, container=intended.container, deadline=deadline)
    seen = _lines([process.argv for process in processes])
    wrong = [] if processes else ["no process of the unit is the engine"]
    wrong += [line for process in processes for line in missing(intended, process)]
    said, agreed = _server_says(host, service, intended, deadline)
    if wrong + said:
        raise NotProven(
            f"{service.name} serves, but not with its differences: {(wrong + said)[0]}",
            wanted=" ".join(intended.after)[:600],
            seen="; ".join([seen, *wrong, *said])[:1200],
            where=f"host {host.name}, {service.unit}",
            hint=f"opsctl units diff {host.name} {service.name} shows where each difference was put",
        )
    pids = ", ".join(str(process.pid) for process in processes)
    return (
        evidence(f"/proc/{pids}: the engine of {service.unit}", f"runs with its differences: {seen[:300]}"),
        *agreed,
    )


def _server_says(
    host: Host, service: ResolvedService, intended: Intended, deadline: Deadline
) -> tuple[list[str], tuple[Evidence, ...]]:
    """Return where the server itself disagrees, and its answers where it agrees."""
    engine = intended.engine
    tells = any(route == _INFO for route, _ in engine.routes.version)
    routes = engine.profile_routes("/", "torch") if intended.profiler else None
    wrong: list[str] = []
    agreed: list[Evidence] = []
    probe = ServerProbe(host, service, deadline=deadline)
    try:
        limit = min(10.0, request_limit(service, deadline))
        info = probe.server_info(limit=limit) if tells else None
        exists = probe.has_route(routes.start, limit=limit) if routes else None
    finally:
        probe.close()
    if info is not None:
        wrong += disagreeing(intended, info)
        agreed.append(evidence(f"GET {_INFO}", "agrees with the command line"))
    if routes and exists is False:
        wrong.append(f"the routes of the profiler intended, the server has no {routes.start}")
    elif routes and exists:
        agreed.append(evidence(f"OPTIONS {routes.start}", "the route of the profiler is there"))
    return wrong, tuple(agreed)


def what_runs(host: Host, service: ResolvedService, *, deadline: Deadline) -> tuple[Process, ...]:
    """Return the engine's processes of production, to be compared after its restore."""
    status = host.systemd().status(service.unit, deadline=deadline)
    launch = launch_of(host, status, deadline=deadline)
    inside = launch.container if isinstance(launch, Launch) else None
    container = (inside.client, inside.called) if inside is not None else None
    return engine_processes(host, service.unit, container=container, deadline=deadline)


def compare_production(
    host: Host, service: ResolvedService, before: Sequence[Process], *, deadline: Deadline
) -> Evidence:
    """Prove that production runs as it ran before the outage. Raises NotProven with both."""
    wrong = changed(before, what_runs(host, service, deadline=deadline))
    if wrong:
        raise NotProven(
            f"{service.name} serves again, but not as it ran before",
            wanted=_lines([process.argv for process in before]),
            seen="; ".join(wrong)[:1200],
            where=f"host {host.name}, {service.unit}",
            hint="its unit, its script or their files were changed meanwhile: look at them, then restart it",
        )
    return evidence(f"/proc: the engine of {service.unit}", "what runs is what ran")

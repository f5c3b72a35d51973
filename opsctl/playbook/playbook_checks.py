"""What types cannot say of a playbook: services that must be on its hosts, stages that fit what serves.

The checks read plain values (expressions evaluated) and the options that are valid, so that they speak
beside errors of type, not after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opsctl.engines import ENGINES
from opsctl.errors import UnfitError
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.models import NOTHING
from opsctl.playbook.nearest import suggestion
from opsctl.playbook.problems import Findings
from opsctl.playbook.resolved import ResolvedService
from opsctl.playbook.source import Key
from opsctl.playbook.steps import (
    SHORTEST_TTL,
    STAGE_OF,
    Collectives,
    Command,
    Gemm,
    Lease,
    Profile,
    ServingBenchmark,
)

_FIGURE = re.compile(r"[^#]+#[^#]+")


def check_playbook(
    findings: Findings, data: Mapping[str, Any], options: Mapping[Key, Any], inventory: LoadedInventory
) -> None:
    """Note every contradiction within a playbook, and between it and the inventory."""
    hosts = _check_hosts(findings, data, inventory)
    _check_lease(findings, data)
    _check_phase_names(findings, data)
    phases = data.get("phases")
    for number, phase in enumerate(phases if isinstance(phases, list) else ()):
        if not isinstance(phase, dict):
            continue
        key: Key = ("phases", number)
        services = _check_serve(findings, key, phase, hosts, inventory)
        if phase.get("steps") in ([], None):
            findings.add(key, "wanted at least one step in the phase, found none", on_key=True)
        for step_key, step in options.items():
            if step_key[:2] == key:
                _check_step(findings, step_key, step, phase.get("serve"), services)


def named_hosts(data: Mapping[str, Any], inventory: LoadedInventory) -> tuple[str, ...]:
    """Return the hosts that a playbook names, sorted; () where the name is no name, which is a problem elsewhere."""
    name = data.get("hosts")
    try:
        return inventory.hosts_of(name) if isinstance(name, str) else ()
    except UnfitError:
        return ()


def steps_in(data: Mapping[str, Any]) -> Iterable[tuple[Key, Any]]:
    """Yield every step of a playbook's plain values with its key, wherever the shape allows one."""
    phases = data.get("phases")
    for number, phase in enumerate(phases if isinstance(phases, list) else ()):
        steps = phase.get("steps") if isinstance(phase, dict) else None
        for index, step in enumerate(steps if isinstance(steps, list) else ()):
            yield ("phases", number, "steps", index), step


def slug(name: str) -> str:
    """Return a name as part of a step's id and of a unit's name: lower case letters, digits, single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "phase"


def _check_hosts(findings: Findings, data: Mapping[str, Any], inventory: LoadedInventory) -> tuple[str, ...]:
    name = data.get("hosts")
    hosts = named_hosts(data, inventory)
    if isinstance(name, str) and not hosts:
        known = [*inventory.inventory.hosts, *inventory.inventory.groups]
        findings.add(("hosts",), f"unknown host or group `{name}` in {inventory.path}{suggestion(name, known)}")
    for host in hosts:
        if not inventory.production_of(host):
            message = f"host `{host}` has no production service in {inventory.path}: nothing could be given back"
            findings.add(("hosts",), message)
    return hosts


def _check_lease(findings: Findings, data: Mapping[str, Any]) -> None:
    given = data.get("lease")
    if not isinstance(given, dict):
        return
    lease = Findings(findings.document).validated(Lease, given)
    if lease is None:
        return
    if lease.ttl < SHORTEST_TTL:
        findings.add(("lease", "ttl"), f"wanted at least {SHORTEST_TTL:g}s, found {given['ttl']!r}")


def _check_phase_names(findings: Findings, data: Mapping[str, Any]) -> None:
    taken: dict[str, str] = {}
    phases = data.get("phases")
    for number, phase in enumerate(phases if isinstance(phases, list) else ()):
        name = phase.get("name") if isinstance(phase, dict) else None
        if not isinstance(name, str):
            continue
        if not re.search(r"[A-Za-z0-9]", name):
            findings.add(("phases", number, "name"), f"wanted a name with a letter or digit, found {name!r}")
        first = taken.setdefault(slug(name), name)
        if number and first is not name:
            message = f"wanted phase names that differ, found `{name}` after `{first}`: steps are named after them"
            findings.add(("phases", number, "name"), message)


def _check_serve(
    findings: Findings, key: Key, phase: Mapping[str, Any], hosts: tuple[str, ...], inventory: LoadedInventory
) -> tuple[ResolvedService, ...]:
    """Note a service that is unknown or elsewhere; return it as it is on each host."""
    serve = phase.get("serve")
    if not isinstance(serve, str) or serve == NOTHING:
        return ()
    services = inventory.inventory.services
    if serve not in services:
        known = suggestion(serve, [*services, NOTHING])
        findings.add((*key, "serve"), f"unknown service `{serve}` in {inventory.path}{known}")
        return ()
    found, missing = [], []
    for host in hosts:
        there = {service.name: service for service in inventory.services_of(host)}
        if serve in there:
            found.append(there[serve])
        else:
            missing.append(host)
    if missing:
        elsewhere = ", ".join(
            host for host in inventory.inventory.hosts if serve in {one.name for one in inventory.services_of(host)}
        )
        message = f"service `{serve}` is not on {', '.join(missing)}; it is on {elsewhere or 'no host'}"
        findings.add((*key, "serve"), message)
    return tuple(found)


def _check_step(
    findings: Findings, key: Key, options: Any, serve: object, services: tuple[ResolvedService, ...]
) -> None:
    stage = STAGE_OF[type(options)]
    at: Key = (*key, stage)
    if isinstance(options, ServingBenchmark | Profile) and serve == NOTHING:
        message = f"`{stage}` needs a service that serves, found `serve: {NOTHING}` in its phase"
        findings.add(at, message, on_key=True)
    check = _CHECKS.get(type(options))
    if check is not None:
        for option, message in check(options, services):
            findings.add((*at, option) if option else at, message, on_key=not option)


def _benchmark(options: ServingBenchmark, _services: tuple[ResolvedService, ...]) -> Iterable[tuple[str, str]]:
    if not options.concurrency and not options.request_rate:
        yield "", "wanted `concurrency` or `request-rate` with at least one value, found neither"
    if options.requests is not None and options.duration is not None:
        yield "duration", "wanted `requests` or `duration`, found both"
    yield from _positive("concurrency", options.concurrency)
    yield from _positive("request-rate", options.request_rate)
    for name in options.slo:
        if name not in {"ttft", "tpot", "itl", "e2el"}:
            yield "slo", f"unknown limit `{name}`{suggestion(name, ('ttft', 'tpot', 'itl', 'e2el'))}"


def check_profile(options: Profile, services: tuple[ResolvedService, ...]) -> Iterable[tuple[str, str]]:
    """Yield (option, problem) of a profile step for each service that it would run on."""
    yield from _positive("concurrency", options.concurrency)
    for service in services[:1]:
        engine = ENGINES[service.engine]
        if engine.profile_routes("", options.with_) is None:
            yield "", f"{engine.title} has no profiler that opsctl can start: `{service.name}` cannot be profiled"
        elif options.with_ == "torch" and service.profiler is None:
            yield "", f"service `{service.name}` has no profiler: serve a variant of it with `profiler: torch`"
        if options.with_ == "nsys" and not any("nsys" in word for word in service.exec_prefix):
            yield "with", f"service `{service.name}` does not run under nsys: give a variant `exec-prefix: [nsys, …]`"


def _gemm(options: Gemm, services: tuple[ResolvedService, ...]) -> Iterable[tuple[str, str]]:
    yield from _positive("tokens", options.tokens)
    if services and options.device != "cpu":
        yield "", f"`gemm` needs free GPUs, found `serve: {services[0].name}`: use a phase that serves {NOTHING}"


def _collectives(options: Collectives, services: tuple[ResolvedService, ...]) -> Iterable[tuple[str, str]]:
    yield from _positive("tokens", options.tokens)
    if services and options.backend != "gloo":
        yield "", f"`collectives` needs free GPUs, found `serve: {services[0].name}`: use a phase that serves {NOTHING}"


def _command(options: Command, _services: tuple[ResolvedService, ...]) -> Iterable[tuple[str, str]]:
    for name, source in options.figures.items():
        if not _FIGURE.fullmatch(source):
            yield "figures", f"wanted FILE#path.to.number for `{name}`, found {source!r}"
    for path in options.collect:
        if path.startswith("/") or ".." in path.split("/"):
            yield "collect", f"wanted a path inside the step's folder, found {path!r}"


def _positive(option: str, values: tuple[float, ...]) -> Iterable[tuple[str, str]]:
    if any(value <= 0 for value in values):
        yield option, f"wanted numbers above 0, found {min(values):g}"
    elif len(set(values)) < len(values):
        yield option, "wanted values that differ (each is a cell), found one twice"


_CHECKS: Mapping[type, Callable[[Any, tuple[ResolvedService, ...]], Iterable[tuple[str, str]]]] = {
    ServingBenchmark: _benchmark,
    Profile: check_profile,
    Gemm: _gemm,
    Collectives: _collectives,
    Command: _command,
}

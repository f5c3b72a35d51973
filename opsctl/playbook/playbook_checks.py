"""What types cannot say of a playbook: services that must be on its hosts, stages that fit what serves.

The checks read plain values (expressions evaluated) and the options that are valid, so that they speak
beside errors of type, not after them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opsctl.errors import UnfitError
from opsctl.nearest import suggestion
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.models import NOTHING
from opsctl.playbook.problems import Findings
from opsctl.playbook.source import Key
from opsctl.playbook.steps import SHORTEST_TTL, Lease
from opsctl.stages import STAGES
from opsctl.stages.base import Place


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
        _check_serve(findings, key, phase, hosts, inventory)
        places = [place for host in hosts if (place := _place(host, phase.get("serve"), inventory)) is not None]
        if phase.get("steps") in ([], None):
            findings.add(key, "wanted at least one step in the phase, found none", on_key=True)
        for step_key, step in options.items():
            if step_key[:2] == key:
                _check_step(findings, step_key, step, places)


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
) -> None:
    """Note a service that is unknown or elsewhere."""
    serve = phase.get("serve")
    if not isinstance(serve, str) or serve == NOTHING:
        return
    services = inventory.inventory.services
    if serve not in services:
        known = suggestion(serve, [*services, NOTHING])
        findings.add((*key, "serve"), f"unknown service `{serve}` in {inventory.path}{known}")
        return
    missing = [host for host in hosts if serve not in {service.name for service in inventory.services_of(host)}]
    if missing:
        elsewhere = ", ".join(
            host for host in inventory.inventory.hosts if serve in {one.name for one in inventory.services_of(host)}
        )
        message = f"service `{serve}` is not on {', '.join(missing)}; it is on {elsewhere or 'no host'}"
        findings.add((*key, "serve"), message)


def _check_step(findings: Findings, key: Key, options: Any, places: Sequence[Place]) -> None:
    """Note what the stage itself refuses on the hosts of the playbook."""
    stage = next(stage for stage in STAGES.values() if type(options) is stage.options)
    at: Key = (*key, stage.name)
    for option, message in stage.problems(options, places):
        findings.add((*at, option) if option else at, message, on_key=not option)


def _place(host: str, serve: object, inventory: LoadedInventory) -> Place | None:
    """Return a host with what serves there; None where that is a problem of its own."""
    there = {service.name: service for service in inventory.services_of(host)}
    if not isinstance(serve, str) or (serve != NOTHING and serve not in there):
        return None
    production = inventory.production_of(host)
    return Place(
        host_name=host,
        host=inventory.host(host),
        service_name=None if serve == NOTHING else serve,
        service=None if serve == NOTHING else there[serve],
        production=production[0] if len(production) == 1 else None,
    )

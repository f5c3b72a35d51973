"""Read-only probes of hosts for ``opsctl plan``: what runs, what hangs on it, how long loads took before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.model_config import read_model_config
from opsctl.campaign.preflight import active_dependents
from opsctl.deadline import Deadline
from opsctl.errors import HostError, OpsctlError
from opsctl.host import connect
from opsctl.host.guard import control
from opsctl.host.protocol import Host
from opsctl.plan.facts import HostFacts, Seen
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.resolved import ResolvedService
from opsctl.runs import durations
from opsctl.runs.journal import Journal
from opsctl.serving import readiness

_SEEN = {"serving": Seen.SERVING, "loading": Seen.LOADING, "down": Seen.DOWN}


def probe(
    inventory: LoadedInventory, host_names: Iterable[str], journal: Journal | None = None
) -> Mapping[str, HostFacts]:
    """Return what can be seen of hosts without changing anything. Raises HostError when a host cannot be reached."""
    return {name: _probe_host(inventory, name, journal) for name in host_names}


def _probe_host(inventory: LoadedInventory, name: str, journal: Journal | None) -> HostFacts:
    host = connect(name, inventory.host(name), deadline=Deadline(limits.CONNECT, f"connection to {name}"))
    try:
        return _facts(inventory, host, journal)
    finally:
        host.close()


def _facts(inventory: LoadedInventory, host: Host, journal: Journal | None) -> HostFacts:
    notes: list[str] = []
    services, units, versions = {}, {}, {}
    for service in inventory.services_of(host.name):
        if service.is_variant:
            continue
        state = readiness.observe(host, service, deadline=Deadline(limits.CONNECT, f"a look at {service.name}"))
        services[service.name] = _SEEN.get(str(state.state))
        units[service.name] = _unit_state(state)
        if state.version:
            versions[service.name] = state.version
        if services[service.name] is None:
            notes.append(f"{service.name}: {state.seen}")
    production = inventory.production_of(host.name)
    return HostFacts(
        host=host.name,
        services=services,
        units=units,
        engine_versions=versions,
        loads=durations.loads(journal, host.name) if journal else {},
        stops=durations.stops(journal, host.name) if journal else {},
        steps=durations.steps(journal, host.name) if journal else {},
        dependents={service.name: _dependents_of(host, service) for service in production},
        model_config=_configs(host, production),
        gpus=_gpus(host, notes),
        python=_python(host, notes),
        state_dir=host.state_dir,
        holder=_holder(host, notes),
        notes=tuple(notes),
    )


def _unit_state(state: readiness.ServingState) -> str | None:
    if state.status is None:
        return None
    return "not-found" if state.status.load_state == "not-found" else state.status.active_state


def _dependents_of(host: Host, service: ResolvedService) -> tuple[str, ...]:
    status = host.systemd().status(service.unit, deadline=Deadline(limits.CALL, f"status of {service.unit}"))
    return active_dependents(host, status)


def _configs(host: Host, production: tuple[ResolvedService, ...]) -> dict[str, dict[str, Any]]:
    found = {service.name: read_model_config(host, service) for service in production}
    return {name: config for name, config in found.items() if config is not None}


def _gpus(host: Host, notes: list[str]) -> int | None:
    if host.entry.gpus is not None:
        return host.entry.gpus
    try:
        done = host.run(
            ["nvidia-smi", "-L"], deadline=Deadline(limits.CALL, f"nvidia-smi on {host.name}"), become=False
        )
    except OpsctlError as error:
        notes.append(f"GPUs: nvidia-smi did not answer: {error.message}")
        return None
    return sum(line.startswith("GPU ") for line in done.text.splitlines())


def _python(host: Host, notes: list[str]) -> str | None:
    try:
        done = host.run(
            [host.entry.python, "-c", "import platform; print(platform.python_version())"],
            deadline=Deadline(limits.CALL, f"{host.entry.python} on {host.name}"),
            check=False,
            become=False,
        )
    except HostError as error:
        notes.append(f"python: {error.message}")
        return None
    return done.text.strip() if done.exit_status == 0 else ""


def _holder(host: Host, notes: list[str]) -> str | None:
    try:
        view = control.show(host, deadline=Deadline(limits.CALL, f"lease of {host.name}"))
    except OpsctlError as error:
        notes.append(f"lease: {error.message}")
        return None
    return view.describe() if view is not None and view.live else ""

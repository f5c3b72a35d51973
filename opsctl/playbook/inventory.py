"""Loading `inventory.yml`: every problem at once, then hosts, groups and services by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import DefinitionError, UnfitError
from opsctl.nearest import suggestion
from opsctl.playbook.inventory_checks import check_inventory, placed_on
from opsctl.playbook.models import HostEntry, Inventory, Role, ServiceEntry, unit_name
from opsctl.playbook.problems import Findings
from opsctl.playbook.resolved import ResolvedService
from opsctl.playbook.source import Document, read_document

_INHERITED = ("engine", "url", "model", "api_key_file", "ca_file", "verify", "tensor_parallel")
_INHERITED_BY_KEY = ("readiness", "stop")


@dataclass(frozen=True)
class LoadedInventory:
    """An inventory that holds no contradiction. Names are the inventory's own."""

    path: Path
    inventory: Inventory
    document: Document

    def host(self, name: str) -> HostEntry:
        """Return a host. Raises UnfitError with the nearest name."""
        entry = self.inventory.hosts.get(name)
        if entry is None:
            known = self.inventory.hosts
            raise UnfitError(f"unknown host `{name}`{suggestion(name, known)}", where=str(self.path))
        return entry

    def hosts_of(self, name: str) -> tuple[str, ...]:
        """Return the hosts of a host's or group's name, sorted. Raises UnfitError with the nearest name."""
        if name not in self.inventory.hosts and name not in self.inventory.groups:
            known = [*self.inventory.hosts, *self.inventory.groups]
            raise UnfitError(f"unknown host or group `{name}`{suggestion(name, known)}", where=str(self.path))
        return _members(self.inventory, name)

    def services_of(self, host: str) -> tuple[ResolvedService, ...]:
        """Return every service of a host, in the order of the file."""
        self.host(host)
        return tuple(self.service_on(name, host) for name, hosts in self._hosts_by_service().items() if host in hosts)

    def service_on(self, name: str, host: str) -> ResolvedService:
        """Return a service on a host, a variant with what it inherits. Raises UnfitError."""
        hosts = self._hosts_by_service()
        if name not in hosts:
            raise UnfitError(f"unknown service `{name}`{suggestion(name, hosts)}", where=str(self.path))
        if host not in hosts[name]:
            raise UnfitError(
                f"service `{name}` is not on host `{host}`",
                seen=f"it is on {', '.join(hosts[name]) or 'no host'}",
                where=str(self.path),
            )
        return _resolve(self.inventory, name, host)

    def production_of(self, host: str) -> tuple[ResolvedService, ...]:
        """Return what a campaign takes down on a host and brings back: its production, or those it names as such."""
        productions = tuple(service for service in self.services_of(host) if service.role is Role.PRODUCTION)
        chosen = self.host(host).production
        return tuple(service for service in productions if not chosen or service.name in chosen)

    def only_production(self, host: str) -> ResolvedService:
        """Return the one production service of a host. Raises UnfitError when there is none, or more than one."""
        found = self.production_of(host)
        if len(found) != 1:
            raise UnfitError(
                f"{host} has {len(found) or 'no'} production services; a campaign borrows the GPUs of exactly one",
                seen=", ".join(service.name for service in found) or None,
                where=str(self.path),
                hint="give one service of the host the role production (hosts: {HOST: {production: [NAME]}} chooses)",
            )
        return found[0]

    def _hosts_by_service(self) -> Mapping[str, tuple[str, ...]]:
        services = self.inventory.services
        return {
            name: placed_on(entry.on, services[entry.of].on if entry.of else None, self._expand)
            for name, entry in services.items()
        }

    def _expand(self, name: str) -> tuple[str, ...]:
        return tuple(self.inventory.hosts) if name == "" else _members(self.inventory, name)


def load_inventory(path: Path | str) -> LoadedInventory:
    """Load an inventory. Raises DefinitionError with all of its problems."""
    path = Path(path)
    document = read_document(path)
    findings = Findings(document)
    inventory = findings.validated(Inventory, document.data)
    check_inventory(findings)
    if inventory is None or findings.problems:
        raise DefinitionError(findings.problems)
    services = {
        name: entry.model_copy(update={"role": Role.VARIANT if entry.of else Role.PRODUCTION})
        for name, entry in inventory.services.items()
    }
    return LoadedInventory(path, inventory.model_copy(update={"services": services}), document)


def _members(inventory: Inventory, name: str) -> tuple[str, ...]:
    """Return the hosts of a name, sorted and once each; groups hold no cycles by now."""
    if name in inventory.hosts:
        return (name,)
    return tuple(sorted({host for member in inventory.groups[name] for host in _members(inventory, member)}))


def _resolve(inventory: Inventory, name: str, host: str) -> ResolvedService:
    entry = inventory.services[name]
    parent = inventory.services[entry.of] if entry.of else None
    values = _values(entry) if parent is None else {**_values(entry), **_inherited(entry, parent)}
    return ResolvedService.model_validate({**values, "name": name, "host": host, "unit": unit_name(name, entry)})


def _values(entry: ServiceEntry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in ServiceEntry.model_fields}


def _inherited(entry: ServiceEntry, parent: ServiceEntry) -> dict[str, object]:
    """Return what a variant takes from its production: whole values, and single keys of readiness and stop."""
    taken: dict[str, object] = {
        name: getattr(parent, name)
        for name in _INHERITED
        if name not in entry.model_fields_set or getattr(entry, name) is None
    }
    for name in _INHERITED_BY_KEY:
        own = getattr(entry, name)
        said = {key: getattr(own, key) for key in own.model_fields_set} if name in entry.model_fields_set else {}
        taken[name] = getattr(parent, name).model_copy(update=said)
    return taken

"""What a run is made of: the playbook as it reads on each host, the inventory, and what the person asked for."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.plan.facts import IfDown
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import LoadedPlaybook, find_playbook, load_playbooks
from opsctl.playbook.models import NOTHING
from opsctl.playbook.resolved import ResolvedService


@dataclass(frozen=True)
class RunRequest:
    """What was asked for on the command line. ``overrides`` are ``key=value`` texts."""

    playbook: str
    inventory: Path
    overrides: tuple[str, ...] = ()
    if_down: IfDown = "refuse"
    kill_foreign: bool = False

    def document(self) -> dict[str, Any]:
        """Return what the journal keeps, from which ``from_document`` makes the request again."""
        return {
            "playbook": self.playbook,
            "inventory": str(self.inventory.resolve()),
            "overrides": list(self.overrides),
            "if_down": self.if_down,
            "kill_foreign": self.kill_foreign,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> RunRequest:
        """Return the request that a run was made of."""
        return cls(
            playbook=document["playbook"],
            inventory=Path(document["inventory"]),
            overrides=tuple(document["overrides"]),
            if_down=document["if_down"],
            kill_foreign=document["kill_foreign"],
        )


@dataclass(frozen=True)
class Definition:
    """A request with its files read and found without fault."""

    request: RunRequest
    inventory: LoadedInventory
    playbook: LoadedPlaybook

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host of the run, sorted: the order in which they are armed."""
        return self.playbook.hosts

    @property
    def peers(self) -> tuple[tuple[str, str], ...]:
        """Return (name, address) of every host of the run, in one order: stages over several hosts meet by it."""
        return tuple((name, self.inventory.host(name).address) for name in self.hosts)

    def services(self, host: str) -> tuple[ResolvedService, ...]:
        """Return production and every service that a phase wants to serve. Raises UnfitError."""
        production = self.inventory.only_production(host)
        wanted = {phase.serve for phase in self.playbook.by_host[host].phases} - {NOTHING, production.name}
        return (production, *(self.inventory.service_on(name, host) for name in sorted(wanted)))


def read_definition(request: RunRequest) -> Definition:
    """Read playbook and inventory. Raises DefinitionError with every problem, UnfitError."""
    inventory = load_inventory(request.inventory)
    playbook = load_playbooks(find_playbook(request.playbook), inventory, request.overrides)
    return Definition(request, inventory, playbook)


def new_run_id() -> str:
    """Return an id that sorts by time and is a valid part of a unit's name, such as ``20261201-024512-3fa9``."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"

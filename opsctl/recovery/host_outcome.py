"""Queries the hosts of a run whose controller is gone for what is so now: the journal cannot know."""

from __future__ import annotations

import json

from opsctl.campaign import limits
from opsctl.campaign.definition import RunRequest, read_definition
from opsctl.campaign.preflight import connected
from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError
from opsctl.host.guard import control
from opsctl.playbook.inventory import LoadedInventory
from opsctl.runs.journal import Journal
from opsctl.serving import readiness


def look_now(journal: Journal, run: str) -> dict[str, tuple[str, bool]]:
    """Ask every host of a run who holds it and whether production answers; changes nothing.

    Returns, by host, words for a person and whether production was seen to serve. Raises nothing that opsctl
    knows: a host that cannot be asked says so.
    """
    row = journal.query("SELECT definition FROM runs WHERE run=?", run)[0]
    try:
        definition = read_definition(RunRequest.from_document(json.loads(row["definition"])))
    except OpsctlError as error:
        hosts = journal.query("SELECT host FROM hosts WHERE run=? ORDER BY host", run)
        return {host["host"]: (f"could not be asked: {error}", False) for host in hosts}
    seen = {}
    for name in definition.hosts:
        try:
            seen[name] = _ask(definition.inventory, name)
        except OpsctlError as error:
            seen[name] = (f"could not be asked: {error}", False)
    return seen


def _ask(inventory: LoadedInventory, name: str) -> tuple[str, bool]:
    production = inventory.only_production(name)
    with connected(inventory, name) as host:
        view = control.show(host, deadline=Deadline(limits.CALL, f"the lease of {name}"))
        host.listener = view.listener if view is not None and view.live else ""
        state = readiness.observe(host, production, deadline=Deadline(limits.CONNECT, f"a look at {production.unit}"))
    serves = f"production {production.name} serves" if state.serving else f"production does NOT serve: {state.seen}"
    return f"{serves}; {view.describe() if view else 'no guard is installed'}", state.serving

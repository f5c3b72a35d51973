"""``opsctl check``: the state of units on a host, read afresh, as a table or a document."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from opsctl.host.protocol import UnitStatus
    from opsctl.playbook.inventory import LoadedInventory

_CONNECT, _CALL = 20.0, 20.0
_AT_ONCE = 8
"""Calls in flight: on a distant host the round trips, not systemd, are what takes long."""


def check(
    host: Annotated[str, typer.Argument(help="Host or group of the inventory.")],
    units: Annotated[
        list[str] | None, typer.Argument(metavar="[UNIT]...", help="Units; default: the host's services.")
    ] = None,
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")] = Path("inventory.yml"),
    settle: Annotated[
        str, typer.Option(help="Read again after this long: a unit that restarted meanwhile is not up.")
    ] = "0s",
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Show the state of units on a host. Reads only, in one call a unit.

    Exit code 0 when every unit is active (and stayed it over [bold]--settle[/bold]), 1 when one is not, 2 when
    the host cannot be reached. Of a host's services, variants are shown too, and may be down: only a campaign
    starts them.

    [bold]Examples[/bold]

      opsctl check kimi

      opsctl check fleet nginx.service node-exporter.service --settle 5s --json
    """
    from opsctl.playbook.inventory import load_inventory
    from opsctl.quantities import parse_duration

    try:
        seconds = parse_duration(settle)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--settle") from error
    loaded = load_inventory(inventory)
    rows = [row for name in loaded.hosts_of(host) for row in _rows(loaded, name, units or [], seconds)]
    if json:
        import json as writer

        print(writer.dumps({"units": rows}, indent=2))
    else:
        _print_table(rows)
    if not all(row["up"] or not row["wanted"] for row in rows):
        raise typer.Exit(1)


def _rows(loaded: LoadedInventory, name: str, units: list[str], settle: float) -> list[dict[str, Any]]:
    """Return one row a unit of one host, in the order asked for."""
    import time
    from concurrent.futures import ThreadPoolExecutor

    from opsctl.deadline import Deadline
    from opsctl.host import connect

    named = units or [service.unit for service in loaded.services_of(name)]
    idle = set() if units else {service.unit for service in loaded.services_of(name) if service.is_variant}
    host = connect(name, loaded.host(name), deadline=Deadline(_CONNECT, f"connection to {name}"))

    def read() -> list[UnitStatus]:
        systemd = host.systemd()

        def one(unit: str) -> UnitStatus:
            return systemd.status(unit, deadline=Deadline(_CALL, f"state of {unit} on {name}"))

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(one, named))

    try:
        first = read()
        time.sleep(settle)
        pairs = zip(named, first, read() if settle else first, strict=True)
        return [_row(name, before, after, wanted=unit not in idle) for unit, before, after in pairs]
    finally:
        host.close()


def _row(host: str, before: UnitStatus, after: UnitStatus, *, wanted: bool) -> dict[str, Any]:
    stayed = (before.invocation_id, before.n_restarts) == (after.invocation_id, after.n_restarts)
    return {
        "host": host,
        "unit": after.name,
        "up": before.active and after.active and stayed,
        "wanted": wanted,
        "stayed": stayed,
        "load_state": after.load_state,
        "active_state": after.active_state,
        "sub_state": after.sub_state,
        "result": after.result,
        "restarts": after.n_restarts,
        "main_pid": after.main_pid,
        "invocation_id": after.invocation_id,
        "need_daemon_reload": after.need_daemon_reload,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Print aligned columns; Rich would take as long to load as the reading takes."""
    columns = [("", "HOST", "UNIT", "STATE", "RESTARTS", "NOTE")]
    columns += [
        (
            "✓" if row["up"] else "✗" if row["wanted"] else "–",
            row["host"],
            row["unit"],
            f"{row['active_state']} ({row['sub_state']})",
            str(row["restarts"]),
            _note(row),
        )
        for row in rows
    ]
    widths = [max(len(line[index]) for line in columns) for index in range(len(columns[0]))]
    for line in columns:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _note(row: dict[str, Any]) -> str:
    """Return what a person should know of a unit beyond its state."""
    notes = [] if row["wanted"] else ["a variant"]
    if row["load_state"] != "loaded":
        notes.append(row["load_state"])
    if row["result"] not in {"", "success"}:
        notes.append(row["result"])
    if not row["stayed"]:
        notes.append("restarted while it was watched")
    if row["need_daemon_reload"]:
        notes.append("its file changed since it was loaded (systemctl daemon-reload)")
    return ", ".join(notes)

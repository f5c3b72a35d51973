"""``opsctl units``: the units of variants, derived from what production runs now."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opsctl.host.protocol import Host
    from opsctl.playbook.inventory import LoadedInventory
    from opsctl.playbook.resolved import ResolvedService
    from opsctl.serving.launch.variants import Variant

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Derive, compare, install or remove variants' units."
)

HostName = Annotated[str, typer.Argument(help="Host or group of the inventory.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[SERVICE]...", help="Variants; default: all of the host.")]
InventoryPath = Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document.")]
_INVENTORY = Path("inventory.yml")
_CONNECT, _CALL = 20.0, 60.0
NO_LEASE = 0
"""A token that is never given out: what is installed by hand cannot be started outside of a run."""


@app.command()
def diff(
    host: HostName,
    services: Names = None,
    inventory: InventoryPath = _INVENTORY,
    full: Annotated[bool, typer.Option("--full", help="Show the derived units in full.")] = False,
    json: AsJson = False,
) -> None:
    """Show how each variant differs from production as it runs now, argument by argument. Reads only.

    Exit code 0; 2 when a variant cannot be derived.

    [bold]Examples[/bold]

      opsctl units diff kimi

      opsctl units diff kimi vllm-kimi-k25-int4-profiler --full
    """
    rows = []
    for reached, service, variant in _derived(host, services, inventory):
        rows.append(_row(reached, service, variant, full=full))
        if not json:
            _print(rows[-1])
    _finish(rows, as_json=json)


@app.command()
def install(
    host: HostName, services: Names = None, inventory: InventoryPath = _INVENTORY, json: AsJson = False
) -> None:
    """Write the variants' units, so that they can be looked at on the host. Refused while a run holds it.

    They lie where a reboot forgets them and do not start: a variant runs only under a run's lease, which
    derives it anew.

    [bold]Examples[/bold]

      opsctl units install kimi
    """
    from opsctl.deadline import Deadline
    from opsctl.serving.launch import variants

    rows = []
    for reached, service, variant in _derived(host, services, inventory, change=True):
        limit = Deadline(_CALL, f"installing {variant.unit}")
        variants.install(reached, variant, systemd=reached.systemd(), deadline=limit)
        rows.append({**_row(reached, service, variant), "installed": True})
        if not json:
            print(f"{reached.name}: {variant.unit} is installed; it starts only under a run's lease")
    _finish(rows, as_json=json)


@app.command()
def remove(host: HostName, services: Names = None, inventory: InventoryPath = _INVENTORY, json: AsJson = False) -> None:
    """Take variants' units away. A unit that opsctl did not write is left alone; refused while a run holds the host.

    [bold]Examples[/bold]

      opsctl units remove kimi
    """
    from opsctl.deadline import Deadline
    from opsctl.serving.launch import variants

    rows = []

    def take(reached: Host, service: ResolvedService) -> None:
        limit = Deadline(_CALL, f"removing {service.unit}")
        status = reached.systemd().status(service.unit, deadline=limit)
        _refuse_running(status.active, service, reached)
        there = status.load_state != "not-found"
        variants.remove(reached, service.unit, systemd=reached.systemd(), deadline=limit)
        rows.append({"host": reached.name, "service": service.name, "unit": service.unit, "removed": there})
        if not json:
            print(f"{reached.name}: {service.unit} {'is removed' if there else 'was not there'}")

    _each(host, services, inventory, take, change=True)
    _finish(rows, as_json=json)


def _refuse_running(active: bool, service: ResolvedService, host: Host) -> None:
    from opsctl.errors import UnfitError

    if active:
        raise UnfitError(
            f"{service.unit} runs on {host.name}, so its unit stays",
            hint="stop it, or let the run that started it end: opsctl lease show",
        )


def _derived(
    host: str, services: list[str] | None, inventory: Path, *, change: bool = False
) -> Iterator[tuple[Host, ResolvedService, Variant]]:
    """Yield each variant of each host, derived; the connection stands until the next is asked for."""
    from opsctl.deadline import Deadline
    from opsctl.serving.launch import variants
    from opsctl.serving.observation import observe

    for loaded, reached, service in _wanted(host, services, inventory, change=change):
        limit = Deadline(_CALL, f"deriving {service.name}")
        production = loaded.service_on(str(service.of), reached.name)
        status = reached.systemd().status(production.unit, deadline=limit)
        version = observe(reached, production, deadline=limit).version if service.profiler and status.active else None
        trace_dir = f"{reached.state_dir}/runs/by-hand/traces/{service.name}"
        yield (
            reached,
            service,
            variants.derive(
                reached,
                service,
                status,
                token=NO_LEASE,
                run="by hand",
                trace_dir=trace_dir,
                version=version,
                deadline=limit,
            ),
        )


def _each(
    host: str,
    services: list[str] | None,
    inventory: Path,
    act: Callable[[Host, ResolvedService], None],
    *,
    change: bool,
) -> None:
    for _, reached, service in _wanted(host, services, inventory, change=change):
        act(reached, service)


def _wanted(
    host: str, services: list[str] | None, inventory: Path, *, change: bool
) -> Iterator[tuple[LoadedInventory, Host, ResolvedService]]:
    """Yield the variants that were asked for, with a connection to their host. Raises UnfitError."""
    from opsctl.deadline import Deadline
    from opsctl.errors import UnfitError
    from opsctl.host import connect
    from opsctl.playbook.inventory import load_inventory

    loaded = load_inventory(inventory)
    for name in loaded.hosts_of(host):
        variants = {service.name: service for service in loaded.services_of(name) if service.is_variant}
        if missing := [wanted for wanted in services or [] if wanted not in variants]:
            raise UnfitError(
                f"{name} has no variant {missing[0]}",
                wanted=", ".join(variants) or "a service with `of:` in the inventory; it has none",
                where=str(inventory),
            )
        reached = connect(name, loaded.host(name), deadline=Deadline(_CONNECT, f"connection to {name}"))
        try:
            if change:
                _refuse_held(reached)
            for service in variants.values():
                if not services or service.name in services:
                    yield loaded, reached, service
        finally:
            reached.close()


def _refuse_held(host: Host) -> None:
    """Raise HostHeld while a run holds the host: its variants are its own."""
    from opsctl.deadline import Deadline
    from opsctl.errors import HostHeld
    from opsctl.host.guard import control

    view = control.show(host, deadline=Deadline(_CALL, f"the lease of {host.name}"))
    if view is not None and view.live:
        raise HostHeld(f"{host.name} is held", seen=view.describe(), hint=f"opsctl lease show {host.name}")


def _row(host: Host, service: ResolvedService, variant: Variant, *, full: bool = False) -> dict[str, Any]:
    from opsctl.redaction import redact

    row: dict[str, Any] = {
        "host": host.name,
        "service": service.name,
        "unit": variant.unit,
        "production": variant.production,
        "differences": [redact(line) for line in variant.differences],
    }
    return {**row, "text": redact(variant.text)} if full else row


def _print(row: Mapping[str, Any]) -> None:
    print(f"{row['host']}: {row['unit']}, derived from {row['production']}")
    for line in row["differences"] or ["no difference"]:
        print(f"  {line}")
    for line in row.get("text", "").splitlines():
        print(f"  | {line}".rstrip())


def _finish(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps({"variants": rows}, indent=2))
    elif not rows:
        print("no variants: a service with `of: PRODUCTION` in the inventory is one")

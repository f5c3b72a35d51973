"""``opsctl lease``: who holds a host, and taking it from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opsctl.host.guard.control import LeaseView

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Show or break the lease on a host.")

HostName = Annotated[str, typer.Argument(help="Host or group of the inventory.")]
InventoryPath = Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document.")]
_INVENTORY = Path("inventory.yml")


@app.command()
def show(host: HostName, inventory: InventoryPath = _INVENTORY, json: AsJson = False) -> None:
    """Show who holds a host, since when, until when; or who restored what, and when.

    Exit code 0, also where it is not held; changes nothing.

    [bold]Examples[/bold]

      opsctl lease show kimi

      opsctl lease show fleet --json
    """
    from opsctl.commands.lease_views import each_host, print_views
    from opsctl.host.guard import control

    views = each_host(host, inventory, lambda reached, deadline: control.show(reached, deadline=deadline))
    print_views(views, as_json=json)


@app.command(name="break")
def break_(
    host: HostName,
    inventory: InventoryPath = _INVENTORY,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Close the lease and restore NOTHING: you bring production back.")
    ] = False,
    json: AsJson = False,
) -> None:
    """End the lease on a host: its holder is fenced off, and the guard restores production at once.

    Where the guard is restoring already and backs off, it tries again now. Returns at once; watch with
    [bold]opsctl lease show[/bold], or use [bold]opsctl rollback[/bold], which waits and verifies.

    [bold]Examples[/bold]

      opsctl lease break kimi
    """
    from opsctl.commands.lease_views import each_host, print_views
    from opsctl.deadline import Deadline
    from opsctl.host.guard import control
    from opsctl.host.protocol import Host
    from opsctl.runs.journal import controller_name

    def act(reached: Host, deadline: Deadline) -> LeaseView | None:
        if abandon:
            return control.abandon(reached, by=controller_name(), deadline=deadline)
        return control.break_(reached, by=controller_name(), deadline=deadline)

    print_views(each_host(host, inventory, act), as_json=json)

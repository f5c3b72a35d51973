"""``opsctl guard``: what opsctl keeps on a host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opsctl.host.guard.control import LeaseView

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Install, show or remove the guard on a host.")

HostName = Annotated[str, typer.Argument(help="Host or group of the inventory.")]
InventoryPath = Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document.")]
_INVENTORY = Path("inventory.yml")


@app.command()
def install(host: HostName, inventory: InventoryPath = _INVENTORY, json: AsJson = False) -> None:
    """Put the guard on a host, or bring it to this opsctl's version.

    [bold]opsctl run[/bold] does this by itself. Exit code 4 while a lease is live under another version, 2 where the
    host cannot be guarded.

    [bold]Examples[/bold]

      opsctl guard install kimi
    """
    from opsctl.commands.lease_views import each_host, print_views
    from opsctl.deadline import Deadline
    from opsctl.host.guard import control
    from opsctl.host.protocol import Host

    def act(reached: Host, deadline: Deadline) -> LeaseView | None:
        control.install(reached, deadline=deadline)
        return control.show(reached, deadline=deadline)

    print_views(each_host(host, inventory, act), as_json=json, guard=True)


@app.command()
def uninstall(host: HostName, inventory: InventoryPath = _INVENTORY, json: AsJson = False) -> None:
    """Remove the guard from a host; its log and the lease's token stay in /var/lib/opsctl.

    Exit code 4 while a lease is live.

    [bold]Examples[/bold]

      opsctl guard uninstall kimi
    """
    from opsctl.commands.lease_views import each_host, print_views
    from opsctl.deadline import Deadline
    from opsctl.host.guard import control
    from opsctl.host.protocol import Host

    def act(reached: Host, deadline: Deadline) -> LeaseView | None:
        control.uninstall(reached, deadline=deadline)
        return control.show(reached, deadline=deadline)

    print_views(each_host(host, inventory, act), as_json=json, guard=True)


@app.command()
def show(host: HostName, inventory: InventoryPath = _INVENTORY, json: AsJson = False) -> None:
    """Show the guard on a host: its version, its last look, and what it did.

    [bold]Examples[/bold]

      opsctl guard show kimi
    """
    from opsctl.commands.lease_views import each_host, print_views
    from opsctl.host.guard import control

    views = each_host(host, inventory, lambda reached, deadline: control.show(reached, deadline=deadline))
    print_views(views, as_json=json, guard=True)

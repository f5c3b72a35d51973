"""``opsctl init``: write an inventory by asking a host what it runs."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.errors import UnfitError

if TYPE_CHECKING:
    from opsctl.playbook.models import HostEntry
    from opsctl.serving.discovery import HostFound

_LOOK = 120.0


class Scope(StrEnum):
    """Whose systemd is asked."""

    SYSTEM = "system"
    USER = "user"


def init(
    address: Annotated[str, typer.Argument(help="The host as ssh takes it; `local` for this machine itself.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("inventory.yml"),
    name: Annotated[str | None, typer.Option(help="Name of the host in the inventory; default: the address.")] = None,
    group: Annotated[str, typer.Option(help="Group that playbooks name.")] = "kimi",
    user: Annotated[str | None, typer.Option(help="User to log in as; default: what ssh_config says.")] = None,
    port: Annotated[int | None, typer.Option(help="SSH port; default: what ssh_config says.")] = None,
    identity_file: Annotated[str | None, typer.Option(help="Private key; default: agent and ssh_config.")] = None,
    known_hosts: Annotated[str | None, typer.Option(help="Known host keys; default: ~/.ssh/known_hosts.")] = None,
    become: Annotated[bool, typer.Option("--become", help="Use sudo -n for what needs root.")] = False,
    scope: Annotated[Scope, typer.Option(help="Whose systemd runs the services.")] = Scope.SYSTEM,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print what was found as one JSON document.")] = False,
) -> None:
    """Write an inventory by asking a host what it runs. Changes nothing on the host.

    It looks at the units whose launch line starts a model server (also behind
    shells, wrappers and scripts), says what it understood of it, asks each
    that runs for its models, and counts the GPUs. What it could not know
    stands in the file as a comment.

    [bold]Exit codes[/bold]: 0 written · 2 the host cannot be reached, or the file is there already.

    [bold]Examples[/bold]

      opsctl init gpu1

      opsctl init gpu1.example.net --user ops --become -o inventory.yml

      opsctl init local
    """
    if out.exists() and not force:
        raise UnfitError(
            f"{out} is there already", wanted="a new file", hint="--out OTHER.yml, or --force to write over it"
        )
    if not out.parent.is_dir():
        raise UnfitError(f"{out} cannot be written", seen=f"there is no folder {out.parent}", hint="make it first")
    from opsctl.deadline import Deadline
    from opsctl.host import connect
    from opsctl.playbook.inventory import load_inventory
    from opsctl.serving.discovery import discover
    from opsctl.serving.inventory_draft import inventory_text, plain_name

    entry = _entry(address, user, port, identity_file, known_hosts, scope, become=become)
    host_name = name or plain_name(address)
    deadline = Deadline(_LOOK, f"a look at {address}")
    host = connect(host_name, entry, deadline=deadline)
    try:
        found = discover(host, deadline=deadline)
    finally:
        host.close()
    out.write_text(inventory_text(host_name, group, entry, found))
    # What could not be known may leave the file unfit: then every place to fill in is said.
    load_inventory(out)
    if json_:
        print(json.dumps(_document(out, host_name, found)))
    else:
        _print(out, host_name, found)


def _print(out: Path, host: str, found: HostFound) -> None:
    for server in found.servers:
        state = server.answered or ("runs" if server.active else "does not run")
        print(f"{server.unit}: {server.engine}, {server.model or 'model unknown'}, {state}")
        print(f"  {server.understood}")
        if server.refused:
            print(f"  no variant can be made of it: {server.refused}")
    for note in found.notes:
        print(f"not found out: {note}")
    print(f"written: {out}. Read it, then: opsctl validate -i {out}; opsctl doctor {host} -i {out}")


def _entry(
    address: str,
    user: str | None,
    port: int | None,
    identity_file: str | None,
    known_hosts: str | None,
    scope: Scope,
    *,
    become: bool,
) -> HostEntry:
    from opsctl.playbook.models import HostEntry

    if address == "local":
        return HostEntry(transport="local", scope=scope.value, become=become)
    return HostEntry(
        address=address,
        user=user,
        port=port,
        identity_file=_from_anywhere(identity_file),
        known_hosts=_from_anywhere(known_hosts),
        scope=scope.value,
        become=become,
    )


def _from_anywhere(path: str | None) -> str | None:
    """Return a path that holds in whatever folder the inventory is used; `~` stays as it was typed."""
    return str(Path(path).absolute()) if path and not path.startswith("~") else path


def _document(out: Path, host: str, found: HostFound) -> dict[str, Any]:
    from opsctl.serving.inventory_draft import service_name

    return {
        "inventory": str(out),
        "host": host,
        "gpus": found.gpus,
        "servers": [{**dataclasses.asdict(server), "service": service_name(server)} for server in found.servers],
        "notes": list(found.notes),
    }

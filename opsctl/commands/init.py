"""``opsctl init``: write an inventory by asking a host what it runs."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.engines import DEFAULT
from opsctl.errors import UnfitError

if TYPE_CHECKING:
    from opsctl.playbook.models import HostEntry
    from opsctl.serving.discovery import FoundServer, HostFound

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
    from opsctl.deadline import Deadline
    from opsctl.host import connect
    from opsctl.playbook.inventory import load_inventory
    from opsctl.serving.discovery import discover

    entry = _entry(address, user, port, identity_file, known_hosts, scope, become=become)
    host_name = name or _host_name(address)
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
        return
    for server in found.servers:
        state = server.answered or ("runs" if server.active else "does not run")
        print(f"{server.unit}: {server.engine}, {server.model or 'model unknown'}, {state}")
        print(f"  {server.understood}")
        if server.refused:
            print(f"  no variant can be made of it: {server.refused}")
    for note in found.notes:
        print(f"not found out: {note}")
    print(f"written: {out}. Read it, then: opsctl validate -i {out}; opsctl doctor {host_name} -i {out}")


def inventory_text(host_name: str, group: str, entry: HostEntry, found: HostFound) -> str:
    """Return an inventory as YAML with comments: what was found, and what a person has to decide."""
    productions = [server for server in found.servers if server.active]
    lines = ["# Written by `opsctl init`. Read it: what could not be known is a comment.", "hosts:", f"  {host_name}:"]
    lines += [f"    {key}: {_scalar(value)}" for key, value in _written(entry).items()]
    pythons = sorted({server.python for server in productions if server.python})
    if pythons:
        lines.append(f"    python: {pythons[0]}     # of the serving environment")
        lines += [f"    # another server runs with {other}" for other in pythons[1:]]
    else:
        lines.append("    # python: /opt/vllm/bin/python     # of the serving environment: torch and vLLM are there")
    if found.gpus is not None:
        lines.append(f"    gpus: {found.gpus}")
    if len(productions) > 1:
        first = service_name(productions[0])
        lines.append(f"    production: [{first}]     # several serve here: these are taken down and brought back")
    lines += ['    # alert: [/usr/local/bin/page, "opsctl: production is not back"]', "", "groups:"]
    lines += [f"  {group}: [{host_name}]     # playbooks say `hosts: {group}`", "", "services:"]
    if not productions:
        lines[-1] = "# services: no model server runs on the host"
    for server in productions:
        lines += _service_lines(server)
    lines += [
        f"# {server.unit} does not run: {server.engine}, {server.model}"
        for server in found.servers
        if not server.active
    ]
    return "\n".join(lines) + "\n"


def service_name(server: FoundServer) -> str:
    """Return a service's name: its unit without the suffix, as the inventory may spell it."""
    return _host_name(server.unit.removesuffix(".service"))


def _service_lines(server: FoundServer) -> list[str]:
    name = service_name(server)
    lines = [f"  {name}:"]
    lines += [f"    # {line}" for line in _comments(server)]
    lines.append(f"    unit: {_scalar(server.unit)}")
    if server.engine != DEFAULT:
        lines.append(f"    engine: {server.engine}")
    known = "" if server.serving else "     # from the command line: the server did not tell"
    lines += [
        f"    url: {server.url}",
        f"    model: {_scalar(server.model) if server.model else ''}{known}",
        f"    tensor-parallel: {server.tensor_parallel}",
    ]
    if server.needs_key:
        lines.append("    # It wants a key: name a file on the host that holds it. The key itself stays there.")
    lines += [
        f"    {'' if server.needs_key else '# '}api-key-file: /etc/{server.engine}/api-key",
        "    readiness: {limit: 60m}     # longer than the slowest load",
        "    # stop: {drain: 60s}        # wait for running requests first",
        "    # traffic: {out: [lb, drain, HOST], in: [lb, enable, HOST], check: [lb, is-enabled, HOST]}",
        f"  {name}-profiler: {{of: {name}, profiler: torch}}",
    ]
    return lines


def _comments(server: FoundServer) -> list[str]:
    """Return what a person should know of how the server is started; a plain command line says it by itself."""
    lines = [server.understood] if server.understood not in {"", "started in ExecStart"} else []
    return lines + ([f"No variant can be made of it: {server.refused}"] if server.refused else [])


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
        identity_file=identity_file,
        known_hosts=known_hosts,
        scope=scope.value,
        become=become,
    )


def _written(entry: HostEntry) -> dict[str, Any]:
    """Return what the entry says beyond the defaults, by the keys of the file."""
    said = entry.model_dump(by_alias=True, exclude_defaults=True, mode="json")
    return {key: said[key] for key in entry.model_dump(by_alias=True) if key in said} or {"address": entry.address}


def _scalar(value: object) -> str:
    """Return a value as YAML that reads back as the same; JSON is YAML."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z/][\w./@%+-]*", value) and value.lower() not in _WORDS
    return str(value) if plain else json.dumps(value)


_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


def _host_name(address: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", address).strip("-._") or "host"


def _document(out: Path, host: str, found: HostFound) -> dict[str, Any]:
    import dataclasses

    return {
        "inventory": str(out),
        "host": host,
        "gpus": found.gpus,
        "servers": [{**dataclasses.asdict(server), "service": service_name(server)} for server in found.servers],
        "notes": list(found.notes),
    }

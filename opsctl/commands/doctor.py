"""``opsctl doctor``: is this host fit to have its production taken down and brought back?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opsctl.campaign.definition import Definition
    from opsctl.errors import OpsctlError
    from opsctl.plan import HostFacts
    from opsctl.playbook.inventory import LoadedInventory
    from opsctl.serving.doctor import Check

_SIGNS = {"ok": "✓", "warning": "!", "stop": "✗", "unknown": "?"}
_COLOURS = {"ok": "green", "warning": "yellow", "stop": "red", "unknown": "magenta"}


def doctor(
    host: Annotated[str, typer.Argument(help="Host or group of the inventory.")],
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")] = Path("inventory.yml"),
    playbook: Annotated[
        str | None,
        typer.Option("--playbook", "-p", help="Judge also what a run of this playbook would be refused for."),
    ] = None,
    kill_foreign: Annotated[
        bool, typer.Option("--kill-foreign", help="Judge as for a run that may kill processes of others on the GPUs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Examine a host before it is borrowed: GPUs, units, disk, ports, kernel log. Reads only.

    Every line is ok, warning, stop or unknown, with its reason and what to do. A run makes the same checks and
    refuses to begin at a stop.

    Exit code 0 without a stop, 2 with one, or when the host cannot be reached.

    [bold]Examples[/bold]

      opsctl doctor kimi

      opsctl doctor fleet --json

      opsctl doctor kimi --playbook profile-campaign
    """
    from opsctl.campaign.definition import RunRequest, read_definition
    from opsctl.playbook.inventory import load_inventory
    from opsctl.serving.doctor import Verdict, worst

    loaded = load_inventory(inventory)
    request = RunRequest(playbook or "", inventory, kill_foreign=kill_foreign)
    definition = read_definition(request) if playbook else None
    seen = {name: _examine(loaded, name, definition, kill_foreign=kill_foreign) for name in loaded.hosts_of(host)}
    if json:
        _print_json(seen)
    else:
        _print_lines(seen)
    if any(worst(checks) is Verdict.STOP for checks in seen.values()):
        raise typer.Exit(2)


def _examine(
    loaded: LoadedInventory, name: str, definition: Definition | None, *, kill_foreign: bool
) -> Sequence[Check]:
    from opsctl.campaign.preflight import connected, look
    from opsctl.errors import UnfitError
    from opsctl.runs.journal import Journal
    from opsctl.serving.doctor import Check, Verdict

    try:
        production = loaded.only_production(name)
    except UnfitError as error:
        return (Check("production", Verdict.STOP, error.message, error.hint or ""),)
    others = (service for service in loaded.services_of(name) if service != production)
    with Journal.open() as journal, connected(loaded, name) as host:
        seen = look(host, (production, *others), journal, kill_foreign=kill_foreign)
    judged = {check.reason for check in seen.checks if check.verdict is Verdict.STOP}
    more = [
        Check("a run", Verdict.STOP, f"{error.message}{f' ({error.seen})' if error.seen else ''}", error.hint or "")
        for error in (*seen.facts.refusals, *_unplanned(definition, seen.facts))
        if not any(reason in error.message for reason in judged)
    ]
    return (*seen.checks, *more)


def _unplanned(definition: Definition | None, facts: HostFacts) -> Sequence[OpsctlError]:
    """Return why the host cannot do what a playbook asks of it, beside what is wrong with the host itself."""
    from opsctl.plan import plan

    if definition is None or facts.host not in definition.hosts:
        return ()
    made = plan(definition.playbook.by_host, definition.inventory, {facts.host: facts})
    return next(host for host in made.hosts if host.host == facts.host).refusals[len(facts.refusals) :]


def _print_json(seen: Mapping[str, Sequence[Check]]) -> None:
    import json
    from dataclasses import asdict

    from opsctl.serving.doctor import worst

    hosts = [
        {"host": name, "verdict": worst(checks), "checks": [asdict(check) for check in checks]}
        for name, checks in seen.items()
    ]
    print(json.dumps({"hosts": hosts}, indent=2))


def _print_lines(seen: Mapping[str, Sequence[Check]]) -> None:
    """Print a table a host: the sign says the verdict without its colour, too."""
    from rich.table import Table
    from rich.text import Text

    from opsctl.commands.terminal import Terminal
    from opsctl.serving.doctor import worst

    console = Terminal(highlight=False)
    for name, checks in seen.items():
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for check in checks:
            what = Text.assemble((check.name, "bold"), (f": {check.reason}", "bold red" if check.alarming else ""))
            if check.hint:
                what.append(f"\n→ {check.hint}", style="dim")
            table.add_row(
                Text(
                    f"{_SIGNS[check.verdict]} {check.verdict}",
                    style="bold red" if check.alarming else _COLOURS[check.verdict],
                ),
                what,
            )
        verdict = worst(checks)
        counts = ", ".join(
            f"{number} {one}" for one in _SIGNS if (number := sum(check.verdict == one for check in checks))
        )
        console.print(Text(name, style="bold"))
        console.print(table)
        words = {
            "stop": "not fit",
            "warning": "fit, with warnings",
            "unknown": "fit, as far as can be seen",
            "ok": "fit",
        }
        console.print(Text(f"{name} is {words[verdict]}: {counts}", style=_COLOURS[verdict]))

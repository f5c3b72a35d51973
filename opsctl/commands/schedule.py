"""``opsctl schedule``: playbooks at night, by systemd timers."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from opsctl.schedule.ledger import Ledger
    from opsctl.schedule.plans import Schedule

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


def _ledger() -> Ledger:
    from opsctl.runs.journal import state_home
    from opsctl.schedule.ledger import Ledger

    return Ledger(state_home())


@app.command("add")
def add(
    playbook: Annotated[str, typer.Argument(help="Playbook: a file, sought here and then in playbooks/.")],
    at: Annotated[
        str | None, typer.Option("--at", help='Time: 02:30, "Sun 03:00", or an OnCalendar= expression.')
    ] = None,
    every: Annotated[
        str | None, typer.Option("--every", help="day, weekday, week, month, mon,thu; or a duration such as 6h.")
    ] = None,
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")] = Path("inventory.yml"),
    var: Annotated[list[str] | None, typer.Option("--var", help="Override a var: NAME=VALUE. May be repeated.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Run it on this host or group instead.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name; default: the playbook's.")] = None,
    scope: Annotated[str | None, typer.Option("--scope", help="system (default for root) or user.")] = None,
    when_busy: Annotated[
        str, typer.Option("--when-busy", help="When another scheduled run is going on: skip or queue.")
    ] = "skip",
    random_delay: Annotated[str, typer.Option("--random-delay", help="Spread of the start, such as 10m.")] = "0s",
    persistent: Annotated[
        bool, typer.Option(help="Run once when the machine comes up after it was off at the time.")
    ] = True,
    accuracy: Annotated[str, typer.Option("--accuracy", hidden=True)] = "1m",
    json: Annotated[bool, typer.Option("--json", help="Write the schedule as one JSON document.")] = False,
) -> None:
    """Run a playbook by a timer of this machine's systemd. The playbook and inventory are checked first.

    [bold]Examples[/bold]

      opsctl schedule add nightly-snapshot.yml --at 02:30 --random-delay 10m

      opsctl schedule add weekly-profile.yml --at "Sun 03:00" --when-busy queue
    """
    from opsctl.schedule import controller
    from opsctl.schedule.plans import Schedule, read_time

    calendar, interval = read_time(at, every)
    if calendar:
        calendar = controller.normalised(calendar)
    ledger = _ledger()
    schedule = Schedule.model_validate(
        {
            **_what(playbook, inventory, name),
            "host": host or "",
            "variables": tuple(var or ()),
            "calendar": calendar,
            "interval": interval,
            "persistent": persistent,
            "random_delay": _seconds("--random-delay", random_delay),
            "accuracy": _seconds("--accuracy", accuracy),
            "when_busy": _one_of("--when-busy", when_busy, ("skip", "queue")),
            "scope": _one_of("--scope", scope or ("system" if os.geteuid() == 0 else "user"), ("system", "user")),
            "state_home": str(ledger.folder.parents[1]),
        }
    )
    schedule = schedule.model_copy(update=_of_the_hosts(schedule, ledger))
    controller.add(schedule, ledger)
    _show_one(schedule, ledger, json=json)


def _what(playbook: str, inventory: Path, name: str | None) -> dict[str, Any]:
    """Return a schedule's fields about what it runs, and as whom."""
    import getpass

    from opsctl.playbook.loading import find_playbook
    from opsctl.schedule.plans import checked_name, name_for

    found = find_playbook(playbook)
    return {
        "name": checked_name(name) if name else name_for(found),
        "playbook": str(found.resolve()),
        "inventory": str(inventory.resolve()),
        "user": getpass.getuser(),
        "folder": str(Path.cwd()),
        "python": sys.executable,
        "path": os.environ.get("PATH", ""),
    }


def _of_the_hosts(schedule: Schedule, ledger: Ledger) -> dict[str, Any]:
    """Check the playbook and the inventory as the run will read them; return a schedule's fields about the hosts.

    Raises DefinitionError and UnfitError: better now than at half past two.
    """
    from opsctl.campaign.definition import RunRequest, read_definition

    request = RunRequest(ledger.playbook_of(schedule), Path(schedule.inventory), schedule.variables)
    hosts = read_definition(request).inventory.inventory.hosts
    files = (path for entry in hosts.values() for path in (entry.identity_file, entry.known_hosts) if path)
    return {
        "local_hosts": any(entry.transport == "local" for entry in hosts.values()),
        "keys": tuple(sorted(set(files))),
    }


def _seconds(option: str, text: str) -> float:
    from opsctl.errors import UnfitError
    from opsctl.quantities import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UnfitError(f"{option}: {error}") from None


def _one_of(option: str, word: str, words: tuple[str, ...]) -> str:
    from opsctl.errors import UnfitError

    if word not in words:
        raise UnfitError(f"{option} {word!r}", wanted=" or ".join(words))
    return word


def _document(schedule: Schedule, ledger: Ledger) -> dict[str, Any]:
    """Return what there is to say of a schedule."""
    from datetime import UTC, datetime

    from opsctl.schedule import controller
    from opsctl.schedule.firing import missed

    seen = controller.state(schedule.timer, schedule.service, schedule.scope)
    entries = ledger.entries(schedule.name)
    ends = [entry for entry in entries if entry.event in {"ended", "skipped"}]
    gone = missed(schedule, entries, datetime.now(UTC)) if not seen.active else []
    return {
        "name": schedule.name,
        "playbook": schedule.playbook,
        "inventory": schedule.inventory,
        "when": schedule.when,
        "scope": schedule.scope,
        "timer": schedule.timer,
        "installed": seen.loaded,
        "active": seen.active,
        "next": seen.next,
        "last": seen.last,
        "last_outcome": ends[-1].message if ends else None,
        "last_exit_code": ends[-1].exit_code if ends else None,
        "missed": [*(time for entry in entries for time in entry.missed), *gone],
    }


def _show_one(schedule: Schedule, ledger: Ledger, *, json: bool) -> None:
    document = _document(schedule, ledger)
    if json:
        print(jsonlib.dumps(document, indent=2))
        return
    print(f"{schedule.name}: {schedule.when}, next {document['next'] or 'not known'} ({schedule.timer})")


@app.command("list")
def list_(json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False) -> None:
    """List schedules: when each runs next, how the last run ended, and what was missed.

    [bold]Examples[/bold]

      opsctl schedule list

      opsctl schedule list --json
    """
    ledger = _ledger()
    documents = [_document(ledger.load(name), ledger) for name in ledger.names()]
    if json:
        print(jsonlib.dumps({"schedules": documents}, indent=2))
        return
    from rich.markup import escape
    from rich.table import Table

    from opsctl.commands.terminal import Terminal

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "when", "next", "last", "outcome", "missed"):
        table.add_column(heading, overflow="fold")
    for found in documents:
        state = found["next"] or ("not known" if found["active"] else "[red]timer is not active[/]")
        outcome = escape(found["last_outcome"] or "never ran")
        columns = (
            found["name"],
            escape(found["when"]),
            state,
            found["last"] or "–",
            outcome,
            str(len(found["missed"])),
        )
        table.add_row(*columns)
    Terminal().print(table if documents else "no schedules yet: opsctl schedule add PLAYBOOK --at 02:30")


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(help="Name of the schedule.")]) -> None:
    """Take a schedule's timer and service away. A run that is going on is left to end; its records stay.

    [bold]Examples[/bold]

      opsctl schedule remove nightly-snapshot
    """
    from opsctl.schedule import controller

    ledger = _ledger()
    schedule = ledger.load(name)
    controller.uninstall(schedule.timer, schedule.service, schedule.scope)
    ledger.remove(name)
    print(f"{name}: removed")


@app.command("logs")
def logs(
    name: Annotated[str, typer.Argument(help="Name of the schedule.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines of the service's journal.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Write the starts as one JSON document.")] = False,
) -> None:
    """Show what became of a schedule's starts, and the last lines that its service wrote.

    [bold]Examples[/bold]

      opsctl schedule logs nightly-snapshot -n 200
    """
    from opsctl.schedule import controller

    ledger = _ledger()
    schedule = ledger.load(name)
    entries = ledger.entries(name)
    if json:
        document = {"name": name, "entries": [entry.model_dump(exclude_none=True) for entry in entries]}
        print(jsonlib.dumps(document, indent=2))
        return
    for entry in entries[-20:]:
        print(f"{entry.time}  {entry.event:8} {entry.message}")
    print(f"\n{schedule.service}:")
    print(controller.journal_lines(schedule.service, schedule.scope, lines), end="")


@app.command("fire", hidden=True)
def fire(name: str) -> None:
    """Carry one start out: what the service runs."""
    from opsctl.schedule import firing

    print(firing.fire(name, _ledger()), flush=True)


@app.command("ended", hidden=True)
def ended(name: str) -> None:
    """Write down how a start ended: what the service runs last."""
    from opsctl.schedule import firing

    firing.ended(name, _ledger(), dict(os.environ))

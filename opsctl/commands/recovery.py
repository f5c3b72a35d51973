"""``opsctl resume``, ``opsctl rollback``, ``opsctl collect``: production back, and runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.commands.run import conclude, open_sinks

if TYPE_CHECKING:
    from opsctl.recovery.rollback import RolledBack


def resume(
    run: Annotated[str | None, typer.Argument(help="Run, or its beginning; default: the newest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write events as JSON Lines.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")] = False,
) -> None:
    """Go on with a run whose controller died or lost its link.

    What is verified and unchanged is skipped; a stage that still runs on the host is re-attached to. Where the
    guard has restored production meanwhile, the phase starts anew.

    [bold]Examples[/bold]

      opsctl resume

      opsctl resume 20261201-0245
    """
    from opsctl.recovery.resume import resume as go_on
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import find_run

    with Journal.open() as journal:
        found = find_run(journal, run)
        sinks = open_sinks(journal, found, as_json=json, plain=plain)
        code = go_on(found, journal, sinks)
        conclude(journal, found, sinks, as_json=json)
    raise typer.Exit(int(code))


def rollback(
    target: Annotated[str, typer.Argument(help="Host or group of the inventory.")],
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="Inventory.")] = Path("inventory.yml"),
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Restore and verify production of a host, from any machine.

    Needs no journal: it asks the host. Whoever holds the host is fenced off first. May be repeated.

    [bold]Exit codes[/bold]: 0 production serves, verified · 2 not fit · 3 PRODUCTION NOT VERIFIED.

    [bold]Examples[/bold]

      opsctl rollback kimi

      opsctl rollback fleet -i inventory.yml --json
    """
    import json as jsonlib
    import sys

    from opsctl.campaign.preflight import connected
    from opsctl.commands.output import say_error, tell
    from opsctl.errors import ExitCode, OpsctlError, as_defect
    from opsctl.playbook.inventory import load_inventory
    from opsctl.recovery.rollback import roll_back

    loaded = load_inventory(inventory)
    hosts = {name: loaded.only_production(name) for name in loaded.hosts_of(target)}
    documents, code = [], ExitCode.VERIFIED
    for name, production in hosts.items():
        try:
            with connected(loaded, name) as host:
                done = roll_back(host, production, lambda line, name=name: tell(f"{name}: {line}"))  # type: ignore[misc]
            code = code if done.evidence else ExitCode.PRODUCTION_NOT_VERIFIED
            documents.append(done.document())
            if done.evidence:
                _note(done)
        except Exception as caught:  # noqa: BLE001 - whatever it is: production was not seen to serve
            error = caught if isinstance(caught, OpsctlError) else as_defect(caught)
            code = ExitCode.PRODUCTION_NOT_VERIFIED
            say_error(error, as_json=False)
            tell(f"PRODUCTION NOT VERIFIED: {production.name} on {name}")
            documents.append({"host": name, "service": production.name, "verified": False, "error": error.lines()})
    if json:
        tell(jsonlib.dumps({"exit_code": int(code), "hosts": documents}, indent=2), sys.stdout)
    raise typer.Exit(int(code))


def _note(done: RolledBack) -> None:
    """Record a rollback where this controller has a journal: it is done, whether or not that can be written down."""
    from contextlib import suppress

    from opsctl.errors import OpsctlError
    from opsctl.recovery.rollback import note_in_journal
    from opsctl.runs.journal import Journal

    with suppress(OpsctlError, OSError), Journal.open() as journal:
        note_in_journal(done, journal)


def collect(
    run: Annotated[str | None, typer.Argument(help="Run, or its beginning; default: the newest.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON document.")] = False,
) -> None:
    """Fetch results that only the host has.

    For steps that ended after their controller was gone: their files are fetched and judged as if it had been
    there, and the report is written anew. Changes nothing on the host.

    [bold]Examples[/bold]

      opsctl collect 20261201-0245
    """
    import json as jsonlib

    from opsctl.campaign.definition import RunRequest, read_definition
    from opsctl.campaign.preflight import connected
    from opsctl.campaign.reporting import write_reports
    from opsctl.recovery.collect import collect_run
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import find_run

    with Journal.open() as journal:
        found = find_run(journal, run)
        row = journal.query("SELECT definition FROM runs WHERE run=?", found)[0]
        definition = read_definition(RunRequest.from_document(jsonlib.loads(row["definition"])))
        changed: dict[str, list[str]] = {}
        for name in definition.hosts:
            with connected(definition.inventory, name) as host:
                changed[name] = collect_run(journal, found, host, many_hosts=len(definition.hosts) > 1)
        written = write_reports(journal, found)
    if json:
        print(jsonlib.dumps({"run": found, "changed": changed, "reports": [str(path) for path in written]}))
        return
    for name, steps in changed.items():
        print(f"{name}: {', '.join(steps) if steps else 'nothing new'}")
    for path in written:
        print(f"report: {path}")

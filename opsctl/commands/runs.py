"""``opsctl runs``."""

from __future__ import annotations

from typing import Annotated

import typer

from opsctl.commands.prune import prune

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")
app.command("prune")(prune)


@app.callback()
def runs(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Write the runs as one JSON document.")] = False,
) -> None:
    """List runs, the newest first; prune the artifacts of old ones.

    [bold]Examples[/bold]

      opsctl runs

      opsctl runs --json
    """
    if context.invoked_subcommand is not None:
        return
    import json as jsonlib

    from rich.table import Table

    from opsctl.commands.terminal import Terminal
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import list_runs
    from opsctl.terminal.run_view import elapsed

    with Journal.open() as journal:
        found = list_runs(journal)
    if json:
        print(jsonlib.dumps([run.model_dump() for run in found], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "playbook", "hosts", "took", "outcome"):
        table.add_column(heading, overflow="fold")
    for run in found:
        style = {"verified": "green", "running": "cyan", "inconclusive": "yellow"}.get(run.outcome, "red")
        took = elapsed(run.started, run.ended) if run.ended or run.outcome == "running" else ""
        table.add_row(run.run, run.playbook, ", ".join(run.hosts), took, f"[{style}]{run.outcome}[/]")
    Terminal().print(table if found else "no runs yet: opsctl run PLAYBOOK")

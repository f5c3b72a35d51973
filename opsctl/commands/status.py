"""``opsctl status``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from opsctl.record import RunRecord
    from opsctl.runs.journal import Journal


def status(
    run: Annotated[str | None, typer.Argument(help="Run, or its beginning; default: the newest.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until it ends.")] = False,
    cells: Annotated[bool, typer.Option("--cells", help="Also every cell, with its state and reason.")] = False,
    actions: Annotated[bool, typer.Option("--actions", help="Also every action of the plan, with its state.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the run as one JSON document.")] = False,
) -> None:
    """Show a run: every step and cell, who holds the host, is production back.

    A run whose controller died is shown as such, never as running, and its hosts are asked what is so now.

    [bold]Examples[/bold]

      opsctl status

      opsctl status 20261201-0245 --watch
    """
    import json as jsonlib

    from opsctl.recovery.host_outcome import look_now
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import WITHOUT_CONTROLLER, find_run, load_run

    with Journal.open() as journal:
        found = find_run(journal, run)
        record = load_run(journal, found)
        if json:
            document = record.model_dump(mode="json")
            if record.outcome in WITHOUT_CONTROLLER:
                now = look_now(journal, found).items()
                document["now"] = {host: {"serving": serving, "seen": words} for host, (words, serving) in now}
            print(jsonlib.dumps(document, indent=2))
            return
        _show(journal, found, record, watch=watch, cells=cells, actions=actions)


def _show(journal: Journal, run: str, record: RunRecord, *, watch: bool, cells: bool, actions: bool) -> None:
    """Draw the run; where its controller died, ask its hosts what is so now."""
    import time

    from rich.live import Live

    from opsctl.commands.terminal import Terminal
    from opsctl.recovery.host_outcome import look_now
    from opsctl.runs.live_file import read_live
    from opsctl.runs.reading import WITHOUT_CONTROLLER, load_run
    from opsctl.terminal.run_view import action_table, cell_table, draw

    def view() -> RenderableType:
        ephemeral = read_live(journal.run_folder(run))
        return (
            draw(record, ephemeral.progress, ephemeral.leases) if record.outcome == "running" else draw(record, {}, {})
        )

    console = Terminal()
    if watch and record.outcome == "running":
        with Live(view(), console=console, refresh_per_second=2) as live:
            while record.outcome == "running":
                time.sleep(0.5)
                record = load_run(journal, run, events=False)
                live.update(view())
    else:
        console.print(view())
    if cells:
        console.print(cell_table(record))
    if actions:
        console.print(action_table(record))
    if record.outcome in WITHOUT_CONTROLLER:
        for host, (words, serving) in look_now(journal, run).items():
            console.print(f"now: {host}: {words}", style="green" if serving else "bold red", markup=False)
        console.print(f"next: opsctl resume {run}", style="yellow")

"""``opsctl status``."""

from __future__ import annotations

from typing import Annotated

import typer


def status(
    run: Annotated[str | None, typer.Argument(help="Run, or its beginning; default: the newest.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until it ends.")] = False,
    cells: Annotated[bool, typer.Option("--cells", help="Also every cell, with its state and reason.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the run as one JSON document.")] = False,
) -> None:
    """Show a run: every step and cell, who holds the host, is production back.

    A run whose controller died is shown as such, never as running.

    [bold]Examples[/bold]

      opsctl status

      opsctl status 20261201-0245 --watch
    """
    from rich.console import Console
    from rich.live import Live

    from opsctl.campaign.journal import Journal
    from opsctl.campaign.picture import cell_table, draw
    from opsctl.campaign.reading import find_run, load_run

    with Journal.open() as journal:
        found = find_run(journal, run)
        record = load_run(journal, found)
        if json:
            print(record.model_dump_json(indent=2))
            return
        console = Console()
        if watch and record.outcome == "running":
            import time

            with Live(draw(record, {}, {}), console=console, refresh_per_second=2) as live:
                while record.outcome == "running":
                    time.sleep(0.5)
                    record = load_run(journal, found, events=False)
                    live.update(draw(record, {}, {}))
        else:
            console.print(draw(record, {}, {}))
        if cells:
            console.print(cell_table(record))
        if record.outcome == "controller died":
            console.print(
                f"its controller died; the guard restores production. next: opsctl resume {found}", style="yellow"
            )

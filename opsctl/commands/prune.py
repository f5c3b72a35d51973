"""``opsctl runs prune``: free the space of old runs."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer


def prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Leave the newest so many runs alone.")],
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Only runs that ended longer ago, such as 30d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write what went as one JSON document.")] = False,
) -> None:
    """Remove traces and logs of old runs. Figures, analyses and reports stay; so does every run that needs a look.

    [bold]Examples[/bold]

      opsctl runs prune --keep 20 --dry-run

      opsctl runs prune --keep 5 --older-than 30d
    """
    from datetime import datetime

    from opsctl.errors import OpsctlError
    from opsctl.quantities import format_size
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import list_runs, load_run
    from opsctl.snapshots import record_run
    from opsctl.snapshots.choosing import since
    from opsctl.snapshots.pruning import prunable
    from opsctl.snapshots.pruning import prune as prune_folder

    limit = since(older_than)
    before = datetime.fromisoformat(limit) if limit else None
    freed = []
    with Journal.open() as journal:
        for summary in prunable(list_runs(journal), keep=keep, before=before):
            if not dry_run:
                # Its figures are in the history before anything goes.
                record_run(load_run(journal, summary.run), journal.folder)
            folder = journal.run_folder(summary.run)
            try:
                freed.append(prune_folder(summary.run, folder, really=not dry_run))
            except OSError as error:
                raise OpsctlError(
                    f"run {summary.run} could not be pruned", seen=error.strerror or str(error), where=str(folder)
                ) from error
    freed = [item for item in freed if item.files]
    total = sum(item.size for item in freed)
    if json:
        print(jsonlib.dumps({"dry_run": dry_run, "freed_bytes": total, "runs": [asdict(item) for item in freed]}))
        return
    for item in freed:
        print(f"{item.run}: {item.files} files, {format_size(item.size)}")
    print(f"{'would free' if dry_run else 'freed'} {format_size(total)} of {len(freed)} runs")

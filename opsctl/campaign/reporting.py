"""Writing a run's reports and its snapshot once it ended. A report that fails never changes how the run ended."""

from __future__ import annotations

from pathlib import Path

from opsctl.campaign.journal import Journal
from opsctl.campaign.reading import load_run
from opsctl.record import RunRecord


def write_reports(journal: Journal, run: str) -> tuple[Path, ...]:
    """Write report.md and report.html into the run's folder; return what was written.

    A run that touched nothing has no report.
    """
    from opsctl.report import render_html, render_markdown  # noqa: PLC0415 - plotting is heavy

    record = load_run(journal, run)
    if not any(phase.started for phase in record.phases):
        return ()
    previous = previous_run(journal, record)
    folder = journal.run_folder(run)
    written = []
    for name, render in (("report.md", render_markdown), ("report.html", render_html)):
        path = folder / name
        path.write_text(render(record, previous), encoding="utf-8")
        written.append(path)
    return tuple(written)


def previous_run(journal: Journal, record: RunRecord) -> RunRecord | None:
    """Return the last verified run of the same playbook on the same hosts before this one."""
    rows = journal.query(
        "SELECT run FROM runs WHERE playbook=? AND started<? AND outcome='verified' ORDER BY started DESC LIMIT 10",
        record.playbook,
        record.started,
    )
    for row in rows:
        earlier = load_run(journal, row["run"])
        if earlier.hosts == record.hosts:
            return earlier
    return None

"""Work after a run: writes its reports, adds it to the history, sends notifications.

None of it changes how the run ended: what fails here is a line under the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.campaign.definition import RunRequest, read_definition
from opsctl.errors import OpsctlError, as_defect
from opsctl.record import RunRecord
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run


@dataclass
class Aftermath:
    """What was written once a run ended, what it found, and what could not be done."""

    finding: str = ""
    written: list[Path] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def conclude_run(journal: Journal, run: str) -> Aftermath:
    """Write the reports, put the figures into the history, and notify."""
    aftermath = Aftermath()
    record = load_run(journal, run)
    if any(phase.started for phase in record.phases):
        _attempt(aftermath, "the report", lambda: _report(journal, record, aftermath))
        _attempt(aftermath, "the history", lambda: _remember(journal, record, aftermath))
    _attempt(aftermath, "the notification", lambda: _notify(journal, record, aftermath))
    return aftermath


def write_reports(journal: Journal, run: str) -> tuple[Path, ...]:
    """Write report.md and report.html into the run's folder; return what was written.

    A run that touched nothing has no report.
    """
    record = load_run(journal, run)
    aftermath = Aftermath()
    if any(phase.started for phase in record.phases):
        _report(journal, record, aftermath)
    return tuple(aftermath.written)


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


def _attempt(aftermath: Aftermath, what: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - how the run ended stands already, and must stay true
        known = error if isinstance(error, OpsctlError | OSError) else as_defect(error)
        aftermath.troubles.append(f"{what} could not be made: {known}")


def _report(journal: Journal, record: RunRecord, aftermath: Aftermath) -> None:
    from opsctl.report import finding, render_html, render_markdown  # noqa: PLC0415 - plotting is heavy

    aftermath.finding = finding(record).sentence
    previous = previous_run(journal, record)
    for name, render in (("report.md", render_markdown), ("report.html", render_html)):
        path = journal.run_folder(record.run) / name
        path.write_text(render(record, previous), encoding="utf-8")
        aftermath.written.append(path)


def _remember(journal: Journal, record: RunRecord, aftermath: Aftermath) -> None:
    from opsctl.snapshots import FILE, History, record_run  # noqa: PLC0415
    from opsctl.snapshots.alarms import found_with  # noqa: PLC0415

    if record_run(record, journal.folder):
        with History(journal.folder / FILE) as history:
            aftermath.alarms.extend(str(alarm) for alarm in found_with(history, record.run) if alarm.worse is not False)


def _notify(journal: Journal, record: RunRecord, aftermath: Aftermath) -> None:
    from opsctl.notifications import after_run  # noqa: PLC0415

    targets = _targets(journal, record.run)
    aftermath.troubles += after_run(record, targets, reports=aftermath.written, alarms=aftermath.alarms)


def _targets(journal: Journal, run: str) -> list[str]:
    """Return whom the inventory and the playbook name; both are read again, since addresses are not stored."""
    row = journal.query("SELECT definition FROM runs WHERE run=?", run)[0]
    definition = read_definition(RunRequest.from_document(json.loads(row["definition"])))
    playbook = next(iter(definition.playbook.by_host.values()))
    return list(dict.fromkeys((*definition.inventory.inventory.notify, *playbook.notify)))

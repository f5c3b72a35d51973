"""Reading the journal back: a run as a RunRecord, and the list of runs."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from opsctl.errors import JournalError
from opsctl.record import (
    REFUSED,
    ActionRecord,
    EventRecord,
    HoldRecord,
    LoadRecord,
    PhaseRecord,
    ProductionRecord,
    RunRecord,
    Standing,
    StepRecord,
)
from opsctl.results import Evidence, State, StepResult
from opsctl.runs import durations
from opsctl.runs.journal import Journal
from opsctl.runs.verdict import endings

CONTROLLER_DIED = "controller died"
LEFT = "left"
"""The outcome of a run that a person left by a second signal, and the file in its folder that says so."""
WITHOUT_CONTROLLER = frozenset({CONTROLLER_DIED, LEFT})
"""Outcomes of runs that have no end and no controller: only their hosts know what is so."""


class RunSummary(BaseModel):
    """One line of `opsctl runs`."""

    run: str
    playbook: str
    hosts: tuple[str, ...]
    started: str
    ended: str | None
    outcome: str
    exit_code: int | None
    reason: str


def outcome_of(journal: Journal, row: sqlite3.Row) -> str:
    """Return a run's outcome; one that stands as running without a controller was left, or its controller died."""
    if row["outcome"] == "running" and not journal.controller_lives(row["run"]):
        return LEFT if (journal.run_folder(row["run"]) / LEFT).exists() else CONTROLLER_DIED
    return str(row["outcome"])


def reason_of(journal: Journal, row: sqlite3.Row) -> str:
    """Return why a run ended as it did; for one without an end, that it was left by hand, where it was."""
    if outcome_of(journal, row) == LEFT:
        return (journal.run_folder(row["run"]) / LEFT).read_text().strip()
    return str(row["reason"])


def list_runs(journal: Journal) -> list[RunSummary]:
    """Return every run, the newest first."""
    hosts: dict[str, list[str]] = {}
    for row in journal.query("SELECT run, host FROM hosts ORDER BY host"):
        hosts.setdefault(row["run"], []).append(row["host"])
    return [
        RunSummary(
            run=row["run"],
            playbook=row["playbook"],
            hosts=tuple(hosts.get(row["run"], ())),
            started=row["started"],
            ended=row["ended"],
            outcome=outcome_of(journal, row),
            exit_code=row["exit_code"],
            reason=reason_of(journal, row),
        )
        for row in journal.query("SELECT * FROM runs ORDER BY started DESC, rowid DESC")
    ]


def find_run(journal: Journal, wanted: str | None) -> str:
    """Return the id of a run: exact, by an unambiguous beginning, or for None the one that matters most.

    That is the newest at work, else the newest that touched a host, else the newest: a run that was merely
    refused must not hide one that has production down. Raises JournalError.
    """
    rows = journal.query("SELECT run, outcome FROM runs ORDER BY started DESC, rowid DESC")
    runs = [str(row["run"]) for row in rows]
    if not runs:
        raise JournalError("no run was ever made here", where=str(journal.folder), hint="opsctl run PLAYBOOK")
    if wanted is None:
        running = [str(row["run"]) for row in rows if row["outcome"] == "running"]
        at_work = [run for run in running if journal.controller_lives(run)]
        touching = [str(row["run"]) for row in rows if row["outcome"] not in REFUSED]
        return [*at_work, *touching, *runs][0]
    matches = [run for run in runs if run.startswith(wanted)]
    if wanted in matches:
        return wanted
    if len(matches) == 1:
        return matches[0]
    raise JournalError(
        f"no run {wanted!r}" if not matches else f"{wanted!r} is the beginning of {len(matches)} runs",
        wanted="the id of a run",
        seen=", ".join(matches[:5] or runs[:5]),
        where=str(journal.folder),
        hint="opsctl runs",
    )


def left_behind(journal: Journal, host: str) -> str | None:
    """Return the newest run that took a host's production down, has no end and no controller; None where none has."""
    rows = journal.query(
        "SELECT run FROM hosts JOIN runs USING (run) WHERE host=? AND outcome='running' AND down_since IS NOT NULL"
        " AND NOT verified ORDER BY started DESC",
        host,
    )
    return next((str(row["run"]) for row in rows if not journal.controller_lives(row["run"])), None)


def load_run(journal: Journal, run: str, *, events: bool = True) -> RunRecord:
    """Return a complete run, or one without its events for a view model. Raises JournalError when there is none."""
    rows = journal.query("SELECT * FROM runs WHERE run=?", run)
    if not rows:
        raise JournalError(f"no run {run!r}", where=str(journal.folder), hint="opsctl runs")
    row = rows[0]
    hosts = journal.query("SELECT * FROM hosts WHERE run=? ORDER BY host", run)
    outcome = outcome_of(journal, row)
    last_seen = _last_event(journal, run) if outcome in WITHOUT_CONTROLLER else None
    standing = {ending.host: ending.standing for ending in endings(journal, run)}
    if outcome == "running":
        standing = {name: one if one is Standing.VERIFIED else Standing.AT_WORK for name, one in standing.items()}
    return RunRecord(
        run=run,
        playbook=row["playbook"],
        playbook_file=row["file"],
        hosts=tuple(host["host"] for host in hosts),
        controller=row["controller"],
        opsctl_version=row["version"],
        started=row["started"],
        ended=row["ended"],
        outcome=outcome,
        exit_code=row["exit_code"],
        reason=reason_of(journal, row),
        phases=_phases(journal, run),
        actions=_actions(journal, run),
        loads=_loads(journal, run),
        holds=_holds(journal, run),
        production=tuple(_production(host, standing[host["host"]], last_seen) for host in hosts),
        environment={host["host"]: json.loads(host["environment"]) for host in hosts},
        variants={
            variant["service"]: tuple(json.loads(variant["differences"]))
            for variant in journal.query("SELECT * FROM variants WHERE run=? ORDER BY service", run)
        },
        events=_events(journal, run) if events else (),
        folder=str(journal.run_folder(run)),
    )


def _actions(journal: Journal, run: str) -> tuple[ActionRecord, ...]:
    return tuple(
        ActionRecord(
            host=row["host"],
            plan=row["plan"],
            id=row["id"],
            kind=row["kind"],
            branch=row["branch"],
            phase=row["phase"],
            sentence=row["sentence"],
            state=State(row["state"]),
            reason=row["reason"],
            attempts=row["attempts"],
            started=row["started"],
            ended=row["ended"],
            evidence=tuple(Evidence.model_validate(item) for item in json.loads(row["evidence"])),
        )
        for row in journal.query("SELECT * FROM actions WHERE run=? ORDER BY host, plan, ordinal", run)
    )


def _usual(journal: Journal, load: sqlite3.Row) -> float | None:
    before = durations.loads(journal, load["host"], before=load["id"]).get(load["service"])
    return before.seconds if before else None


def _loads(journal: Journal, run: str) -> tuple[LoadRecord, ...]:
    return tuple(
        LoadRecord(
            service=load["service"],
            unit=load["unit"],
            version=load["version"],
            started=load["started"],
            ready=load["ready"],
            seconds=load["seconds"],
            phases=json.loads(load["phases"]),
            usual=_usual(journal, load),
            attempt=load["attempt"],
            outcome=load["outcome"],
        )
        for load in journal.query("SELECT * FROM loads WHERE run=? ORDER BY id", run)
    )


def _holds(journal: Journal, run: str) -> tuple[HoldRecord, ...]:
    return tuple(
        HoldRecord(
            host=hold["host"], holder=hold["holder"], role=hold["role"], started=hold["started"], ended=hold["ended"]
        )
        for hold in journal.query("SELECT * FROM holds WHERE run=? ORDER BY id", run)
    )


def _events(journal: Journal, run: str) -> tuple[EventRecord, ...]:
    return tuple(
        EventRecord(
            time=event["time"],
            event=event["event"],
            host=event["host"],
            phase=event["phase"],
            step=event["step"],
            message=event["message"],
            data=json.loads(event["data"]),
        )
        for event in journal.query("SELECT * FROM events WHERE run=? ORDER BY id", run)
    )


def _last_event(journal: Journal, run: str) -> str | None:
    (row,) = journal.query("SELECT MAX(time) AS last FROM events WHERE run=?", run)
    return str(row["last"]) if row["last"] else None


def _phases(journal: Journal, run: str) -> tuple[PhaseRecord, ...]:
    steps: dict[tuple[str, int], list[StepRecord]] = {}
    for row in journal.query("SELECT * FROM steps WHERE run=? ORDER BY host, ordinal, position", run):
        steps.setdefault((row["host"], row["ordinal"]), []).append(
            StepRecord(
                id=row["id"],
                stage=row["stage"],
                name=row["name"],
                state=State(row["state"]),
                options=json.loads(row["options"]),
                started=row["started"],
                ended=row["ended"],
                result=StepResult.model_validate_json(row["result"]) if row["result"] else None,
            ),
        )
    return tuple(
        PhaseRecord(
            name=row["name"],
            serve=row["serve"],
            host=row["host"],
            state=State(row["state"]),
            reason=row["reason"],
            started=row["started"],
            ended=row["ended"],
            round=row["round"],
            steps=tuple(steps.get((row["host"], row["ordinal"]), ())),
        )
        for row in journal.query("SELECT * FROM phases WHERE run=? ORDER BY host, ordinal", run)
    )


def _production(host: sqlite3.Row, standing: Standing, last_seen: str | None) -> ProductionRecord:
    down = None
    if host["down_since"] and host["back_at"]:
        down = (datetime.fromisoformat(host["back_at"]) - datetime.fromisoformat(host["down_since"])).total_seconds()
    evidence: list[dict[str, Any]] = json.loads(host["evidence"])
    return ProductionRecord(
        host=host["host"],
        service=host["production"],
        unit=host["unit"],
        as_found=host["as_found"],
        standing=standing,
        evidence=tuple(Evidence.model_validate(item) for item in evidence),
        down_since=host["down_since"],
        back_at=host["back_at"],
        downtime_seconds=down,
        restored_by=host["restored_by"],
        last_seen=last_seen,
    )

"""Fetching the results that a run left on its hosts, and judging it as if it had just ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.artifacts import collect_folder
from opsctl.campaign.stage_result import Ending, parse_record, with_ending
from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.plan.planner import step_slug
from opsctl.results import Cell, State, StepResult
from opsctl.runs.journal import Journal
from opsctl.stages import STAGES
from opsctl.stages.base import StageContext

_EVERYTHING = ("*",)


def collect_run(journal: Journal, run: str, host: Host, *, many_hosts: bool) -> list[str]:
    """Fetch every step's files from a host; re-judge those that no controller saw to their end.

    Returns the ids of the steps whose verdict changed. A step whose unit still runs is left to ``resume``.
    Raises HostError.
    """
    into = journal.run_folder(run) / (host.name if many_hosts else "")
    changed = []
    rows = journal.query("SELECT * FROM steps WHERE run=? AND host=? ORDER BY ordinal, position", run, host.name)
    for row in rows:
        if row["state"] in {State.VERIFIED, State.PENDING} or not row["unit"]:
            continue
        folder = f"{host.state_dir}/runs/{run}/{step_slug(row['id'])}"
        status = host.systemd().status(row["unit"], deadline=Deadline(limits.CALL, f"status of {row['unit']}"))
        if status.load_state != "not-found" and not status.stopped:
            continue
        collected = collect_folder(host, folder, into / step_slug(row["id"]), _EVERYTHING)
        records = _records(into / step_slug(row["id"]) / "results.jsonl")
        if not records:
            continue
        before = StepResult.model_validate_json(row["result"])
        planned = tuple(Cell(id=cell.id, axes=cell.axes) for cell in before.cells)
        stage = STAGES[row["stage"]]
        options = stage.options.model_validate(json.loads(row["options"]))
        context = StageContext(run=run, step=row["id"], host_name=host.name, host=host.entry, folder=folder)
        judged = stage.judge(options, context, planned, records)
        result = with_ending(judged, Ending(row["unit"], status, records, collected, into))
        journal.step_state(run, host.name, row["ordinal"], row["position"], result.state, result=result, again=True)
        if result.state != row["state"]:
            changed.append(row["id"])
    return changed


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [record for line in lines if (record := parse_record(line)) is not None]

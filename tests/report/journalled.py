"""A RunRecord put into a real journal, the way a run would have written it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel

from opsctl.record import RunRecord
from opsctl.results import State, StepResult
from opsctl.runs.journal import Journal


class Options(BaseModel):
    """Options of a step, as the journal takes them."""

    model_config = {"extra": "allow"}


def store(record: RunRecord, state_folder: Path) -> None:
    """Write a run that ended into the journal of a state folder, its artifacts beside it."""
    with Journal(state_folder) as journal:
        journal.begin_run(
            record.run,
            playbook=record.playbook,
            file=record.playbook_file,
            version=record.opsctl_version,
            definition={},
        )
        for item in record.production:
            journal.host(record.run, item.host, production=item.service, unit=item.unit)
            journal.update_host(
                record.run,
                item.host,
                as_found=item.as_found,
                verified=item.verified,
                evidence=[seen.model_dump() for seen in item.evidence],
                down_since=item.down_since,
                back_at=item.back_at,
                restored_by=item.restored_by,
                environment=record.environment.get(item.host, {}),
            )
        for ordinal, phase in enumerate(record.phases):
            where = (record.run, phase.host, ordinal)
            journal.phase(*where, round_=phase.round, name=phase.name, serve=phase.serve)
            for position, step in enumerate(phase.steps):
                journal.step(
                    *where,
                    position,
                    id_=step.id,
                    stage=step.stage,
                    name=step.name,
                    options=Options(**step.options),
                    hash_="",
                    planned=StepResult(stage=step.stage, state=step.state),
                )
                if step.state not in {State.PENDING, State.SKIPPED}:
                    journal.step_state(*where, position, State.RUNNING)
                if step.state is not State.PENDING:
                    journal.step_state(*where, position, step.state, result=step.result)
            if phase.state not in {State.PENDING, State.SKIPPED}:
                journal.phase_state(*where, State.RUNNING)
            if phase.state is not State.PENDING:
                journal.phase_state(*where, phase.state, phase.reason)
        for service, lines in record.variants.items():
            journal.variant(record.run, service, lines)
        journal.end_run(record.run, outcome=record.outcome, exit_code=record.exit_code or 0, reason=record.reason)
        if Path(record.folder).is_dir():
            shutil.copytree(record.folder, journal.run_folder(record.run), dirs_exist_ok=True)

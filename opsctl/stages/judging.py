"""From a payload's records to a step's result: the same for every stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from opsctl.payload.records import (
    ArtifactRecord,
    CellRecord,
    EndRecord,
    EnvironmentRecord,
    EvidenceRecord,
    read_record,
)
from opsctl.results import Artifact, Cell, Evidence, Figure, State, StepResult, stays_below

_NAMED = 3  # failures that the verdict names; the cells hold them all


def _cell(planned: Cell, said: CellRecord | str) -> Cell:
    """Return a planned cell as the payload's last record of it says; text is why that cannot be read."""
    problem = said if isinstance(said, str) else ""
    if not isinstance(said, str):
        try:
            return planned.model_copy(
                update={
                    "state": State(said.state),
                    "reason": said.reason,
                    "figures": tuple(Figure.model_validate(figure.to_dict()) for figure in said.figures),
                    "detail": {**planned.detail, **said.detail},
                }
            )
        except (ValidationError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
    return planned.model_copy(update={"state": State.FAILED, "reason": f"its record cannot be read: {problem}"})


@dataclass
class _Read:
    """A payload's records by kind; the last of a cell, of an artifact and of the end counts."""

    cells: dict[str, CellRecord | str] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    end: EndRecord | None = None

    def take(self, document: Mapping[str, Any]) -> None:
        """Take one record; one that cannot be read costs its cell, and is nothing else."""
        try:
            record = read_record(document)
        except ValueError as error:
            if document.get("record") == CellRecord.KIND:
                self.cells[str(document.get("id"))] = str(error)
            return
        if isinstance(record, CellRecord):
            self.cells[record.id] = record
        elif isinstance(record, EvidenceRecord):
            self.evidence.append(Evidence(asked=record.asked, observed=record.observed, time=record.time))
        elif isinstance(record, ArtifactRecord) and stays_below(record.path):
            self.artifacts[record.path] = Artifact.model_validate(record.to_dict())
        elif isinstance(record, EnvironmentRecord):
            for key, value in record.environment.items():
                # A step that was taken up again keeps the state of the GPUs before its first start.
                if key != "before" or key not in self.environment:
                    self.environment[key] = value
        elif isinstance(record, EndRecord):
            self.end = record


def _named(cells: Sequence[Cell]) -> str:
    named = "; ".join(f"{cell.id}: {cell.reason}" for cell in cells[:_NAMED])
    return named + (f"; and {len(cells) - _NAMED} more" if len(cells) > _NAMED else "")


def _verdict(cells: Sequence[Cell], end: EndRecord | None, skipped: set[str]) -> tuple[State, str]:
    verified = sum(cell.state is State.VERIFIED for cell in cells)
    failed = [cell for cell in cells if cell.state is State.FAILED]
    doubtful = [cell for cell in cells if cell.state is State.INCONCLUSIVE]
    told = {State.VERIFIED, State.FAILED, State.INCONCLUSIVE}
    missing = [cell for cell in cells if cell.state not in told and cell.id not in skipped]
    counted = f"{verified} of {len(cells) - len(skipped)} cells verified"
    if skipped:
        counted += f", {len(skipped)} do not apply here"
    parts = [counted]
    if failed:
        parts.append(f"{len(failed)} failed ({_named(failed)})")
    if doubtful:
        parts.append(f"{len(doubtful)} inconclusive ({_named(doubtful)})")
    if missing:
        parts.append(f"{len(missing)} did not run")
    if end is None:
        return State.FAILED, f"the payload died before its end record: {', '.join(parts)}"
    said = end.reason
    if end.state == State.SKIPPED and len(skipped) == len(cells):
        return State.VERIFIED, f"does not apply here ({len(cells)} cells): {said}"
    if verified == 0 and not doubtful:
        return State.FAILED, f"{', '.join(parts)}{f': {said}' if said and not failed else ''}"
    if failed or end.state == "failed":
        return State.FAILED, f"{', '.join(parts)}{f': {said}' if not failed else ''}"
    if missing or doubtful or end.state == "inconclusive":
        return State.INCONCLUSIVE, f"{', '.join(parts)}{f': {said}' if said and not doubtful else ''}"
    return State.VERIFIED, ", ".join(parts)


def judge_records(
    stage: str,
    planned: Sequence[Cell],
    records: Sequence[Mapping[str, Any]],
    *,
    profiled: bool = False,
) -> StepResult:
    """Return a step's result, in which every planned cell has a state.

    Verified: the payload reached its end, no cell failed, at least one was verified, and the only others are those
    that do not apply to this machine (skipped by the payload, with a reason); or the payload itself says that nothing
    of the step applies. Failed: a cell failed, none was verified, or the payload died. Inconclusive: it was stopped
    before it had run them all.
    """
    read = _Read()
    for record in records:
        read.take(record)
    end = read.end
    cells, skipped = [], set()
    for cell in planned:
        said = read.cells.get(cell.id)
        now = _cell(cell, said) if said is not None else cell
        if now.state is State.SKIPPED:
            skipped.add(cell.id)
        elif not now.state.final:
            why = "the payload died while it ran" if said is not None and end is None else "did not run"
            told = end.reason if end is not None else ""
            reason = f"{why}{f': {told}' if told else ''}"
            now = now.model_copy(update={"state": State.SKIPPED, "reason": reason})
        cells.append(now)
    state, reason = _verdict(cells, end, skipped)
    found = [str(each) for each in read.environment.get("findings") or ()]
    return StepResult(
        stage=stage,
        state=state,
        reason=reason,
        cells=tuple(cells),
        evidence=tuple(read.evidence),
        artifacts=tuple(read.artifacts.values()),
        environment=read.environment,
        profiled=profiled,
        detail={"findings": found} if found else {},
    )

"""From a payload's records to a step's result: the same for every stage. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from opsctl.results import Artifact, Cell, Evidence, Figure, State, StepResult

_NAMED = 3  # failures that the verdict names; the cells hold them all


def _cell(planned: Cell, record: Mapping[str, Any]) -> Cell:
    """Return a planned cell as the payload's last record of it says."""
    try:
        return planned.model_copy(
            update={
                "state": State(record["state"]),
                "reason": str(record.get("reason", "")),
                "figures": tuple(Figure.model_validate(figure) for figure in record.get("figures", ())),
                "detail": {**planned.detail, **dict(record.get("detail") or {})},
            }
        )
    except (ValidationError, ValueError, KeyError) as error:
        return planned.model_copy(
            update={"state": State.FAILED, "reason": f"its record cannot be read: {type(error).__name__}: {error}"}
        )


def _evidence(records: Iterable[Mapping[str, Any]]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            asked=str(each.get("asked", "")), observed=str(each.get("observed", "")), time=str(each.get("time", ""))
        )
        for each in records
    )


def _artifacts(records: Iterable[Mapping[str, Any]]) -> tuple[Artifact, ...]:
    latest = {
        str(each["path"]): Artifact(
            path=str(each["path"]), size=int(each["size"]), sha256=str(each["sha256"]), kind=str(each.get("kind", ""))
        )
        for each in records
    }
    return tuple(latest.values())


def _environment(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for each in records:
        for key, value in dict(each.get("environment") or {}).items():
            # A step that was taken up again keeps the state of the GPUs before its first start.
            if key != "before" or key not in merged:
                merged[key] = value
    return merged


def _verdict(cells: Sequence[Cell], end: Mapping[str, Any] | None, skipped: set[str]) -> tuple[State, str]:
    verified = sum(cell.state is State.VERIFIED for cell in cells)
    failed = [cell for cell in cells if cell.state is State.FAILED]
    missing = [
        cell for cell in cells if cell.state is not State.VERIFIED and cell not in failed and cell.id not in skipped
    ]
    counted = f"{verified} of {len(cells) - len(skipped)} cells verified"
    if skipped:
        counted += f", {len(skipped)} do not apply here"
    parts = [counted]
    if failed:
        named = "; ".join(f"{cell.id}: {cell.reason}" for cell in failed[:_NAMED])
        more = f"; and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        parts.append(f"{len(failed)} failed ({named}{more})")
    if missing:
        parts.append(f"{len(missing)} did not run")
    if end is None:
        return State.FAILED, f"the payload died before its end record: {', '.join(parts)}"
    said = str(end.get("reason", ""))
    if verified == 0:
        return State.FAILED, f"{', '.join(parts)}{f': {said}' if said and not failed else ''}"
    if failed or end.get("state") == "failed":
        return State.FAILED, f"{', '.join(parts)}{f': {said}' if not failed else ''}"
    if missing or end.get("state") == "inconclusive":
        return State.INCONCLUSIVE, f"{', '.join(parts)}{f': {said}' if said else ''}"
    return State.VERIFIED, ", ".join(parts)


def judge_records(
    stage: str,
    planned: Sequence[Cell],
    records: Sequence[Mapping[str, Any]],
    *,
    profiled: bool = False,
    detail: Mapping[str, Any] | None = None,
) -> StepResult:
    """Return a step's result, in which every planned cell has a state.

    Verified: the payload reached its end, no cell failed, at least one was verified, and the only others are those
    that do not apply to this machine (skipped by the payload, with a reason). Failed: a cell failed, none was
    verified, or the payload died. Inconclusive: it was stopped before it had run them all.
    """
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_kind.setdefault(str(record.get("record")), []).append(record)
    last = {str(each.get("id")): each for each in by_kind.get("cell", ())}
    end = by_kind["end"][-1] if by_kind.get("end") else None
    cells, skipped = [], set()
    for cell in planned:
        said = last.get(cell.id)
        now = _cell(cell, said) if said is not None else cell
        if now.state is State.SKIPPED:
            skipped.add(cell.id)
        elif not now.state.final:
            why = "the payload died while it ran" if said is not None and end is None else "did not run"
            told = str(end.get("reason", "")) if end is not None else ""
            reason = f"{why}{f': {told}' if told else ''}"
            now = now.model_copy(update={"state": State.SKIPPED, "reason": reason})
        cells.append(now)
    state, reason = _verdict(cells, end, skipped)
    environment = _environment(by_kind.get("environment", ()))
    found = [str(each) for each in environment.get("findings") or ()]
    return StepResult(
        stage=stage,
        state=state,
        reason=reason,
        cells=tuple(cells),
        evidence=_evidence(by_kind.get("evidence", ())),
        artifacts=_artifacts(by_kind.get("artifact", ())),
        environment=environment,
        profiled=profiled,
        detail={**({"findings": found} if found else {}), **dict(detail or {})},
    )

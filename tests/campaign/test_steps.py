from __future__ import annotations

from opsctl.campaign.steps import so_far
from opsctl.plan.actions import Measure
from opsctl.plan.planner import step_slug
from opsctl.playbook.models import HostEntry
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import StageContext

CELLS = tuple(Cell(id=name) for name in ("a", "b", "c"))
STEP = Measure(
    id="away/bench",
    phase=2,
    step="away/bench",
    stage="gemm",
    name="gemm",
    position=1,
    options=None,
    context=StageContext(run="r", step="away/bench", host_name="kimi", host=HostEntry(), folder="/f"),
    hash="0123456789",
    cells=CELLS,
)


def test_a_step_at_work_shows_what_was_measured_and_verifies_nothing() -> None:
    ended = {"a": {"id": "a", "state": "verified"}, "c": {"id": "c", "state": "failed", "reason": "out of memory"}}
    shown = so_far(STEP, ended)
    assert shown.state is State.RUNNING
    assert [(cell.state, cell.reason) for cell in shown.cells] == [
        (State.VERIFYING, ""),
        (State.PENDING, ""),
        (State.FAILED, "out of memory"),
    ]


def test_names_from_which_a_resumed_controller_finds_a_step_again() -> None:
    assert STEP.unit == "opsctl-r-p2s1-012345.service"
    assert step_slug(STEP.step) == "away_bench"


def test_what_does_not_apply_is_not_missing() -> None:
    cells = (Cell(id="a", state=State.VERIFIED), Cell(id="b", state=State.SKIPPED, reason="no such kernel here"))
    assert [cell.id for cell in StepResult(stage="gemm", state=State.VERIFIED, cells=cells).applying] == ["a"]
    assert [cell.id for cell in StepResult(stage="gemm", state=State.SKIPPED, cells=cells).applying] == ["a", "b"]

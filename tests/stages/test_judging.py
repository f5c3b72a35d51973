from typing import Any

import pytest

from opsctl.results import Cell, State
from opsctl.stages.judging import judge_records

PLANNED = (Cell(id="a"), Cell(id="b", detail={"note": "planned"}), Cell(id="c"))
END = {"record": "end", "state": "verified", "reason": ""}


def cell(name: str, state: str = "verified", **more: Any) -> dict[str, Any]:
    return {"record": "cell", "id": name, "state": state, "reason": "", "figures": [], "detail": {}, **more}


ALL = [cell("a"), cell("b"), cell("c")]


@pytest.mark.parametrize(
    ("records", "state", "reason", "states"),
    [
        ([*ALL, END], "verified", "3 of 3 cells verified", ["verified"] * 3),
        (
            [*ALL[:2], cell("c", "skipped", reason="no vLLM"), END],
            "verified",
            "2 of 2 cells verified, 1 do not apply here",
            ["verified", "verified", "skipped"],
        ),
        (
            [*ALL[:2], cell("c", "failed", reason="oom"), {**END, "state": "failed"}],
            "failed",
            "2 of 3 cells verified, 1 failed (c: oom)",
            ["verified", "verified", "failed"],
        ),
        (
            [*ALL[:1], cell("b", "running")],
            "failed",
            "the payload died before its end record: 1 of 3 cells verified, 2 did not run",
            ["verified", "skipped", "skipped"],
        ),
        (
            [*ALL[:2], {**END, "state": "inconclusive", "reason": "stopped by SIGTERM"}],
            "inconclusive",
            "2 of 3 cells verified, 1 did not run: stopped by SIGTERM",
            ["verified", "verified", "skipped"],
        ),
        (
            [{**END, "state": "failed", "reason": "no torch"}],
            "failed",
            "0 of 3 cells verified, 3 did not run: no torch",
            ["skipped"] * 3,
        ),
        ([], "failed", "the payload died before its end record: 0 of 3 cells verified, 3 did not run", ["skipped"] * 3),
        ([cell("a", "failed"), cell("a"), *ALL[1:], END], "verified", "3 of 3 cells verified", ["verified"] * 3),
    ],
)
def test_every_planned_cell_has_a_state(
    records: list[dict[str, Any]], state: str, reason: str, states: list[str]
) -> None:
    result = judge_records("gemm", PLANNED, records)
    assert (result.state.value, result.reason) == (state, reason)
    assert [each.state.value for each in result.cells] == states


def test_nothing_verified_is_a_failure_even_if_nothing_failed() -> None:
    records = [cell(name, "skipped", reason="no GPU") for name in "abc"]
    assert judge_records("gemm", PLANNED, [*records, END]).state is State.FAILED


def test_a_step_of_which_nothing_applies_here_is_no_failure() -> None:
    why = "one GPU: there is nothing to exchange"
    records = [cell(name, "skipped", reason=why) for name in "abc"]
    end = {**END, "state": "skipped", "reason": why}
    result = judge_records("collectives", PLANNED, [*records, end])
    assert (result.state, result.reason) == (State.VERIFIED, f"does not apply here (3 cells): {why}")
    assert result.apart
    # A cell that is missing was not seen not to apply.
    assert judge_records("collectives", PLANNED, [*records[:2], end]).state is State.FAILED


def test_detail_keeps_what_was_planned() -> None:
    result = judge_records("gemm", PLANNED, [cell("b", detail={"seen": 1}), END])
    assert result.cells[1].detail == {"note": "planned", "seen": 1}


@pytest.mark.parametrize(
    "record", [cell("a", "nonsense"), cell("a", figures=[{"name": "x"}]), {"record": "cell", "id": "a"}]
)
def test_a_record_that_cannot_be_read_fails_its_cell(record: dict[str, Any]) -> None:
    result = judge_records("gemm", PLANNED, [record, *ALL[1:], END])
    assert result.cells[0].state is State.FAILED
    assert "its record cannot be read" in result.cells[0].reason


def test_a_step_that_was_taken_up_keeps_the_first_before_and_the_last_after() -> None:
    environment = [
        {"record": "environment", "environment": {"before": 1, "x": 1}},
        {"record": "environment", "environment": {"after": 1}},
        {"record": "environment", "environment": {"before": 2, "x": 2}},
        {"record": "environment", "environment": {"after": 2}},
    ]
    assert judge_records("gemm", PLANNED, [*environment, *ALL, END]).environment == {"before": 1, "x": 2, "after": 2}


def test_what_stood_out_on_the_machine_is_in_the_detail() -> None:
    environment = {"record": "environment", "environment": {"findings": ["GPU 0: 99 % utilisation at 140 W of 600 W"]}}
    result = judge_records("gemm", PLANNED, [environment, *ALL, END])
    assert result.detail == {"findings": ["GPU 0: 99 % utilisation at 140 W of 600 W"]}
    assert judge_records("gemm", PLANNED, [*ALL, END]).detail == {}


def test_artifacts_and_evidence() -> None:
    artifact = {"record": "artifact", "path": "t", "size": 3, "sha256": "ab", "kind": "trace"}
    evidence = {"record": "evidence", "asked": "q", "observed": "o", "time": "2026-12-01T00:00:00+00:00"}
    result = judge_records("profile", PLANNED, [artifact, {**artifact, "size": 4}, evidence, *ALL, END], profiled=True)
    assert [each.size for each in result.artifacts] == [4]
    assert result.evidence[0].observed == "o"
    assert result.profiled


def test_a_cell_that_was_measured_at_another_load_makes_the_step_inconclusive() -> None:
    planned = (Cell(id="a"), Cell(id="b"))
    said = {"record": "cell", "id": "b", "state": "inconclusive", "reason": "12 of 12 requests ended early"}
    end = {"record": "end", "state": "inconclusive", "reason": "1 of 2 cells measured"}
    result = judge_records("x", planned, [{"record": "cell", "id": "a", "state": "verified"}, said, end])
    assert result.state is State.INCONCLUSIVE
    assert result.reason == "1 of 2 cells verified, 1 inconclusive (b: 12 of 12 requests ended early)"
    alone = judge_records("x", planned[1:], [said, end])
    assert alone.state is State.INCONCLUSIVE

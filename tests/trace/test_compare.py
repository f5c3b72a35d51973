from __future__ import annotations

from pathlib import Path

from opsctl.trace import TraceAnalysis, analyse, compare
from tests.trace.kineto import GEMM, MARLIN, SAMPLE, Event, decode_events, kineto, write


def analysis(folder: Path, name: str, events: list[Event]) -> TraceAnalysis:
    return analyse([write(folder / f"{name}.rank0.json", kineto(events))])


def test_what_changed_in_a_step_and_what_did_not(tmp_path: Path) -> None:
    before, after = decode_events(), decode_events()
    for number, event in enumerate(after):
        if event["name"] == MARLIN:
            event["dur"] += 3_000 + number % 7
        if event["name"] == SAMPLE:
            event["name"] = "void sampling::TopPSamplingKernel<float>()"
    document = compare(analysis(tmp_path, "a", before), analysis(tmp_path, "b", after)).to_json()
    kernels = {row["name"]: row for row in document["kernels"]}
    assert kernels[MARLIN]["verdict"] == "slower"
    assert 9.0 < kernels[MARLIN]["difference_us_per_step"] < 9.02
    assert kernels[MARLIN]["standard_error_us"] > 0
    assert kernels[GEMM]["verdict"] == "same"
    assert kernels[SAMPLE]["verdict"] == "gone"
    assert kernels["void sampling::TopPSamplingKernel<float>()"]["verdict"] == "new"
    assert {row["name"]: row["verdict"] for row in document["steps"]}["wall_us"] == "same"


def test_a_noisy_difference_is_no_change(tmp_path: Path) -> None:
    before, after = decode_events(), decode_events()
    for number, (first, second) in enumerate(zip(before, after, strict=True)):
        if first["name"] == MARLIN:
            first["dur"] += (number * 37) % 900
            second["dur"] += (number * 53) % 900
    rows = compare(analysis(tmp_path, "a", before), analysis(tmp_path, "b", after)).to_json()["kernels"]
    assert {row["name"]: row["verdict"] for row in rows}[MARLIN] == "same"


def test_collectives_that_came_or_went_are_counted(tmp_path: Path) -> None:
    counts = compare(
        analysis(tmp_path, "a", decode_events(layers=3)), analysis(tmp_path, "b", decode_events(layers=4))
    ).to_json()["counts"]
    assert counts == [{"op": "all_reduce", "calls_per_step_before": 3.0, "calls_per_step_after": 4.0}]


def test_other_batches_are_not_compared_in_silence(tmp_path: Path) -> None:
    problems = compare(
        analysis(tmp_path, "a", decode_events(batch=1)), analysis(tmp_path, "b", decode_events(batch=8))
    ).to_json()["problems"]
    assert any("differ in kind or batch" in problem for problem in problems)

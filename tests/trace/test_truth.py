"""Figures against traces whose truth is known by construction, to the microsecond."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.trace import TraceAnalysis, analyse
from tests.trace.kineto import kineto, write
from tests.trace.scenario import (
    COLLECTIVES,
    MARKERS,
    Scenario,
    StepTruth,
    category_of,
    covered,
    scenarios,
    truth,
)

TABLE = list(scenarios())


def analysed(folder: Path, scenario: Scenario, layout: str = "2.11") -> TraceAnalysis:
    for rank in range(scenario.ranks):
        text = kineto(scenario.events(rank), rank=rank, world=scenario.ranks, layout=layout)
        write(folder / f"rank{rank}.1.pt.trace.json", text)
    return analyse([folder], jobs=1)


def mean(values: list[int]) -> float:
    return round(float(Fraction(sum(values), len(values))), 3)


def check(analysis: TraceAnalysis, scenario: Scenario) -> None:
    """Compare every figure with the truth."""
    found, steps = truth(scenario), analysis.main
    assert analysis.kind == MARKERS[scenario.marker][2]
    assert (steps.count, steps.used, steps.dropped, steps.timed) == (scenario.steps, scenario.steps, 0, len(found))
    assert steps.wall_us
    assert steps.busy_us
    assert steps.idle_us
    assert steps.sum_us
    assert steps.other_steps_us
    assert steps.wall_us.mean == mean([step.wall for step in found])
    assert steps.busy_us.mean == mean([step.busy for step in found])
    assert steps.idle_us.mean == mean([step.idle for step in found])
    assert steps.sum_us.mean == mean([step.sum for step in found])
    assert steps.other_steps_us.mean == mean([step.others for step in found])
    assert {row.name: row.busy_us_per_step for row in analysis.categories if row.busy_us_per_step} == categories(found)
    pieces = scenario.pieces(0)
    assert analysis.busy_us == covered(pieces)
    assert analysis.sum_us == sum(piece.length for piece in pieces)
    assert analysis.window_us == max(p.end for p in pieces) - min(p.start for p in pieces)
    counted: dict[str, tuple[int, float]] = {}
    for piece in pieces:
        calls, total = counted.get(piece.name, (0, 0.0))
        counted[piece.name] = calls + 1, total + piece.length
    assert {row.name: (row.calls, row.sum_us) for row in analysis.kernels} == counted
    check_collectives(analysis, scenario)
    if scenario.training:
        for phase in analysis.main.phases:
            own = [[p for p in pieces if (p.step, p.phase) == (step, phase.name)] for step in range(scenario.steps)]
            assert phase.busy_us_per_step == round(sum(map(covered, own)) / scenario.steps, 3)
        assert [phase.name for phase in analysis.main.phases] == ["forward", "backward", "optimizer"]
    assert analysis.problems == ()
    assert TraceAnalysis.from_json(analysis.to_json()) == analysis


def categories(found: list[StepTruth]) -> dict[str, float]:
    names = {name for step in found for name in step.by_category}
    return {name: mean([step.by_category.get(name, 0) for step in found]) for name in names}


def check_collectives(analysis: TraceAnalysis, scenario: Scenario) -> None:
    _, operation, arguments = COLLECTIVES[scenario.collective]
    (row,) = analysis.collectives
    assert row.op == operation
    own = [
        [p for p in scenario.pieces(rank) if category_of(p.name) == "communication"] for rank in range(scenario.ranks)
    ]
    assert (row.calls, row.sum_us) == (len(own[0]), sum(piece.length for piece in own[0]))
    assert row.calls_per_step == scenario.layers
    least = [min(piece.length for piece in calls) for calls in zip(*own, strict=True)]
    assert row.communication_us_per_step == round(sum(least) / scenario.steps, 3)
    if scenario.ranks > 1:
        waited = sum(piece.length for rank in own for piece in rank) / scenario.ranks - sum(least)
        assert row.straggler_wait_us_per_step == round(waited / scenario.steps, 3)
        assert row.start_skew_us == (scenario.ranks - 1) * scenario.skew
        assert (row.last_to_arrive.rank if row.last_to_arrive else None) == (
            scenario.ranks - 1 if scenario.skew else None
        )
    else:
        assert row.straggler_wait_us_per_step is None
    if arguments:
        (message,) = row.messages
        size = 2 * (2048 if operation == "all_gather" else 1024)
        assert (message.calls, message.message_bytes, message.group_size) == (len(own[0]), size, 2)
        assert message.bus_bandwidth_gbs == round(size / 2 * len(own[0]) / (row.sum_us * 1000), 3)


@pytest.mark.parametrize("number", range(len(TABLE)))
def test_every_figure_is_the_truth(tmp_path: Path, number: int) -> None:
    check(analysed(tmp_path, TABLE[number], "2.11" if number % 2 else "2.13"), TABLE[number])


def test_the_table_is_large() -> None:
    assert len(TABLE) == len(set(TABLE)) >= 40


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    scenario=st.builds(
        Scenario,
        seed=st.integers(0, 1000),
        steps=st.integers(4, 7),
        layers=st.integers(1, 3),
        ranks=st.integers(1, 3),
        marker=st.sampled_from(list(MARKERS)),
        collective=st.sampled_from(list(COLLECTIVES)),
        beside=st.integers(0, 90),
        early=st.integers(0, 40),
        carry=st.integers(0, 80),
        skew=st.integers(0, 19),
        lag=st.integers(30, 500),
        graphs=st.booleans(),
    ),
    without=st.sampled_from(["", "numpy"]),
)
def test_any_scenario_is_the_truth(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario, without: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPSCTL_TRACE_WITHOUT", without)
        check(analysed(tmp_path_factory.mktemp("any"), scenario), scenario)

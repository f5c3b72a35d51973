from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.trace.categories import default_categories
from opsctl.trace.reading import read_file
from opsctl.trace.steps import Stepping, find_steps, unsteady_at_first
from opsctl.trace.work import work_of
from tests.trace.kineto import GEMM, MARLIN, SAMPLE, Event, decode_events, host, kernel, kineto, launch, write


def stepping(tmp_path: Path, events: list[Event]) -> Stepping:
    categories = default_categories()
    file = read_file(write(tmp_path / "rank0.json", kineto(events)), categories)
    return find_steps(file, work_of(file, categories), categories)


def without_markers(events: list[Event]) -> list[Event]:
    return [event for event in events if event["cat"] != "user_annotation"]


@pytest.mark.parametrize(
    ("marker", "source"),
    [
        ("execute_context_0(0)_generation_{batch}({batch})", "execute_ markers"),
        ("execute_{step}_context_0(sq0sk0)_generation_{batch}(sq1sk300)", "execute_ markers"),
        ("execute_new_0_cached_{batch}", "execute_ markers"),
        ("step[DECODE bs={batch}]", "step[…] markers"),
    ],
)
def test_markers_find_kernels_by_the_launch(tmp_path: Path, marker: str, source: str) -> None:
    found = stepping(tmp_path, decode_events(steps=5, batch=4, marker=marker))
    assert found.method.startswith(source)
    assert [(step.kind, step.batch, step.wall) for step in found.steps] == [("decode", 4, 160_000)] * 4 + [
        ("decode", 4, None)
    ]
    assert {step.span for step in found.steps} == {68_000}  # 50 µs in to the end of sampling
    assert sorted(found.step_of) == sorted(list(range(5)) * 10)


def test_prefill_between_decode_steps_ends_a_wall_time(tmp_path: Path) -> None:
    events = decode_events(steps=4)
    for event in events:
        if event["ts"] == 1_000_000_000 + 2 * 160_000 and event["cat"] == "user_annotation":
            event["name"] = "execute_context_1(512)_generation_0(0)"
    found = stepping(tmp_path, events)
    assert [(step.kind, step.wall is not None) for step in found.steps] == [
        ("decode", True),
        ("decode", False),
        ("prefill", False),
        ("decode", False),
    ]


def test_without_markers_a_step_is_from_sampling_to_sampling(tmp_path: Path) -> None:
    found = stepping(tmp_path, without_markers(decode_events(steps=6)))
    assert found.method == "replays of CUDA graphs"
    assert [step.kind for step in found.steps] == ["decode"] * 6
    assert [step.wall for step in found.steps[:-1]] == [160_000] * 5


def test_piecewise_graphs_replay_many_times_a_step(tmp_path: Path) -> None:
    events: list[Event] = []
    for step in range(4):
        for piece in range(5):
            at, correlation = 1_000_000_000 + step * 200_000 + piece * 20_000, 100 + step * 10 + piece
            events.append(launch("cudaGraphLaunch", at, correlation))
            events.extend(kernel(GEMM, at + 10_000 + n * 2_000, 1_500, correlation=correlation) for n in range(4))
        events.append(kernel(SAMPLE, at + 20_000, 3_000, correlation=9_000 + step))
    found = stepping(tmp_path, events)
    assert found.method == "replays of CUDA graphs"
    assert [sum(1 for number in found.step_of if number == step) for step in range(4)] == [21] * 4


def test_profiler_steps_are_of_unknown_kind(tmp_path: Path) -> None:
    events = decode_events(steps=5, marker="ProfilerStep#{step}")
    events = [
        {**event, "name": "cudaLaunchKernel"} if event["name"] == "cudaGraphLaunch" else event for event in events
    ]
    found = stepping(tmp_path, events)
    assert found.method.startswith("ProfilerStep markers")
    assert {step.kind for step in found.steps} == {"other"}


def test_pauses_are_the_last_resort(tmp_path: Path) -> None:
    events = [
        kernel(MARLIN, 1_000_000 + step * 100_000 + n * 5_000, 4_000, correlation=n)
        for step in range(6)
        for n in range(8)
    ]
    found = stepping(tmp_path, events)
    assert found.method == "pauses of the device"
    assert len(found.steps) == 6
    assert {step.kind for step in found.steps} == {"other"}


def test_no_regularity_is_said_so(tmp_path: Path) -> None:
    found = stepping(tmp_path, [kernel(GEMM, 1_000 + n * 5_000, 4_000, correlation=n) for n in range(20)])
    assert found.steps == []
    assert found.method.startswith("none")


def test_on_the_host_work_belongs_to_the_marker_it_follows(tmp_path: Path) -> None:
    events: list[Event] = []
    for step in range(4):
        at = 1_000_000 + step * 50_000
        events.append(host("user_annotation", "execute_context_0(0)_generation_1(1)", at, 30_000))
        events.append(host("cpu_op", "aten::mm", at + 1_000, 9_000))
        events.append(host("user_annotation", "gloo:all_reduce", at + 12_000, 5_000, tid=99))
    found = stepping(tmp_path, events)
    assert [step.wall for step in found.steps] == [50_000] * 3 + [None]
    assert sorted(found.step_of) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("times", "dropped"),
    [
        ([100, 100, 100, 100], 0),
        ([900, 100, 101, 99, 100, 100], 1),
        ([900, 400, 100, 101, 99, 100], 2),
        ([105, 100, 101, 99, 100, 100], 0),
        ([900, 900, 900], 0),
        ([100, 100, 100, 900], 0),
    ],
)
def test_first_steps_are_dropped_while_they_differ(times: list[int], dropped: int) -> None:
    assert unsteady_at_first(times) == dropped

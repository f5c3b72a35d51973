"""Which spans of a file are its collectives: kernels, gloo's annotations, or operators over shared memory."""

from __future__ import annotations

from pathlib import Path

from opsctl.trace.analysis import analyse
from opsctl.trace.categories import default_categories
from opsctl.trace.reading import read_file
from opsctl.trace.work import work_of
from tests.trace.kineto import Event, host, kineto, write

STEP = "execute_context_0(0)_generation_1(1)"


def step(at: int, *events: Event) -> list[Event]:
    return [host("user_annotation", STEP, at, 30_000), host("cpu_op", "aten::mm", at + 1_000, 9_000), *events]


def collectives(folder: Path, events: list[Event]) -> list[tuple[int, str]]:
    file = read_file(write(folder / "host.json", kineto(events)))
    return [
        (start, file.columns.names[name][1]) for start, _, _, name in work_of(file, default_categories()).collectives
    ]


def test_operators_over_shared_memory_are_collectives(tmp_path: Path) -> None:
    asked = host("cpu_op", "_C::shm_allreduce", 12_000, 5_000)
    assert collectives(tmp_path, step(0, asked)) == [(12_000, "_C::shm_allreduce")]


def test_an_operator_that_only_passes_a_collective_on_is_not_counted_again(tmp_path: Path) -> None:
    outer, inner = host("cpu_op", "vllm::all_reduce", 12_000, 8_000), host("cpu_op", "_C::shm_allreduce", 13_000, 5_000)
    other = host("cpu_op", "_C::shm_allreduce", 13_500, 5_000, tid=99)
    assert collectives(tmp_path, step(0, outer, inner, other)) == [
        (13_000, "_C::shm_allreduce"),
        (13_500, "_C::shm_allreduce"),
    ]


def test_annotations_come_before_the_operators_that_asked_for_them(tmp_path: Path) -> None:
    outer = host("cpu_op", "vllm::all_reduce", 12_000, 8_000)
    carried_out = host("user_annotation", "gloo:all_reduce", 13_000, 5_000, tid=99)
    assert collectives(tmp_path, step(0, outer, carried_out)) == [(13_000, "gloo:all_reduce")]


def test_calls_a_step_and_skew_come_of_operators_too(tmp_path: Path) -> None:
    for rank in range(2):
        events: list[Event] = []
        for number in range(6):
            at = 1_000_000 + number * 50_000
            late = host("cpu_op", "_C::shm_allreduce", at + 12_000 + 1_000 * rank, 5_000 - 1_000 * rank)
            events += step(at, late, host("cpu_op", "_C::shm_all_gather", at + 20_000, 2_000))
        write(tmp_path / f"rank{rank}.json", kineto(events, rank=rank, world=2))
    rows = {row["op"]: row for row in analyse([tmp_path]).to_json()["collectives"]}
    assert {op: row["calls_per_step"] for op, row in rows.items()} == {"all_reduce": 1.0, "all_gather": 1.0}
    assert rows["all_reduce"]["communication_us_per_step"] == 4.0
    assert rows["all_reduce"]["straggler_wait_us_per_step"] > 0

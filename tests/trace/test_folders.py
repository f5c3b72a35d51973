"""How a folder is sorted into windows, jobs and ranks, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import TraceError
from opsctl.trace import analyse
from opsctl.trace.folders import trace_files
from opsctl.trace.names import coordinates_text, job, rank_in_name, stamp
from tests.trace.kineto import decode_events, kineto, write

TEXT = kineto(decode_events(steps=3), rank=None)


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, TEXT)
    return folder


def chosen(folder: Path, only: str | None = None) -> list[str]:
    return [str(path.relative_to(folder)) for path in trace_files([folder], only).files]


def test_one_plain_trace_does_not_hide_the_others(tmp_path: Path) -> None:
    made(tmp_path, "rank0.trace.json", "rank1.json.gz", "rank2.json.gz")
    assert len(chosen(tmp_path)) == 3


def test_what_is_no_trace_is_left_out_by_name(tmp_path: Path) -> None:
    made(tmp_path, "rank0.json")
    (tmp_path / "key_averages.json").write_text('[{"name": "x"}]')
    (tmp_path / "empty.json").write_text("")
    analysis = analyse([tmp_path], jobs=1)
    assert [(left.file, left.reason.split(":")[0]) for left in analysis.left_out] == [
        ("empty.json", "empty"),
        ("key_averages.json", "no trace"),
    ]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["a/rank0.1.json", "a/rank1.2.json", "b/rank0.3.json", "b/rank1.4.json"], ["a", "b"]),
        (["resnet_rank0.json", "bert_rank0.json", "bert_rank1.json"], ["bert", "resnet"]),
        (["rank0.111.json", "rank1.112.json", "rank0.221.json", "rank1.222.json"], ["window 1", "window 2"]),
        (["1769071195.66-TP-0.trace.json", "1769071199.01-TP-0.trace.json"], ["window 1", "window 2"]),
    ],
)
def test_several_windows_are_refused_with_the_choice(tmp_path: Path, names: list[str], labels: list[str]) -> None:
    made(tmp_path, *names)
    with pytest.raises(TraceError, match="windows or jobs, wanted one") as caught:
        trace_files([tmp_path])
    assert all(repr(label) in (caught.value.seen or "") for label in labels)
    taken = [set(chosen(tmp_path, label)) for label in labels]
    assert set.union(*taken) == set(names)
    assert not set.intersection(*taken)
    left = trace_files([tmp_path], labels[0]).left_out
    assert {item.file for item in left} == set(names) - taken[0]
    assert all(labels[1] in item.reason for item in left)


def test_rounds_are_taken_by_time_for_each_rank(tmp_path: Path) -> None:
    names = [
        f"dp0_pp0_tp{rank}_dcp0_ep0_rank{rank}.{time}{rank}.pt.trace.json.gz" for time in (17, 18) for rank in (0, 1)
    ]
    made(tmp_path, *names, "vm_7.async_llm.175.pt.trace.json.gz", "vm_7.async_llm.185.pt.trace.json.gz")
    assert chosen(tmp_path, "window 2") == [*names[2:], "vm_7.async_llm.185.pt.trace.json.gz"]


def test_a_label_that_fits_nothing_is_an_error(tmp_path: Path) -> None:
    made(tmp_path, "a/rank0.json", "b/rank0.json")
    with pytest.raises(TraceError, match="0 windows fit 'c'"):
        trace_files([tmp_path], "c")


@pytest.mark.parametrize("kind", ["DP", "PP", "EP"])
def test_places_of_sglang_are_ranks(tmp_path: Path, kind: str) -> None:
    names = [f"1769071195.66-TP-{tp}-{kind}-{other}.trace.json.gz" for tp in range(2) for other in range(2)]
    analysis = analyse([made(tmp_path, *names)], jobs=1)
    assert sorted(row.rank for row in analysis.ranks if row.rank is not None) == [0, 1, 2, 3]
    assert len({row.label for row in analysis.ranks}) == 4
    assert analysis.problems == ()


@pytest.mark.parametrize(
    ("name", "rank", "label", "of_job", "at"),
    [
        ("dp0_pp0_tp1_dcp0_ep0_rank5.1796.pt.trace.json.gz", 5, "DP 0 PP 0 TP 1 DCP 0 EP 0", "traces", "1796"),
        ("1757.5-TP-3-DECODE.trace.json.gz", 3, "TP 3", "DECODE", "5"),
        ("gpu-host_812.1669852800123.pt.trace.json", None, "", "gpu-host", "1669852800123"),
        ("resnet50_rank-2.json", 2, "", "resnet50", ""),
    ],
)
def test_names(name: str, rank: int | None, label: str, of_job: str, at: str) -> None:
    assert (rank_in_name(name), coordinates_text(name), job(name), stamp(name)) == (rank, label, of_job, at)

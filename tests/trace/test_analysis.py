from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import TraceError
from opsctl.trace import Tpot, analyse, verify_file
from tests.trace.kineto import NCCL, decode_events, host, kernel, kineto, respelled, write

DATA = Path(__file__).parent.parent / "data" / "traces"
MEASURED = Path(__file__).parent.parent.parent / "docs" / "measurements"


def team(folder: Path, ranks: int, *, steps: int = 20, world: int | None = None, slow: int = 0) -> Path:
    """Write a rank's file each; on rank 1 each all-reduce waits ``slow`` ns less: it arrives last."""
    for rank in range(ranks):
        events = decode_events(steps=steps, slow=slow if rank == 1 else 0)
        write(folder / f"rank{rank}.1.pt.trace.json.gz", kineto(events, rank=rank, world=world or ranks))
    return folder


def test_the_real_trace_of_an_h200() -> None:
    document = analyse([DATA / "h200-cudagraph"]).to_json()
    (rank,) = document["ranks"]
    assert (rank["kernels"], rank["streams"], rank["device_events"]) == (680, 2, 700)
    decode = document["steps"]["decode"]
    assert (decode["count"], decode["batch"]) == (20, 4)
    assert document["sum_us"] == 3510.498
    assert document["busy_us"] == 3066.02
    assert document["busy_us"] + document["idle_us"] == pytest.approx(document["window_us"])
    shares = sum(row["share_of_busy"] for row in document["categories"])
    assert shares == pytest.approx(1.0, abs=1e-5)


def test_the_real_vllm_trace_of_two_cpu_ranks() -> None:
    document = analyse([DATA / "vllm-cpu-tp2"], expected={"all_reduce": 9, "all_gather": 2}).to_json()
    rows = {row["op"]: row for row in document["collectives"]}
    assert rows["all_reduce"]["calls_per_step"] == 9.0
    assert rows["all_gather"]["calls_per_step"] == 1.0
    assert (rows["all_reduce"]["as_expected"], rows["all_gather"]["as_expected"]) == (True, False)
    assert rows["all_reduce"]["straggler_wait_us_per_step"] > 0
    assert (document["steps"]["decode"]["count"], document["steps"]["decode"]["batch"]) == (62, 1)
    assert [row["role"] for row in document["ranks"]] == ["rank", "rank", "front end"]
    assert [row["rank"] for row in document["ranks"]] == [0, 1, None]
    assert all(row["whole"] for row in document["ranks"])
    assert all(row["device"] is None for row in document["ranks"])
    assert any("host" in note for note in document["notes"])


@pytest.mark.parametrize("folder", [DATA / "h200-decode-small", MEASURED / "h200-decode-loop"])
def test_kernels_against_torchs_own_averages(folder: Path) -> None:
    document = analyse([folder]).to_json()
    ours = {row["name"]: row for row in document["kernels"]}
    theirs = json.loads((folder / "key_averages.json").read_text())
    kernels = [row for row in theirs if row["name"] in ours and row["calls"] == ours[row["name"]]["calls"]]
    # key_averages names kernels and the markers over them alike; the markers are no kernels.
    assert {row["name"] for row in theirs} - {row["name"] for row in kernels} == {
        row["name"] for row in theirs if row["name"].startswith("execute_context")
    }
    for row in kernels:
        assert ours[row["name"]]["sum_us"] == pytest.approx(row["self_device_us"], abs=0.002), row["name"]


def test_kernels_against_holistic_trace_analysis() -> None:
    """Counts are equal; HTA cuts start and end to whole µs, so that a call may differ by less than 1 µs each way."""
    recorded = json.loads((MEASURED / "hta-0.5.0-h200-decode-loop.json").read_text())
    ours = {row["name"]: row for row in analyse([MEASURED / "h200-decode-loop"]).to_json()["kernels"]}
    for name, (calls, total) in recorded["kernels"].items():
        assert ours[name]["calls"] == calls
        assert abs(ours[name]["sum_us"] - total) <= 1.01 * calls
    assert sum(calls for calls, _ in recorded["kernels"].values()) == 61_462


def test_waiting_is_told_from_communication(tmp_path: Path) -> None:
    document = analyse([team(tmp_path, 4, slow=2_000)]).to_json()
    (row,) = document["collectives"]
    # 3 calls of 6 µs a step on three ranks, of 4 µs on rank 1, which came last
    assert row["op"] == "all_reduce"
    assert row["calls_per_step"] == 3.0
    assert row["communication_us_per_step"] == 12.0
    assert row["straggler_wait_us_per_step"] == 4.5
    assert row["last_to_arrive"] == {"rank": 1, "share_of_calls": 1.0}


def test_categories_of_a_step_are_exact(tmp_path: Path) -> None:
    document = analyse([team(tmp_path, 1)]).to_json()
    rows = {row["name"]: row for row in document["categories"]}
    assert rows["moe-gemm"]["busy_us_per_step"] == 30.0
    # The GEMM runs on the second stream, wholly inside the Marlin kernel: it costs nothing on the clock.
    assert (rows["dense-gemm"]["busy_us_per_step"], rows["dense-gemm"]["overlapped_us_per_step"]) == (0.0, 12.0)
    assert rows["communication"]["busy_us_per_step"] == 18.0
    assert rows["sampling"]["busy_us_per_step"] == 3.0
    decode = document["steps"]["decode"]
    assert decode["wall_us"] == {"p50": 160.0, "mean": 160.0, "cv": 0.0}
    assert (decode["busy_us"]["mean"], decode["sum_us"]["mean"], decode["idle_us"]["mean"]) == (51.0, 63.0, 109.0)
    assert decode["verdict"] == "steady"
    assert document["problems"] == []


def test_communication_hidden_behind_compute_is_shown_apart(tmp_path: Path) -> None:
    events = decode_events(steps=12)
    for event in [event for event in events if event["name"] == NCCL]:
        event["ts"] -= 4_000  # 4 of 6 µs under the Marlin kernel
        event["tid"] = event["args"]["stream"] = 23
    document = analyse([write(tmp_path / "rank0.json", kineto(events))]).to_json()
    row = next(row for row in document["categories"] if row["name"] == "communication")
    assert (row["busy_us_per_step"], row["overlapped_us_per_step"], row["union_us_per_step"]) == (6.0, 12.0, 18.0)


def test_the_order_of_events_and_the_spelling_make_no_difference(tmp_path: Path) -> None:
    events = decode_events(steps=8)
    shuffled = list(events)
    random.Random(5).shuffle(shuffled)  # noqa: S311
    said = []
    for number, text in enumerate(
        [kineto(events), kineto(shuffled, layout="2.13"), respelled(kineto(shuffled), "sorted")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        said.append(comparable(analyse([write(folder / "rank0.json", text)]).to_json()))
    assert said[0] == said[1] == said[2]


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what tells the file's spelling."""
    for row in document["ranks"]:
        del row["layout"], row["text_bytes"]
    return document


@pytest.mark.parametrize(
    ("folder", "without"),
    [
        ("h200-cudagraph", "numpy"),
        ("h200-cudagraph", "numpy,msgspec"),
        ("h200-cudagraph", "isal"),
        ("h200-decode-small", "numpy,msgspec,isal"),
        ("vllm-cpu-tp2", "numpy,msgspec,isal"),
    ],
)
def test_the_same_answers_to_the_last_digit_without_speed_ups(folder: str, without: str) -> None:
    program = "import json, sys; from pathlib import Path; from opsctl.trace import analyse\n"
    program += "print(json.dumps(analyse([Path(sys.argv[1])], jobs=1).to_json()))"
    said = [
        subprocess.run(
            [sys.executable, "-c", program, str(DATA / folder)],
            env=os.environ | {"OPSCTL_TRACE_WITHOUT": left_out},
            capture_output=True,
            text=True,
            check=True,
            timeout=110,
        ).stdout
        for left_out in ("", without)
    ]
    assert said[0] == said[1]


def test_nothing_but_the_standard_library_is_needed() -> None:
    """Imports of the package, in a Python that has no site-packages, name only the standard library and opsctl."""
    root = Path(__file__).parent.parent.parent
    program = f"import sys; sys.path.insert(0, {str(root)!r}); import opsctl.trace, opsctl.trace.workers\n"
    program += "print(*(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert set(done.stdout.split()) <= {"opsctl", "__main__", "__mp_main__"}


def test_missing_ranks_and_other_step_counts_are_findings(tmp_path: Path) -> None:
    team(tmp_path, 2, world=4)
    write(tmp_path / "rank3.1.pt.trace.json.gz", kineto(decode_events(steps=15), rank=3, world=4))
    document = analyse([tmp_path], world_size=4).to_json()
    assert any("1 of 4 ranks have no file: 2" in problem for problem in document["problems"])
    assert any("different numbers" in problem and "rank 3: 15" in problem for problem in document["problems"])


def test_a_doubled_rank_is_a_finding(tmp_path: Path) -> None:
    team(tmp_path, 2)
    write(tmp_path / "rank0.2.pt.trace.json.gz", kineto(decode_events(), rank=0, world=2))
    with pytest.raises(TraceError, match="2 windows"):
        analyse([tmp_path])
    document = analyse(sorted(tmp_path.iterdir())).to_json()
    assert any("rank 0 has 2 files: rank0.2.pt.trace.json.gz is used" in problem for problem in document["problems"])


def test_more_ranks_than_the_server_had(tmp_path: Path) -> None:
    problems = analyse([team(tmp_path, 3)], world_size=2).to_json()["problems"]
    assert any("2 ranks were expected" in problem for problem in problems)
    assert any("beyond the 2 expected: 2" in problem for problem in problems)


def test_a_broken_rank_does_not_cost_the_others(tmp_path: Path) -> None:
    team(tmp_path, 3)
    broken = tmp_path / "rank1.1.pt.trace.json.gz"
    broken.write_bytes(broken.read_bytes()[:200])
    (tmp_path / "rank2.1.pt.trace.json.gz").write_bytes(b"")
    document = analyse([tmp_path]).to_json()
    assert document["steps"]["decode"]["count"] == 20
    assert [row["whole"] for row in document["ranks"]] == [True, False, False]
    assert any("rank1.1" in problem and "without its trailer" in problem for problem in document["problems"])
    assert any("rank2.1" in problem and "0 bytes" in problem for problem in document["problems"])


def test_clocks_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    team(tmp_path, 2)
    events = decode_events()
    for event in events:
        event["ts"] += 3_000_000
    write(tmp_path / "rank1.1.pt.trace.json.gz", kineto(events, rank=1, world=2))
    document = analyse([tmp_path]).to_json()
    assert [row["clock_offset_us"] for row in document["ranks"]] == [0.0, 3000.0]
    assert any("the clock of rank 1 is +3.000 ms off" in problem for problem in document["problems"])


def test_few_steps_are_inconclusive(tmp_path: Path) -> None:
    document = analyse([team(tmp_path, 1, steps=5)]).to_json()
    assert document["steps"]["decode"]["verdict"] == "inconclusive"
    assert document["problems"] == []


def test_a_gpu_that_saw_no_kernels_is_a_problem(tmp_path: Path) -> None:
    events = [host("cpu_op", "aten::mm", 1_000 * n, 500) for n in range(5)]
    document = analyse([write(tmp_path / "rank0.json", kineto(events))]).to_json()
    assert any("no device events, though the file names NVIDIA H200" in problem for problem in document["problems"])


def test_sizes_of_messages_are_of_the_trace_or_derived_and_marked(tmp_path: Path) -> None:
    events = decode_events(batch=3)
    path = write(tmp_path / "rank0.json", kineto(events))
    (row,) = analyse([path], token_bytes=14_336).to_json()["collectives"]
    assert (row["message_bytes"], row["message_from"]) == (4 * 14_336, "derived")
    for event in events:
        if event["name"] == NCCL:
            event["args"] |= {"Collective name": "allreduce", "In msg nelems": 7168, "dtype": "BFloat16"}
    write(path, kineto(events))
    (row,) = analyse([path], token_bytes=14_336).to_json()["collectives"]
    assert (row["message_bytes"], row["message_from"]) == (14_336, "trace")


def test_beside_the_clock(tmp_path: Path) -> None:
    tpot = Tpot(off_us=50.0, armed_us=55.0, capturing_us=200.0)
    said = analyse([team(tmp_path, 1)], tpot=tpot).to_json()["beside_the_clock"]
    text = "\n".join(said["explanation"])
    assert "0.063 ms is the sum of kernels, 0.051 ms the time in which at least one ran" in text
    assert "armed changes TPOT by +10.0 %" in text
    assert "capturing changes TPOT by +300.0 %" in text
    assert "kernels themselves ran slower under capture" in text


def test_nothing_at_all_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "rank0.pt.trace.json.gz").write_bytes(b"")
    with pytest.raises(TraceError) as caught:
        analyse([tmp_path])
    assert "0 bytes" in (caught.value.seen or "")
    with pytest.raises(TraceError, match="there is no"):
        analyse([tmp_path / "nowhere"])
    (tmp_path / "rank0.pt.trace.json.gz").unlink()
    with pytest.raises(TraceError, match="no trace files"):
        analyse([tmp_path])


def test_verify_file_proves_a_rank(tmp_path: Path) -> None:
    path = write(tmp_path / "rank2.pt.trace.json.gz", kineto(decode_events(), rank=2, world=8))
    check = verify_file(path)
    assert (check.whole, check.rank, check.world_size, check.device_events) == (True, 2, 8, 200)
    path.write_bytes(path.read_bytes()[:-20])
    check = verify_file(path)
    assert not check.whole
    assert check.problems
    missing = verify_file(tmp_path / "none.json")
    assert not missing.whole
    assert "cannot be read" in missing.problems[0]


def test_many_streams_do_not_confuse_counts(tmp_path: Path) -> None:
    events = [kernel("k", 1_000 * n, 3_000, stream=n, correlation=n) for n in range(1, 60)]
    (rank,) = analyse([write(tmp_path / "rank0.json", kineto(events))]).to_json()["ranks"]
    assert (rank["streams"], rank["kernels"], rank["busy_us"], rank["sum_us"]) == (59, 59, 61.0, 177.0)

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import TraceError
from opsctl.trace import Taken, write_excerpt
from tests.trace.kineto import GEMM, MARLIN, NCCL, decode_events, kernel, kineto, write
from tests.trace.scenario import Scenario


def test_some_steps_of_all_ranks_on_one_clock(tmp_path: Path) -> None:
    for rank in range(2):
        events = decode_events(slow=1_000 * rank)
        for event in events:
            event["ts"] += rank * 700_000  # rank 1's clock is 0.7 ms ahead
        write(tmp_path / f"rank{rank}.pt.trace.json.gz", kineto(events, rank=rank, world=2))
    out = tmp_path / "excerpt.json.gz"
    written = write_excerpt(
        [tmp_path / "rank0.pt.trace.json.gz", tmp_path / "rank1.pt.trace.json.gz"], out, Taken(steps=3)
    )
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    assert (written.steps, written.ranks, written.events) == (3, 2, len(events))
    ends = {
        rank: sorted(e["ts"] + e["dur"] for e in events if e["name"] == NCCL and e["pid"] // 10_000_000 == rank)
        for rank in range(2)
    }
    assert len(ends[0]) >= 9
    assert ends[1][-9:] == pytest.approx(ends[0][-9:], abs=0.002)
    assert {e["name"] for e in events} >= {MARLIN, GEMM, NCCL}
    assert min(e["ts"] for e in events) >= 0


def test_without_steps_there_is_nothing_to_take(tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", kineto([kernel("k", 1_000 + n * 5_000, 4_000) for n in range(9)]))
    with pytest.raises(TraceError, match="no steady steps"):
        write_excerpt([path], tmp_path / "out.json")


def taken(out: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(out.read_bytes())["traceEvents"]
    return events


def test_launches_flows_and_markers_are_kept_however_late_the_device_runs(tmp_path: Path) -> None:
    scenario = Scenario(marker="training", lag=77_000, graphs=False, steps=6)
    events = scenario.events(0)
    text = kineto(events)
    flow = (
        b'\n  {\n    "ph": "%s", "id": 1001, "pid": 0, "tid": 7, "ts": %d.000, "cat": "ac2g", "name": "ac2g"\n  },'
        b'\n  {\n    "name": "process_name", "ph": "M", "ts": 0.000, "pid": 0, "tid": 0,\n    "args": {\n'
        b'      "name": "python"\n    }\n  },'
    )
    at = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    text = text[:at] + flow % (b"s", scenario.base - 76_990) + flow % (b"f", scenario.base) + text[at:]
    path, out = write(tmp_path / "rank0.json", text), tmp_path / "out.json"
    written = write_excerpt([path], out, Taken(steps=2, step=0))
    kept = taken(out)
    work = [event for event in kept if event.get("cat") == "kernel"]
    assert written.steps == 2
    assert len(work) == sum(1 for piece in scenario.pieces(0) if piece.step < 2)
    launched = {event["args"]["correlation"] for event in kept if event.get("cat") == "cuda_runtime"}
    assert {event["args"]["correlation"] for event in work} <= launched
    assert {event["name"] for event in kept} >= {"ProfilerStep#0", "ProfilerStep#1"}
    assert [event["ph"] for event in kept if event.get("cat") == "ac2g"] == ["s", "f"]
    assert any(event["ph"] == "M" and event["args"]["name"] == "rank 0: python" for event in kept)
    assert json.loads(out.read_bytes())["deviceProperties"][0]["name"] == "NVIDIA H200"


def test_a_span_of_time_needs_no_steps(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rank0.json", kineto([kernel("k", 1_000_000 * n, 4_000, correlation=n) for n in range(1, 9)])
    )
    out = tmp_path / "out.json"
    written = write_excerpt([path], out, Taken(begin=1_500_000, end=3_500_000))
    assert (written.steps, [event["name"] for event in taken(out)]) == (0, ["k", "k"])
    with pytest.raises(TraceError, match="nothing runs in the span"):
        write_excerpt([path], out, Taken(begin=900_000_000))


def test_one_rank_alone(tmp_path: Path) -> None:
    folder, out = tmp_path / "traces", tmp_path / "out.json"
    folder.mkdir()
    for rank in range(2):
        write(folder / f"rank{rank}.json", kineto(decode_events(slow=1_000 * rank), rank=rank, world=2))
    assert write_excerpt([folder], out, Taken(rank=1)).ranks == 1
    assert {event["pid"] // 10_000_000 for event in taken(out)} == {1}
    with pytest.raises(TraceError, match="no work"):
        write_excerpt([folder], out, Taken(rank=7))

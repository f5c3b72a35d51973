from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from opsctl.errors import TraceError
from opsctl.trace import Taken, write_excerpt
from tests.trace.kineto import GEMM, MARLIN, NCCL, decode_events, kernel, kineto, write


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

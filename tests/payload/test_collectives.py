"""Real gloo ranks; and ranks that do what NCCL does on a bad day."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from opsctl.payload import collectives
from opsctl.payload.collectives import free_port, interface_towards
from opsctl.payload.collectives_rank import BUS_FACTOR, Operation
from opsctl.payload.errors import PayloadError
from opsctl.payload.output import Output, read_records
from tests.payload.pacing import cells, figures, run_payload

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def spec(*names: str, **changes: Any) -> dict[str, Any]:
    return {
        "world_size": 2,
        "backend": "gloo",
        "repetitions": 8,
        "smoke_limit": 80.0,
        "limit": 100.0,
        "cells": [{"id": name, "op": name, "bytes": 4096, "graph": "off", "environment": {}} for name in names],
        **changes,
    }


def test_real_ranks_over_gloo(tmp_path: Path) -> None:
    work = spec(*OPS)
    work["cells"].append({"id": "graph", "op": "all_reduce", "bytes": 4096, "graph": "on", "environment": {}})
    work["cells"].append({"id": "odd", "op": "all_to_all", "bytes": 1001, "graph": "off", "environment": {}})
    records = run_payload("collectives", work, tmp_path)
    seen = cells(records)
    assert {name: cell["state"] for name, cell in seen.items()} == {
        **dict.fromkeys((*OPS, "odd"), "verified"),
        "graph": "skipped",
    }
    for name in OPS:
        found = figures(seen[name])
        assert 0 < found["collective.time.p50"] <= found["collective.time.p99"]
        assert found["collective.algbw"] == pytest.approx(4096 / found["collective.time.p50"] / 1e3, rel=1e-6)
        assert found["collective.busbw"] == pytest.approx(found["collective.algbw"] * BUS_FACTOR[name](2))
    assert seen["odd"]["detail"]["bytes"] == 1000  # whole elements, and as many for each rank
    evidence = [record for record in records if record["record"] == "evidence"]
    assert evidence[0]["asked"].startswith(
        "smoke test: all_gather, all_reduce, all_to_all, reduce_scatter over 2 ranks"
    )
    assert records[-1]["state"] == "verified"


@pytest.mark.parametrize(
    ("op", "world", "factor"), [("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("all_to_all", 2, 0.5)]
)
def test_bus_bandwidth_is_nccl_tests(op: str, world: int, factor: float) -> None:
    assert BUS_FACTOR[op](world) == factor


class _Alone:
    """A rank among four, without the others: what Operation needs to lay out its buffers."""

    def __init__(self, rank: int) -> None:
        self.torch, self.rank, self.world = torch, rank, 4
        self.device = torch.device("cpu")

    @staticmethod
    def elements(size: int) -> int:
        return -(-(size // 2) // 4) * 4


@pytest.mark.parametrize("op", OPS)
def test_what_each_rank_expects_follows_from_what_all_ranks_send(op: str) -> None:
    """Carry the collective out by hand on the four ranks' buffers."""
    made = [Operation(_Alone(rank), op, 64) for rank in range(4)]  # type: ignore[arg-type]
    sources = [each.source.float() for each in made]
    part = made[0].bytes // 2 // 4
    for rank, each in enumerate(made):
        mine = slice(rank * part, (rank + 1) * part)
        results = {
            "all_reduce": sum(sources),
            "all_gather": torch.cat([source[:part] for source in sources]),
            "reduce_scatter": sum(source[mine] for source in sources),
            "all_to_all": torch.cat([source[mine] for source in sources]),
        }
        result = torch.cat(sources) if op == "all_gather" else results[op]
        assert torch.equal(each.expected.float(), result)


# A stand-in for a rank: the smoke test passes, and then the group does what groups do.
RANK = """
import json, os, sys, time
def say(**message): print(json.dumps({"collectives": message}), flush=True)
work = json.load(open(sys.argv[3])); rank = int(os.environ["RANK"]); fault = os.environ["FAULT"]
if work["p2p"]:
    say(gpus=int(os.environ["GPUS"]))
    sys.exit(0)
if work["smoke"]:
    if fault == "smoke hangs": time.sleep(600)
    if fault == "smoke dies": sys.exit("NCCL WARN Cuda failure 'peer access is not supported'")
    if rank == 0: say(environment={"backend": "nccl"}, smoke=True)
    sys.exit(0)
for cell in work["cells"]:
    say(at=cell["id"])
    if cell["id"] == "b" and fault == "hangs": time.sleep(600)
    if cell["id"] == "b" and fault.startswith("rank 1 dies"):
        if rank == 1: print("NCCL WARN something", file=sys.stderr); sys.exit(9)
        time.sleep(600)
    late = rank == 0 and fault == "rank 1 dies, rank 0 late" and "b" in [each["id"] for each in work["cells"]]
    if cell["id"] == "a" and late: time.sleep(600)
    if rank == 0: say(cell={"id": cell["id"], "state": "verified", "detail": dict(work["environment"])})
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    rank = tmp_path / "rank.py"
    rank.write_text(RANK)
    monkeypatch.setattr(collectives, "self_command", lambda: [sys.executable, str(rank)])
    monkeypatch.setattr(collectives, "_SILENCE", 8.0)

    def run(fault: str, *, gpus: int = 2, **changes: Any) -> dict[str, Any]:
        monkeypatch.setenv("FAULT", fault)
        monkeypatch.setenv("GPUS", str(gpus))
        with Output(tmp_path / "r.jsonl") as output:
            ended = collectives.run(collectives.Spec.from_dict(spec("a", "b", "c", **changes)), output)
        return {"ended": ended, **cells(read_records(tmp_path / "r.jsonl"))}

    return run


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hangs", "hung: no end within 8 s"),
        ("rank 1 dies", "NCCL WARN something"),
        # Rank 0 has not yet given the result of the cell before: that cell is measured again, not blamed.
        ("rank 1 dies, rank 0 late", "NCCL WARN something"),
    ],
)
def test_a_group_that_hangs_or_dies_costs_the_cell_that_it_was_at(faulty: Any, fault: str, said: str) -> None:
    seen = faulty(fault)
    assert [seen[name]["state"] for name in "abc"] == ["verified", "failed", "verified"]
    assert said in seen["b"]["reason"]
    assert seen["ended"] == ("failed", "2 of 3 cells measured")


@pytest.mark.parametrize(
    ("fault", "said"),
    [("smoke hangs", "did not end within 2 s"), ("smoke dies", "peer access is not supported")],
)
def test_the_smoke_test_comes_first_and_its_failure_says_why(faulty: Any, fault: str, said: str) -> None:
    seen = faulty(fault, smoke_limit=2.0)
    assert said in seen["ended"][1]
    assert {seen[name]["state"] for name in "abc"} == {"failed"}


def test_each_set_of_variables_has_a_group_of_its_own(faulty: Any) -> None:
    work = [
        {"id": f"x/{value}", "op": "all_reduce", "bytes": 8, "graph": "off", "environment": {"NCCL_PROTO": value}}
        for value in ("LL", "Simple")
    ]
    seen = faulty("none", cells=work)
    assert [seen[f"x/{value}"]["detail"] for value in ("LL", "Simple")] == [
        {"NCCL_PROTO": "LL"},
        {"NCCL_PROTO": "Simple"},
    ]


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_on_one_gpu_there_is_nothing_to_exchange(faulty: Any, tmp_path: Path, backend: str) -> None:
    seen = faulty("smoke dies", gpus=1, world_size=8, backend=backend)
    assert seen["ended"] == ("skipped", "one GPU: there is nothing to exchange")
    assert {(seen[name]["state"], seen[name]["reason"]) for name in "abc"} == {seen["ended"]}
    evidence = [each for each in read_records(tmp_path / "r.jsonl") if each["record"] == "evidence"]
    assert evidence[0]["observed"] == "1, and 8 ranks were asked for"


@pytest.mark.parametrize("backend", ["auto", "nccl"])
def test_ranks_that_would_share_a_gpu_do_not_start(faulty: Any, backend: str) -> None:
    seen = faulty("smoke dies", gpus=2, world_size=8, backend=backend)
    assert seen["ended"] == ("failed", "8 ranks want a GPU each, and this host has 2")
    where = {"address": "127.0.0.1", "port": free_port(), "node": 0, "nodes": 2}
    assert faulty("smoke dies", gpus=1, world_size=8, backend=backend, rendezvous=where)["ended"] == (
        "failed",
        "4 ranks want a GPU each, and this host has 1",
    )


def test_without_a_gpu_auto_is_gloo(faulty: Any) -> None:
    assert faulty("none", gpus=0, backend="auto")["ended"] == ("verified", "3 of 3 cells measured")


def test_more_ranks_than_gpus(tmp_path: Path) -> None:
    records = run_payload("collectives", spec("all_reduce", backend="nccl"), tmp_path)
    assert records[-1]["reason"] == "2 ranks want a GPU each, and this host has 0"
    assert cells(records)["all_reduce"]["state"] == "failed"


def test_ranks_that_do_not_spread_evenly(tmp_path: Path) -> None:
    where = collectives.Rendezvous("127.0.0.1", 29500, 0, 2)
    with pytest.raises(PayloadError, match="3 ranks cannot be spread evenly over 2 hosts"):
        collectives.Group(3, where, collectives.Work("gloo"), 29500, tmp_path)


def test_ports_and_interfaces() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("no.such.name.invalid") is None


def test_taken_up_it_measures_only_what_is_left(tmp_path: Path) -> None:
    run_payload("collectives", spec("all_reduce"), tmp_path)
    records = run_payload("collectives", spec("all_reduce"), tmp_path)
    assert records[-1]["reason"] == "1 of 1 cells had been measured already"
    assert json.dumps(records).count('"verified", "reason": "", "figures"') == 1

"""What crosses between controller and host: to JSON and back, and never half understood."""

from __future__ import annotations

import json

import pytest

from opsctl.payload import collectives, gemm, profile_spec, serving_spec
from opsctl.payload.records import KINDS, ArtifactRecord, CellRecord, EndRecord, Figure, Record, read_record

RECORDS = [
    CellRecord("a", "verified", "", (Figure("x", 1.5, "ms", low=1.0, high=2.0),), {"bytes": 3}),
    serving_spec.Spec(
        "http://x",
        "m",
        10,
        5,
        (serving_spec.CellSpec("c", 8), serving_spec.CellSpec("r", request_rate=2.5)),
        quiet=serving_spec.QuietSpec(10.0, 1.0),
        metrics=serving_spec.Metrics(running=("x:running",)),
        version=(("/version", "version"),),
    ),
    profile_spec.Spec("http://x", "m", "/t", 8, 10, 5, (profile_spec.CellSpec("c", 1),), expected={"all_reduce": 1}),
    gemm.Spec((gemm.OpSpec("o", "dense", n=4, k=8),), (gemm.CellSpec("c", "o", 1, "torch"),)),
    collectives.Spec(8, cells=(collectives.CellSpec("c", "all_reduce", 8, environment={"NCCL_PROTO": "LL"}),)),
    collectives.Spec(8, rendezvous=collectives.Rendezvous("10.0.0.1", 1, 0, 2)),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__qualname__)
def test_to_json_and_back(record: Record) -> None:
    assert type(record).from_dict(json.loads(json.dumps(record.to_dict()))) == record


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"record": "news"}, "no such record: 'news'"),
        ({"record": "cell", "id": "a"}, "CellRecord: .*state"),
        ({"record": "end", "state": "verified", "mood": "fine"}, "EndRecord has no mood"),
        ({"record": "cell", "id": "a", "state": "verified", "figures": [{"name": "x"}]}, "Figure: .*value"),
    ],
)
def test_what_the_other_side_does_not_know_is_refused(document: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_record(document)


def test_every_kind_is_read_back_as_itself() -> None:
    assert set(KINDS) == {"cell", "environment", "evidence", "progress", "artifact", "end"}
    for made in (EndRecord("verified"), ArtifactRecord("f", 1, "0" * 64)):
        assert read_record({"record": made.KIND, **made.to_dict()}) == made

import hashlib
import json
from pathlib import Path

import pytest

from opsctl.payload.output import Output, read_records
from opsctl.payload.records import Figure


def test_each_record_is_a_line_on_the_disk_at_once(tmp_path: Path) -> None:
    with Output(tmp_path / "r.jsonl") as output:
        output.cell("a", "verified", figures=[Figure("x", 1.0, "s")])
        seen = read_records(tmp_path / "r.jsonl")
    assert seen == [
        {
            "record": "cell",
            "id": "a",
            "state": "verified",
            "reason": "",
            "figures": [Figure("x", 1.0, "s").to_dict()],
            "detail": {},
        }
    ]


def test_resume_knows_the_cells_whose_last_word_is_verified(tmp_path: Path) -> None:
    with Output(tmp_path / "r.jsonl") as output:
        output.cell("a", "running")
        output.cell("a", "verified")
        output.cell("b", "verified")
        output.cell("b", "failed", reason="again")
        output.cell("c", "running")
    with Output(tmp_path / "r.jsonl") as output:
        assert output.verified == {"a"}


@pytest.mark.parametrize("keep", range(1, 60, 7))
def test_a_line_cut_by_a_kill_costs_only_itself(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "r.jsonl"
    with Output(path) as output:
        output.cell("a", "verified")
        before = path.stat().st_size
        output.cell("b", "verified")
    data = path.read_bytes()
    path.write_bytes(data[: before + keep])
    with Output(path) as output:
        assert output.verified == {"a"}
        output.end("verified")
    assert [record["record"] for record in read_records(path)] == ["cell", "end"]


def test_lines_that_are_not_json_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"record":"cell","id":"a","state":"verified"}\nnonsense\n[1]\n\xff\xfe\n')
    assert len(read_records(path)) == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_never_recorded(tmp_path: Path, value: float) -> None:
    with Output(tmp_path / "r.jsonl") as output, pytest.raises(ValueError, match="JSON"):
        output.cell("a", "verified", figures=[Figure("x", value, "s")])


def test_artifact_has_size_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f.bin").write_bytes(b"x" * 3_000_000)
    with Output(tmp_path / "r.jsonl") as output:
        record = output.artifact(tmp_path / "sub" / "f.bin", "trace")
    assert record.path == "sub/f.bin"
    assert (record.size, record.sha256) == (3_000_000, hashlib.sha256(b"x" * 3_000_000).hexdigest())


def test_progress_is_rationed(tmp_path: Path) -> None:
    with Output(tmp_path / "r.jsonl") as output:
        for place in range(50):
            output.progress("loading", place, 50, every=60.0)
    lines = (tmp_path / "r.jsonl").read_text().splitlines()
    assert [json.loads(line)["done"] for line in lines] == [0]

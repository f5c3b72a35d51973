import json
import subprocess
import sys
from pathlib import Path

from opsctl.payload.errors import Cancelled
from tests.payload.pacing import run_payload


def test_a_spec_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-m", "opsctl.payload", "command", "--spec", "spec.json", "--out", "r.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "the spec cannot be read" in done.stderr


def test_an_error_that_nobody_foresaw_still_ends_with_a_record(tmp_path: Path) -> None:
    records = run_payload("command", {"argv": 7}, tmp_path)
    assert records[-1]["record"] == "end"
    assert records[-1]["state"] == "failed"
    assert records[-1]["reason"].startswith("the payload broke: ")


def test_the_environment_comes_before_and_after(tmp_path: Path) -> None:
    records = run_payload("command", {"argv": ["true"], "limit": 10}, tmp_path)
    environments = [record["environment"] for record in records if record["record"] == "environment"]
    assert {"host", "kernel", "versions", "variables", "topology", "before"} <= set(environments[0])
    assert set(environments[-1]) == {"after"}
    json.dumps(records)


def test_nothing_swallows_a_cancellation() -> None:
    assert not issubclass(Cancelled, Exception)

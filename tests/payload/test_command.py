import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.payload.command import take
from opsctl.payload.errors import PayloadError
from tests.payload.pacing import cells, figures, run_payload


def spec(argv: list[str], **changes: Any) -> dict[str, Any]:
    return {"argv": argv, "env": {}, "collect": [], "figures": {}, "limit": 30.0, **changes}


def test_a_program_its_files_and_its_figures(tmp_path: Path) -> None:
    program = (
        "import json,os; json.dump({'a': {'list': [1, 2.5]}, os.environ['X']: 1}, open('out.json', 'w')); print('hi')"
    )
    records = run_payload(
        "command",
        spec(
            [sys.executable, "-c", program],
            env={"X": "1"},
            collect=["*.json", "none-*"],
            figures={"latency [ms]": "out.json#a.list.1", "plain": "out.json#a.list.0"},
        ),
        tmp_path,
    )
    cell = cells(records)["command"]
    assert cell["state"] == "verified"
    assert figures(cell)["latency"] == 2.5
    assert figures(cell)["plain"] == 1
    assert [figure["unit"] for figure in cell["figures"]] == ["s", "ms", "count"]
    paths = {record["path"] for record in records if record["record"] == "artifact"}
    assert {"command.stdout", "command.stderr", "out.json"} <= paths
    assert (tmp_path / "command.stdout").read_text() == "hi\n"


@pytest.mark.parametrize(
    ("argv", "changes", "said"),
    [
        (["sh", "-c", "echo broken >&2; exit 3"], {}, "ended with status 3: broken"),
        (["no-such-program-here"], {}, "no-such-program-here is not on this host's PATH"),
        (["true"], {"figures": {"x": "none.json#a"}}, "none.json cannot be read: No such file"),
        (["sh", "-c", "echo '{' > o.json"], {"figures": {"x": "o.json#a"}}, "o.json is not JSON"),
        (["sh", "-c", "echo '{\"b\": 1}' > o.json"], {"figures": {"x": "o.json#a.b"}}, "no a; there is b"),
    ],
)
def test_what_goes_wrong_is_told(tmp_path: Path, argv: list[str], changes: dict[str, Any], said: str) -> None:
    records = run_payload("command", spec(argv, **changes), tmp_path)
    cell = cells(records)["command"]
    assert cell["state"] == "failed"
    assert said in cell["reason"]
    assert records[-1]["state"] == "failed"


def test_at_its_limit_the_program_and_its_children_are_ended(tmp_path: Path) -> None:
    began = time.monotonic()
    child = f"import os,time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    argv = ["sh", "-c", f'"{sys.executable}" -c "{child}" & wait']
    records = run_payload("command", spec(argv, limit=2.0), tmp_path)
    assert "did not end within 2 s" in cells(records)["command"]["reason"]
    assert time.monotonic() - began < 25
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split(")")[1]


def test_collect_never_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    step = tmp_path / "step"
    records = run_payload(
        "command", spec(["ln", "-s", "../secret.txt", "link.txt"], collect=["*.txt", "../*.txt"]), step
    )
    assert "secret" not in json.dumps([record for record in records if record["record"] == "artifact"])
    assert "link.txt" not in json.dumps([record for record in records if record["record"] == "artifact"])


@pytest.mark.parametrize(("path", "value"), [("a.b", 1.0), ("l.1", 3.0)])
def test_take(path: str, value: float) -> None:
    assert take({"a": {"b": 1}, "l": [2, 3]}, path) == value


@pytest.mark.parametrize("path", ["a", "a.c", "l.7", "l.x", "t", "s"])
def test_take_refuses_what_is_no_number(path: str) -> None:
    with pytest.raises(PayloadError):
        take({"a": {"b": 1}, "l": [2, 3], "t": True, "s": "5"}, path)

"""``opsctl explain-log``: a saved log, explained without a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.cli import main

LOGS = Path(__file__).parents[1] / "data" / "logs"


def explain(*words: str) -> int:
    """Return the exit code of a call."""
    with pytest.raises(SystemExit) as ended:
        main(["explain-log", *words])
    return int(ended.value.code or 0)


def test_a_good_load_is_told_by_phase_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain(str(LOGS / "vllm-0.26-h200-load.log")) == 0
    out = capsys.readouterr().out
    assert "engine  vLLM 0.26.0" in out
    assert "spawned → engine init → weights → after weights → HTTP up" in out
    assert "weights: weights begin" in out
    assert "verdict  the server came up" in out
    assert "cause" not in out


def test_a_cause_is_told_with_its_line_and_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text("vllm serve: error: unrecognized arguments: --enable-chunked-prefil\n", encoding="utf-8")
    assert explain(str(log), "--engine", "vllm", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "ends"
    assert said["cause"]["name"] == "wrong command line"
    assert "--enable-chunked-prefil" in said["quoted"][0]


def test_lines_are_counted_as_an_editor_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = "Loading safetensors checkpoint shards:  50% Completed | {}/4 [00:10<00:10,  5.00s/it]"
    log = tmp_path / "server.log"
    log.write_bytes(("x\n" + "\r".join(bar.format(done) for done in range(4)) + "\nlast\n").encode())
    assert explain(str(log)) == 0
    assert capsys.readouterr().out.count("line 2 ") == 4, "a bar's carriage returns are no lines"


def test_a_file_that_is_not_there_is_two(tmp_path: Path) -> None:
    assert explain(str(tmp_path / "none")) == 2

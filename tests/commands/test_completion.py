from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.cli import main
from opsctl.runs.journal import Journal

Offered = Callable[[str], list[str]]

INVENTORY = """
hosts: {gpu1: {}, gpu2: {}}
groups: {kimi: [gpu1]}
services: {p: {url: "http://127.0.0.1:8000", model: m}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "night.yml").touch()
    (tmp_path / "day.yml").touch()
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    (tmp_path / "lab.yml").write_text(INVENTORY.replace("gpu", "lab"))
    with Journal(tmp_path / "state" / "opsctl") as journal:
        journal.begin_run("20261201-0245-ab", playbook="x", file="x.yml", version="1", definition={})
    return tmp_path


@pytest.fixture
def offered(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """Return what a bash in the folder is told when Tab is pressed at the end of a line."""

    def ask(line: str) -> list[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
        monkeypatch.setenv("_OPSCTL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            main([])
        told = capsys.readouterr()
        assert told.err == ""
        return told.out.split()

    return ask


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("opsctl va", ["validate"]),
        ("opsctl run n", ["night.yml"]),
        ("opsctl plan ", ["day.yml", "lab.yml", "night.yml"]),
        ("opsctl validate playbooks/", ["playbooks/night.yml"]),
        ("opsctl rollback ", ["gpu1", "gpu2", "kimi"]),
        ("opsctl rollback -i lab.yml l", ["lab1", "lab2"]),
        ("opsctl lease show k", ["kimi"]),
        ("opsctl status 2026", ["20261201-0245-ab"]),
        ("opsctl resume 9", []),
        ("opsctl plan --if-d", ["--if-down"]),
    ],
)
def test_playbooks_hosts_and_runs_are_offered(offered: Offered, line: str, wanted: list[str]) -> None:
    assert offered(line) == wanted


def test_what_is_broken_is_no_reason_to_speak(folder: Path, offered: Offered) -> None:
    (folder / "inventory.yml").write_text("hosts: [")
    assert offered("opsctl rollback ") == []
    (folder / "inventory.yml").unlink()
    assert offered("opsctl rollback ") == []

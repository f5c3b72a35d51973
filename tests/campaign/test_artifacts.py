"""Fetching a step's files, from this machine as its host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.campaign import limits
from opsctl.campaign.artifacts import collect_folder
from opsctl.deadline import Deadline
from opsctl.errors import JournalError
from opsctl.host import connect
from opsctl.host.protocol import Host
from opsctl.playbook.models import HostEntry


@pytest.fixture
def here() -> Host:
    return connect("here", HostEntry(transport="local"), deadline=Deadline(10, "connection"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    there = tmp_path / "there"
    (there / "sub folder").mkdir(parents=True)
    (there / "results.jsonl").write_text("{}\n")
    (there / "stderr.log").write_text("words\n")
    (there / "sub folder" / "a.json").write_text("[]")
    (there / "unasked").write_text("x")
    return there


def test_what_is_asked_for_comes_with_what_always_does(here: Host, folder: Path, tmp_path: Path) -> None:
    found = collect_folder(here, str(folder), tmp_path / "step", ["sub folder/*"])
    assert [(one.path, one.size, one.kind) for one in found.artifacts] == [
        ("step/results.jsonl", 3, "results"),
        ("step/stderr.log", 6, "log"),
        ("step/sub folder/a.json", 2, "file"),
    ]
    assert found.left == ()


def test_an_output_that_was_filled_stays_on_the_host_and_is_named(here: Host, folder: Path, tmp_path: Path) -> None:
    os.truncate(folder / "stderr.log", limits.FETCHED_LOG_MOST + 1)  # a hole: it takes no room
    found = collect_folder(here, str(folder), tmp_path / "step", [])
    assert [one.path for one in found.artifacts] == ["step/results.jsonl"]
    assert found.left == (f"{folder}/stderr.log: 67 MB, more than the 67 MB that are fetched",)
    assert not (tmp_path / "step" / "stderr.log").exists()


def test_a_machine_that_cannot_store_says_so(here: Host, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "step").write_text("a file where the folder should be")
    with pytest.raises(JournalError, match=r"results.jsonl of here could not be stored on this machine") as caught:
        collect_folder(here, str(folder), tmp_path / "step", [])
    assert "opsctl collect" in (caught.value.hint or "")


def test_a_step_that_left_nothing(here: Host, tmp_path: Path) -> None:
    assert collect_folder(here, str(tmp_path / "gone"), tmp_path / "step", []).artifacts == ()

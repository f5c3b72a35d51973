"""Fetching a step's files, from this machine as its host."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.campaign import limits
from opsctl.campaign.artifacts import collect_folder
from opsctl.deadline import Deadline
from opsctl.errors import JournalError
from opsctl.host import connect
from opsctl.host.protocol import Completed, Host
from opsctl.playbook.models import HostEntry
from opsctl.results import Artifact


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


@pytest.mark.parametrize("name", ["../../evil.log", "/etc/evil.log", "a/../../evil.log", "evil\x1b[2J.log", ""])
def test_a_name_that_leads_out_of_the_runs_folder_is_not_fetched(
    here: Host, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "evil.log").write_text("mine")
    listing = Completed(("find",), 0, f"5 {name}\0".encode(), b"", 0.1)
    monkeypatch.setattr(here, "run", lambda *_, **__: listing)
    found = collect_folder(here, str(folder), tmp_path / "run" / "step", ["*"])
    assert found.artifacts == ()
    assert "leads out of the run's folder" in found.left[0]
    assert (tmp_path / "evil.log").read_text() == "mine"
    assert not (tmp_path / "run").exists()


def test_a_link_that_leads_out_of_the_folder_is_not_followed(here: Host, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step").mkdir()
    (tmp_path / "step" / "sub folder").symlink_to(tmp_path / "elsewhere")
    (folder / "device.log").symlink_to("/dev/zero")
    found = collect_folder(here, str(folder), tmp_path / "step", ["*"])
    assert {one.path for one in found.artifacts} == {"step/results.jsonl", "step/stderr.log", "step/unasked"}
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_result_cannot_name_a_file_outside() -> None:
    with pytest.raises(ValueError, match="below the run's folder"):
        Artifact(path="../journal.sqlite", size=1, sha256="")


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


SECRET = st.text("abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", min_size=12, max_size=40)
SHAPES = (
    "vllm serve m --api-key {0} --port 8000",
    "AWS_SECRET_ACCESS_KEY={0}",
    "env: PGPASSWORD={0} HOME=/root",
    "Authorization: Bearer {0}",
    "args: {{'api_key': '{0}', 'port': 8000}}",
    '{{"record": "evidence", "detail": {{"hf_token": "{0}"}}}}',
    "curl https://user:{0}@hub.example/x",
    "--ssl-keyfile-password {0}",
)
FILES = ("stdout.log", "stderr.log", "results.jsonl", "out.json", "notes.txt")


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(planted=st.lists(st.tuples(st.sampled_from(FILES), st.sampled_from(SHAPES), SECRET), min_size=1, max_size=12))
def test_no_planted_secret_is_in_a_fetched_text_file(here: Host, planted: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        there, here_ = Path(name, "there"), Path(name, "run", "step")
        there.mkdir()
        for file, shape, secret in planted:
            with (there / file).open("ab") as out:
                out.write(b"harmless: loss=0.25 \xff tokens: 128\n" + shape.format(secret).encode() + b"\n")
        found = collect_folder(here, str(there), here_, ["*"])
        assert {one.path for one in found.artifacts} == {f"step/{file}" for file, *_ in planted}
        for one in found.artifacts:
            data = (here_.parent / one.path).read_bytes()
            assert not [secret for _, _, secret in planted if secret.encode() in data]
            assert b"harmless: loss=0.25 \xff tokens: 128\n" in data
            assert (one.size, one.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_a_file_without_secrets_and_a_binary_one_come_byte_for_byte(here: Host, folder: Path, tmp_path: Path) -> None:
    files = {
        "results.jsonl": b'{"a":1,  "tokens":[1,2]}\n{"b":2}\r\n',
        "a.pt.trace.json": b'{"api_key": "of-a-kernel"}',
        "b.gz": gzip.compress(b"PGPASSWORD=abcdefghijkl"),
        "c.bin": b"\0PGPASSWORD=abcdefghijkl",
        "d.json": b'{\n\t"x": 1.50\n}',
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    collect_folder(here, str(folder), tmp_path / "step", list(files))
    assert {name: (tmp_path / "step" / name).read_bytes() for name in files} == files

from __future__ import annotations

import json
from typing import Any

import pytest

from opsctl.errors import HostError
from opsctl.host.journal import batch_argv, message_text, parse_batch
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit


def line(cursor: str = "c1", message: Any = "hello", **more: Any) -> bytes:
    return json.dumps(
        {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": "1700000000500000", "MESSAGE": message, **more},
    ).encode()


def test_entries_and_the_last_cursor() -> None:
    batch = parse_batch(line(_PID="7") + b"\n" + line("c2", "bye") + b"\n", after="c0")
    assert [(entry.time, entry.message, entry.pid) for entry in batch.lines] == [
        (1700000000.5, "hello", 7),
        (1700000000.5, "bye", 0),
    ]
    assert batch.cursor == "c2"


def test_no_entry_keeps_the_cursor() -> None:
    assert parse_batch(b"", after="c0").cursor == "c0"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (list(b"10%\r20%\r"), "10%\r20%\r"),
        ([255, 104], "\ufffdh"),
        (["one", "two"], "one\ntwo"),
        ([[104, 105], "x"], "hi\nx"),
        (None, ""),
        ([], ""),
    ],
)
def test_every_shape_of_a_message(value: object, text: str) -> None:
    assert message_text(value) == text


@pytest.mark.parametrize("raw", [b"not json", b"[]", b'{"MESSAGE": "no cursor"}'])
def test_what_is_no_entry_is_an_error(raw: bytes) -> None:
    with pytest.raises(HostError, match="no journal entry"):
        parse_batch(raw, after="c0")


def test_user_units_are_asked_for_as_such() -> None:
    assert "--user-unit" in batch_argv("x", "c", 5, user=True)
    assert "--after-cursor" not in batch_argv("x", "", 5, user=False)


def write(lab_host: LabHost, unit: str, script: str) -> None:
    lab_host.exec("systemd-run", "--quiet", "--wait", f"--unit={unit}", "sh", "-c", script)
    lab_host.exec("journalctl", "--sync")


@pytest.mark.lab
def test_a_units_lines_since_a_cursor(host: Host, lab_host: LabHost) -> None:
    write(lab_host, "before", "echo earlier")
    start = host.journal("talk.service", after=None, deadline=limit())
    assert start.lines == ()
    write(lab_host, "talk", r"printf '10%%\r20%%\r30%%\n'; echo plain; head -c 9000 /dev/zero | tr '\0' x; echo")
    batch = host.journal("talk.service", after=start.cursor, deadline=limit())
    messages = [entry.message for entry in batch.lines if entry.pid != 1]
    assert messages[:2] == ["10%\r20%\r30%", "plain"]
    assert "".join(messages[2:]) == "x" * 9000
    assert host.journal("talk.service", after=batch.cursor, deadline=limit()).lines == ()


@pytest.mark.lab
def test_batches_are_bounded_and_lose_nothing(host: Host, lab_host: LabHost) -> None:
    cursor = host.journal("many.service", after=None, deadline=limit()).cursor
    write(lab_host, "many", "seq 1 250")
    seen: list[str] = []
    for _ in range(10):
        batch = host.journal("many.service", after=cursor, deadline=limit(), limit=60)
        assert len(batch.lines) <= 60
        seen += [entry.message for entry in batch.lines if entry.pid != 1]
        cursor = batch.cursor
        if not batch.lines:
            break
    assert seen == [str(number) for number in range(1, 251)]


@pytest.mark.lab
def test_a_cursor_outlives_rotation_and_vacuum(host: Host, lab_host: LabHost) -> None:
    write(lab_host, "old", "echo old")
    cursor = host.journal("fresh.service", after=None, deadline=limit()).cursor
    lab_host.exec("journalctl", "--rotate")
    lab_host.exec("journalctl", "--vacuum-time=1us")
    write(lab_host, "fresh", "echo fresh")
    batch = host.journal("fresh.service", after=cursor, deadline=limit())
    assert "fresh" in [entry.message for entry in batch.lines]

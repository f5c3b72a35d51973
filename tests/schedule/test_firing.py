from __future__ import annotations

import fcntl
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import UnfitError
from opsctl.schedule import firing
from opsctl.schedule.ledger import Entry, Ledger
from tests.schedule.test_plans import schedule


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path)
    made.save(schedule(state_home=str(tmp_path)))
    return made


def events(ledger: Ledger) -> list[str]:
    return [entry.event for entry in ledger.entries("nightly")]


def test_a_start_becomes_the_run_and_holds_the_lock(ledger: Ledger) -> None:
    became: list[list[str]] = []

    def become(argv: list[str]) -> None:
        became.append(argv)
        other = os.open(ledger.lock_path, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert os.pread(other, 100, 0) == b"nightly"
        os.close(other)

    firing.fire("nightly", ledger, become=become)
    assert became == [schedule().run_argv("/srv/ops/playbooks/nightly-snapshot.yml")]
    assert events(ledger) == ["started"]


def held(ledger: Ledger) -> int:
    lock = os.open(ledger.lock_path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.pwrite(lock, b"weekly", 0)
    return lock


def never(argv: list[str]) -> None:
    pytest.fail(f"ran {argv}")


def test_a_busy_start_is_skipped_and_says_for_whom(ledger: Ledger) -> None:
    lock = held(ledger)
    try:
        assert firing.fire("nightly", ledger, become=never) == "skipped: weekly is still running"
    finally:
        os.close(lock)
    assert firing.ended("nightly", ledger, {"EXIT_STATUS": "0", "SERVICE_RESULT": "success"}) is None
    assert events(ledger) == ["skipped"]


def test_a_queued_start_runs_when_the_other_has_ended(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "POLL", 0.02)
    ledger.save(schedule(when_busy="queue"))
    lock = held(ledger)
    became = threading.Event()
    waiter = threading.Thread(target=firing.fire, args=("nightly", ledger), kwargs={"become": lambda _: became.set()})
    waiter.start()
    try:
        deadline = Deadline(20, "the start to wait")
        while events(ledger) != ["waited"]:
            deadline.check(seen=str(events(ledger)))
            became.wait(0.02)
        assert not became.is_set()
    finally:
        os.close(lock)
    assert became.wait(20)
    waiter.join(10)
    assert events(ledger) == ["waited", "started"]


def test_a_queue_has_an_end(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "POLL", 0.02)
    ledger.save(schedule(when_busy="queue", queue_limit=0.1))
    lock = held(ledger)
    try:
        assert "was still running after 0.10 s" in firing.fire("nightly", ledger, become=never)
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("environment", "message", "code"),
    [
        ({"EXIT_STATUS": "0", "SERVICE_RESULT": "success"}, "exit status 0", 0),
        ({"EXIT_STATUS": "3", "SERVICE_RESULT": "exit-code"}, "exit status 3", 3),
        ({"EXIT_STATUS": "KILL", "SERVICE_RESULT": "signal"}, "ended by KILL", None),
        ({}, "ended by unknown", None),
    ],
)
def test_how_a_run_ended(ledger: Ledger, environment: dict[str, str], message: str, code: int | None) -> None:
    entry = firing.ended("nightly", ledger, environment)
    assert entry is not None
    assert (entry.message, entry.exit_code) == (message, code)


def at(time: str, event: str = "started") -> Entry:
    return Entry(time=f"{time}+00:00", event=event)


@pytest.mark.parametrize(
    ("last", "now", "missed"),
    [
        ("2026-11-30T02:30:05", "2026-12-01T02:30:04", []),
        ("2026-11-30T02:30:05", "2026-12-01T09:00:00", []),
        ("2026-11-28T02:30:05", "2026-12-01T02:30:04", ["2026-11-29T02:30:00+00:00", "2026-11-30T02:30:00+00:00"]),
        ("2026-11-30T12:00:00", "2026-11-30T13:00:00", []),
    ],
)
def test_what_was_missed_while_off(last: str, now: str, missed: list[str]) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert firing.missed(schedule(), [at(last), at(last, "ended")], moment) == missed


def test_nothing_is_missed_before_the_first_sign_or_without_a_calendar() -> None:
    now = datetime(2026, 12, 1, tzinfo=UTC)
    assert firing.missed(schedule(), [], now) == []
    assert firing.missed(schedule(calendar="", interval=3600.0), [at("2026-11-01T00:00:00")], now) == []


def test_missed_starts_are_said_and_noted(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    # The timer was seen long ago, so whatever the date is, nights were missed.
    ledger.folder.joinpath("nightly.log.jsonl").write_text(at("2026-11-01T02:30:01").model_dump_json() + "\n{cut")
    firing.fire("nightly", ledger, become=lambda _: None)
    assert "since 2026-11-02T02:30:00+00:00: the machine or its timer was off" in capsys.readouterr().out
    assert events(ledger) == ["started", "missed", "started"]
    assert len(ledger.entries("nightly")[1].missed) >= 28


def test_a_schedule_that_is_not_there_names_those_that_are(ledger: Ledger) -> None:
    with pytest.raises(UnfitError) as caught:
        ledger.load("weekly")
    assert caught.value.seen == "nightly"
    (ledger.folder / "nightly.json").write_text("{}")
    with pytest.raises(UnfitError, match="cannot be read"):
        ledger.load("nightly")


def test_another_host_runs_a_copy_of_the_playbook_as_it_is_now(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    playbook = tmp_path / "nightly.yml"
    playbook.write_text("name: a\nhosts: kimi\n")
    ledger.save(schedule(playbook=str(playbook), host="kimi-3"))
    became: list[list[str]] = []
    firing.fire("nightly", ledger, become=became.append)
    assert Path(became[0][4]).read_text() == 'name: a\nhosts: "kimi-3"\n'
    playbook.unlink()
    with pytest.raises(UnfitError, match="cannot be read"):
        ledger.playbook_of(ledger.load("nightly"))

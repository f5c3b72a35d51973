"""Events behind a reader that takes its time, stops, or goes."""

from __future__ import annotations

import json
import os
import threading
import time

import pytest

from opsctl.runs.events import Event, JsonLines
from opsctl.runs.queued_sink import QueuedSink


def events(count: int, *, ephemeral: bool = False) -> list[Event]:
    return [Event("", "run", "step.progress", message=f"{n} " + "x" * 100, ephemeral=ephemeral) for n in range(count)]


def test_a_reader_that_takes_nothing_holds_nobody_up_and_gets_all_in_order() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(reader) as read:
        sink = QueuedSink(JsonLines(out))
        began = time.monotonic()
        for event in events(5000):  # 1 MB: a pipe holds 64 KiB
            sink.show(event)
        assert time.monotonic() - began < 5
        lines: list[str] = []
        taking = threading.Thread(target=lambda: lines.extend(read.readline() for _ in range(5000)))
        taking.start()
        sink.close()
        taking.join(30)
    assert [json.loads(line)["message"].split()[0] for line in lines] == [str(n) for n in range(5000)]


def test_progress_does_not_pile_up() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as out, os.fdopen(reader) as read:
        sink = QueuedSink(JsonLines(out))
        for event in (*events(5000, ephemeral=True), Event("", "run", "run.ended")):
            sink.show(event)
        lines: list[str] = []
        taking = threading.Thread(target=lambda: lines.extend(iter(read.readline, "")))
        taking.start()
        sink.close()
        out.close()
        taking.join(30)
    assert len(lines) < 5000
    assert json.loads(lines[-1])["event"] == "run.ended"


def test_a_reader_that_has_gone_is_said_by_the_next_event() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out = os.fdopen(writer, "w")
    sink = QueuedSink(JsonLines(out))
    sink.show(Event("", "run", "run.begun"))
    end = time.monotonic() + 30
    with pytest.raises(BrokenPipeError):
        while time.monotonic() < end:
            sink.show(Event("", "run", "run.ended"))
    sink.close()
    with pytest.raises(BrokenPipeError):
        out.close()


def test_the_end_of_a_run_does_not_wait_for_ever() -> None:
    reader, writer = os.pipe()
    out = os.fdopen(writer, "w")
    sink = QueuedSink(JsonLines(out), patience=0.3)
    for event in events(2000):
        sink.show(event)
    began = time.monotonic()
    sink.close()
    assert time.monotonic() - began < 10
    os.close(reader)  # the thread that waits there ends
    sink._thread.join(30)
    with pytest.raises(BrokenPipeError):
        out.close()


def test_a_defect_of_a_view_is_raised_at_its_end_not_in_the_campaign() -> None:
    class Broken:
        def show(self, event: Event) -> None:
            raise KeyError(event.event)

        def close(self) -> None:
            """Nothing to end."""

    sink = QueuedSink(Broken())
    for event in events(3):
        sink.show(event)
    with pytest.raises(KeyError):
        sink.close()


def test_a_sink_is_closed_after_its_last_event_though_it_failed() -> None:
    seen: list[str] = []

    class Once:
        def show(self, event: Event) -> None:
            seen.append(event.message[:1])
            raise KeyError(event.event)

        def close(self) -> None:
            seen.append("closed")

    sink = QueuedSink(Once())
    for event in events(3000):
        sink.show(event)
    with pytest.raises(KeyError):
        sink.close()
    assert seen == ["0", "closed"]

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from opsctl.serving.load.background import Background, Every


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def reading(gate: threading.Event) -> Iterator[Background[str]]:
    def read() -> str:
        assert gate.wait(10)
        return "read"

    background = Background(read, "test")
    yield background
    gate.set()
    background.close()


def test_a_pause_ends_with_the_reading(reading: Background[str], gate: threading.Event) -> None:
    assert reading.collect(60) is None, "it has only begun"
    began = time.monotonic()
    reading.pause(0.05)
    assert time.monotonic() - began >= 0.05, "nothing ended meanwhile"
    assert reading.collect(60) is None
    threading.Timer(0.1, gate.set).start()
    reading.pause(10)
    assert time.monotonic() - began < 5
    assert reading.collect(60) == "read"


def test_a_pause_ends_when_the_next_reading_is_due(reading: Background[str], gate: threading.Event) -> None:
    gate.set()
    reading.collect(0.1)
    reading.pause(10)
    assert reading.collect(0.1) == "read"
    began = time.monotonic()
    reading.pause(10)
    assert time.monotonic() - began < 5, "it was due in a tenth of a second"


def test_every_says_so_once_a_time() -> None:
    now = 0.0
    every = Every(lambda: now)
    said = []
    for step in (0.0, 0.4, 0.6, 0.3, 0.8):
        now += step
        said.append(every.due(1.0))
    assert said == [True, False, True, False, True]

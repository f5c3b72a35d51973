from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from opsctl.campaign.cancellation import Cancellation, listening_for_signals
from opsctl.errors import ExitCode, Interrupted


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Let signals have their usual effect here and in what is started from here, though the suite runs under nohup."""
    usual: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_once_asked_for_it_stays_with_its_first_reason() -> None:
    cancellation = Cancellation()
    cancellation.check()
    cancellation.request("kimi-2 failed")
    cancellation.request("SIGINT received", by_signal=True)
    assert cancellation.by_signal
    assert cancellation.wait(0)
    with pytest.raises(Interrupted, match="kimi-2 failed"):
        cancellation.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_asks_the_run_to_stop(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    cancellation = Cancellation()
    before = signal.getsignal(number)
    with listening_for_signals(cancellation, lambda: "unused", lambda _: None):
        os.kill(os.getpid(), number)
        assert cancellation.wait(5)
    assert cancellation.by_signal
    assert signal.getsignal(number) == before
    assert "production is restored" in capfd.readouterr().err


TWICE = """
import os, signal, time
from opsctl.campaign.cancellation import Cancellation, listening_for_signals
cancellation = Cancellation()
leaving = lambda name: print("left by", name, flush=True)
with listening_for_signals(cancellation, lambda: "the guard acts in 42 s", leaving):
    os.kill(os.getpid(), signal.SIGINT)
    assert cancellation.wait(5)
    os.kill(os.getpid(), signal.SIGTERM)
    cancellation.wait(30); time.sleep(30)
"""


def test_a_second_signal_leaves_at_once_and_says_when_the_guard_acts() -> None:
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == ExitCode.PRODUCTION_NOT_VERIFIED
    assert "the guard acts in 42 s" in done.stderr
    assert done.stdout == "left by SIGTERM\n"


CLOSED = """
import os, signal
from opsctl.campaign.cancellation import Cancellation, listening_for_signals
cancellation = Cancellation()
with listening_for_signals(cancellation, lambda: "", lambda _: None):
    os.close(2)
    os.kill(os.getpid(), signal.SIGHUP)
    assert cancellation.wait(5)
print("the run goes on to its restore")
"""


def test_a_terminal_that_is_gone_does_not_end_the_run() -> None:
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=False, timeout=20)
    assert (done.returncode, done.stdout) == (0, "the run goes on to its restore\n")


def test_a_signal_that_was_ignored_when_we_were_started_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening_for_signals(Cancellation(), lambda: "", lambda _: None) as _:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

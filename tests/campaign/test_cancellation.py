from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from opsctl.campaign.cancellation import Cancellation, listening_for_signals
from opsctl.errors import ExitCode, Interrupted


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

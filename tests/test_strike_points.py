"""Edges: nothing unset; a strike at a number, or at the K-th of a name; a log of all that were passed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from opsctl.strike_points import strike_point

WALK = (
    "from opsctl.strike_points import strike_point as at\nfor name in ('a', 'b', 'a', 'c'): at(name)\nprint('through')"
)


def walk(**extra: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **extra}
    return subprocess.run([sys.executable, "-c", WALK], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("order", "passed"), [("1:kill", 1), ("3:kill", 3), ("a#2:kill", 3), ("c#1:kill", 4)])
def test_it_dies_at_its_edge(tmp_path: Path, order: str, passed: int) -> None:
    log = tmp_path / "edges"
    done = walk(OPSCTL_STRIKE=order, OPSCTL_STRIKE_LOG=str(log))
    assert done.returncode == -signal.SIGKILL
    assert len(log.read_text().splitlines()) == passed


@pytest.mark.parametrize("order", ["9:kill", "a#3:kill", "d#1:pause", ""])
def test_an_edge_that_does_not_come_changes_nothing(order: str) -> None:
    assert walk(OPSCTL_STRIKE=order).stdout == "through\n"


def test_a_paused_process_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WALK], env={**os.environ, "OPSCTL_STRIKE": "b#1:pause"}, stdout=-1
    ) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=20)[0] == b"through\n"


def test_unset_it_costs_next_to_nothing() -> None:
    """Against another call that does as little, in one run: a ratio, so a busy machine does not matter."""

    def idle(name: str) -> None:
        if name is None:
            return

    rounds = [
        (timeit.timeit(lambda: strike_point("x"), number=20000), timeit.timeit(lambda: idle("x"), number=20000))
        for _ in range(9)
    ]
    assert min(mine / other for mine, other in rounds) < 3

"""The clock of one process: the record's durations do not move with the machine's time of day."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.clock import instant, now

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
_STEPPED = """
import sys, time
from pathlib import Path
from opsctl.clock import instant
first, wall = instant(), time.time()
Path(sys.argv[1]).write_text(sys.argv[2])
print((instant() - first).total_seconds(), time.time() - wall)
"""


def test_it_begins_as_the_time_of_day() -> None:
    assert abs((datetime.now(UTC) - instant()).total_seconds()) < 1


def test_a_record_reads_milliseconds_in_utc() -> None:
    assert datetime.fromisoformat(now()).utcoffset() == datetime.now(UTC).utcoffset()
    assert len(now()) == len("2026-12-01T05:00:20.123+00:00")


def test_it_passes_as_time_passes() -> None:
    first, clock = instant(), time.monotonic()
    time.sleep(0.05)
    assert (instant() - first).total_seconds() == pytest.approx(time.monotonic() - clock, abs=0.02)


@pytest.mark.parametrize("step", ["+1d", "-1d"])
def test_a_step_of_a_day_is_no_duration(tmp_path: Path, step: str) -> None:
    if not FAKETIME.exists():
        pytest.skip("no libfaketime here")
    clock = tmp_path / "clock"
    clock.write_text("+0")
    done = subprocess.run(
        [sys.executable, "-c", _STEPPED, str(clock), step],
        env={
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    seen, wall = map(float, done.stdout.split())
    assert abs(wall) > 80_000, "the clock was stepped"
    assert abs(seen) < 1

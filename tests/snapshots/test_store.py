from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from opsctl.errors import JournalError
from opsctl.snapshots import History, record_run
from opsctl.snapshots.store import FILE
from tests.report import samples
from tests.snapshots.nights import FINGERPRINT, TPOT, night


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / FILE


def test_what_goes_in_comes_out(path: Path) -> None:
    nights = [night(index, 12.0 + index, output=900.0) for index in range(3)]
    with History(path) as history:
        history.add(nights)
    with History(path) as history:
        assert history.snapshots() == nights
        assert history.snapshots(since=nights[1].time) == nights[1:]
        assert history.snapshots(run="night-002") == nights[2:]
        assert history.snapshots(host="other") == []
        assert history.latest() == nights[2:]
        assert history.names() == ["output_throughput", "tpot.p50"]


def test_a_run_recorded_again_replaces_itself(path: Path) -> None:
    with History(path) as history:
        history.add([night(0, 12.0), night(1, 13.0)])
        history.add([night(0, 14.0)])
        assert [snapshot.metrics[0].value for snapshot in history.snapshots()] == [14.0, 13.0]


@pytest.mark.parametrize(
    ("metric", "cell", "count"),
    [
        ("tpot.p50", None, 1),
        ("serving-benchmark/concurrency=1/tpot.p50", None, 1),
        ("tpot.p50", "concurrency=1", 1),
        ("tpot.p50", "concurrency=9", 0),
        ("output_throughput", None, 1),
        ("gemm/concurrency=1/tpot.p50", None, 0),
        ("' OR 1=1 --", None, 0),
    ],
)
def test_a_series_is_found_by_name_or_by_its_whole_key(path: Path, metric: str, cell: str | None, count: int) -> None:
    with History(path) as history:
        history.add([night(index, 12.0 + index, output=900.0) for index in range(4)])
        found = history.series(metric, cell=cell)
    assert len(found) == count
    if count and "tpot" in metric:
        assert found[0].key == TPOT
        assert [point.value for point in found[0].points] == [12.0, 13.0, 14.0, 15.0]


def test_a_cell_whose_name_holds_slashes_is_found(path: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    record_run(samples.kimi_campaign(tmp_path / "run"), path.parent)
    with History(path) as history:
        (series,) = history.series("gemm/lm_head/M=8/bf16/gemm.time")
    assert series.key.cell == "lm_head/M=8/bf16"
    assert series.unit == "us"


def test_the_baseline_is_earlier_nights_measured_alike(path: Path) -> None:
    other = {**FINGERPRINT, "versions.vllm": "0.30.0"}
    nights = [night(index, 12.0, fingerprint=other if index < 2 else FINGERPRINT) for index in range(6)]
    with History(path) as history:
        history.add(nights)
        history.add([night(3, 12.0, host="other")])
        assert history.baseline(nights[5]) == nights[2:5]
        assert history.baseline(nights[5], nights=2) == nights[3:5]
        assert history.baseline(nights[2]) == []


def test_a_file_that_is_no_history_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(JournalError) as caught:
        History(path)
    assert caught.value.where == str(path)


def test_a_history_of_a_newer_opsctl_is_left_alone(path: Path) -> None:
    History(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(JournalError, match="newer opsctl"):
        History(path)


WRITER = """
import sys
from pathlib import Path
from opsctl.snapshots import History
from tests.snapshots.nights import night
with History(Path(sys.argv[1])) as history:
    for index in range(10_000):
        history.add([night(index, 12.0, output=900.0)])
        print(index, flush=True)
"""


def test_a_writer_killed_at_any_instant_loses_nothing_that_was_said(path: Path) -> None:
    for wait in (0.0, 0.003, 0.011):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert writer.stdout is not None
        first = int(writer.stdout.readline())
        time.sleep(wait)  # the instant of the kill is the point, not hope
        writer.send_signal(signal.SIGKILL)
        said = [first, *(int(line) for line in writer.stdout.read().split())]
        writer.wait(10)
        writer.stdout.close()
        with History(path) as history:
            kept = history.snapshots()
        assert {f"night-{index:03}" for index in said} <= {snapshot.run for snapshot in kept}
        assert all(len(snapshot.metrics) == 2 for snapshot in kept)

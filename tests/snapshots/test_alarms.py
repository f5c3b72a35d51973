from __future__ import annotations

from pathlib import Path

from opsctl.snapshots import History
from opsctl.snapshots.alarms import found_with
from tests.snapshots.nights import night
from tests.snapshots.test_changes import noisy


def test_a_run_tells_of_the_change_that_its_own_night_gave_away(tmp_path: Path) -> None:
    values = [*noisy(12.0, 30, 1), *noisy(13.2, 8, 2)]
    told = []
    with History(tmp_path / "history.sqlite") as history:
        for index, value in enumerate(values):
            history.add([night(index, value, output=12_000 / value)])
            told += [(index, alarm) for alarm in found_with(history, f"night-{index:03}")]
        assert found_with(history, "night-999") == []
    assert [alarm.series.key.name for _, alarm in told] == ["tpot.p50", "output_throughput"]
    assert all(30 < index < 37 for index, _ in told)
    assert all(alarm.worse for _, alarm in told)
    assert str(told[0][1]).startswith("tpot.p50 at concurrency=1 of vllm-kimi-k25-int4 on kimi: +")

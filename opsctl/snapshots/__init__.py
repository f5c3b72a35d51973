"""Snapshots of every run's figures, their history, comparison and change points.

Pure, beside one SQLite file: run records in, figures and differences out. Knows no host, and prints nothing.
"""

from __future__ import annotations

from pathlib import Path

from opsctl.record import RunRecord
from opsctl.snapshots.changes import Change, Changes, detect_changes
from opsctl.snapshots.comparing import Comparison, compare, compare_with_nights
from opsctl.snapshots.models import Metric, MetricKey, Snapshot
from opsctl.snapshots.store import FILE, History, Series
from opsctl.snapshots.taking import snapshot_of

__all__ = [
    "FILE",
    "Change",
    "Changes",
    "Comparison",
    "History",
    "Metric",
    "MetricKey",
    "Series",
    "Snapshot",
    "compare",
    "compare_with_nights",
    "detect_changes",
    "record_run",
    "snapshot_of",
]


def record_run(record: RunRecord, state_folder: Path) -> tuple[Snapshot, ...]:
    """Put a run's figures into the history that lies in the controller's state folder; return what went in.

    Recording a run again replaces what it had. Raises JournalError.
    """
    snapshots = snapshot_of(record)
    if snapshots:
        with History(state_folder / FILE) as history:
            history.add(snapshots)
    return snapshots

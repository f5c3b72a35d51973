"""What a run's own night gave away: changes of the watched figures that were found with it."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.snapshots.changes import Change, described, detect_changes
from opsctl.snapshots.headline import watched
from opsctl.snapshots.store import History, Series
from opsctl.stages import figure_kind


@dataclass(frozen=True)
class Alarm:
    """A change that was found with one run."""

    series: Series
    change: Change

    @property
    def worse(self) -> bool | None:
        """Whether the change is to the bad; None where it is not known."""
        kind = figure_kind(self.series.key.stage, self.series.key.name)
        return None if kind is None else kind.worse(self.change.relative)

    def __str__(self) -> str:
        key = self.series.key
        where = f"{key.name} at {key.cell} of {self.series.service} on {self.series.host}"
        return f"{where}: {described(self.change, self.series.points)}"


def found_with(history: History, run: str) -> list[Alarm]:
    """Return the changes of watched figures whose last night is this run, and which that night gave away."""
    mine = history.snapshots(run=run)
    series = [item for snapshot in mine for item in history.all_series(host=snapshot.host, service=snapshot.service)]
    return [
        Alarm(item, change)
        for item in watched(series)
        if item.points[-1].run == run
        for change in detect_changes(item).changes
        if change.found == len(item.points) - 1
    ]

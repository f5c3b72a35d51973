"""The trace analyses of a run, read back from its folder; one that cannot be read is a line in the report."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import TraceError
from opsctl.record import PhaseRecord, RunRecord, StepRecord
from opsctl.results import Artifact, Cell
from opsctl.trace.document import TraceAnalysis

KIND = "trace-analysis"
LARGEST = 64 << 20
"""Bytes: an analysis is some hundred KiB; a file beyond this is not one."""


@dataclass(frozen=True)
class TraceReading:
    """One window with the place it came from."""

    phase: PhaseRecord
    step: StepRecord
    artifact: Artifact
    cell: Cell | None
    document: TraceAnalysis

    @property
    def name(self) -> str:
        """The cell's id, else the file's name."""
        return self.cell.id if self.cell else Path(self.artifact.path).stem.removeprefix("trace-")


@dataclass(frozen=True)
class Traces:
    """All windows that could be read, and one line for each that could not."""

    readings: tuple[TraceReading, ...] = ()
    problems: tuple[str, ...] = ()

    def steady(self) -> tuple[TraceReading, ...]:
        """Return the windows whose whole set of ranks is there, at the smallest batch that any has."""
        whole = [
            reading
            for reading in self.readings
            if reading.document.categories
            and not reading.document.problems
            and (reading.cell is None or reading.cell.state == "verified")
        ]
        batches = {reading.document.main.batch for reading in whole}
        smallest = min((batch for batch in batches if batch is not None), default=None)
        return tuple(reading for reading in whole if reading.document.main.batch == smallest)


def read_traces(record: RunRecord) -> Traces:
    """Read every trace analysis of the run."""
    readings: list[TraceReading] = []
    problems: list[str] = []
    for phase in record.phases:
        for step in phase.steps:
            for artifact in unique(step.result.artifacts if step.result else (), Path(record.folder)):
                if artifact.kind != KIND:
                    continue
                try:
                    document = _read(Path(record.folder), artifact)
                except (OSError, ValueError, TraceError) as error:
                    problems.append(f"{artifact.path}: {_reason(error)}")
                else:
                    readings.append(TraceReading(phase, step, artifact, _cell_of(step, artifact), document))
    return Traces(tuple(readings), tuple(problems))


def unique(artifacts: Iterable[Artifact], folder: Path) -> list[Artifact]:
    """Return each file once.

    A stage names a file by its place on the host, the collector by its place here: the same file twice. The one
    that is here is kept; a file that is only on the host stays as the stage named it.
    """
    kept: dict[tuple[str, str], Artifact] = {}
    for artifact in artifacts:
        key = (artifact.sha256, Path(artifact.path).name)
        if key not in kept or not (folder / kept[key].path).is_file():
            kept[key] = artifact if key not in kept or (folder / artifact.path).is_file() else kept[key]
    return list(kept.values())


def _read(folder: Path, artifact: Artifact) -> TraceAnalysis:
    path = (folder / artifact.path).resolve()
    if not path.is_relative_to(folder.resolve()):
        msg = "lies outside the run's folder"
        raise ValueError(msg)
    if path.stat().st_size > LARGEST:
        msg = f"is larger than {LARGEST} bytes: not an analysis"
        raise ValueError(msg)
    return TraceAnalysis.from_json(json.loads(path.read_bytes()))


def _reason(error: Exception) -> str:
    if isinstance(error, TraceError):
        return ", ".join(
            filter(None, (error.message, error.wanted and f"wanted {error.wanted}", error.seen, error.hint))
        )
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _cell_of(step: StepRecord, artifact: Artifact) -> Cell | None:
    """Return the cell that an analysis belongs to: by the path the cell names, else by the file's name."""
    cells = step.result.cells if step.result else ()
    named = [cell for cell in cells if cell.detail.get("trace") == artifact.path]
    stem = _plain(Path(artifact.path).stem.removeprefix("trace-"))
    return next(iter(named), None) or next((cell for cell in cells if _plain(cell.id) == stem), None)


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)

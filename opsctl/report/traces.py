"""The trace analyses of a run, read back from its folder: the documents of ``opsctl trace --json``.

Unknown keys are ignored and missing ones are None: a report of an old run must still render after the
analysis learned more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from opsctl.record import PhaseRecord, RunRecord, StepRecord
from opsctl.results import Artifact, Cell

KIND = "trace-analysis"
LARGEST = 64 << 20
"""Bytes: an analysis is some hundred KiB; a file beyond this is not one."""


class _Loose(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Wall(_Loose):
    """Wall time of one step in µs, over the steps of a window."""

    p50: float | None = None
    mean: float | None = None
    cv: float | None = None


class Steps(_Loose):
    """Steps of one kind."""

    count: int = 0
    batch: int | None = None
    wall_us: Wall = Wall()
    used: int | None = None
    dropped: int | None = None
    dropped_because: str | None = None
    verdict: str = ""
    """Whether the window is long enough to be believed; inconclusive: ``verdict_because`` says why not."""
    verdict_because: str = ""


class StepKinds(_Loose):
    """Steps by kind."""

    decode: Steps = Steps()
    prefill: Steps = Steps()


class Rank(_Loose):
    """One rank's file."""

    rank: int | None = None
    file: str = ""
    events: int | None = None
    device: str | bool | None = None
    problems: tuple[str, ...] = ()
    role: str = "rank"
    """"front end": the API server's own file, which is no rank."""
    busy_us_per_step: float | None = None
    communication_us_per_step: float | None = None


class Category(_Loose):
    """A kind of work in a decode step, µs. ``busy`` is exclusive (they add up), ``sum`` counts overlap twice."""

    name: str
    busy_us_per_step: float | None = None
    sum_us_per_step: float | None = None
    share_of_busy: float | None = None
    hidden_us_per_step: float | None = None
    """Of it hidden behind other work: done while the device computed as well."""


class Other(_Loose):
    """A name that no category claims."""

    name: str
    share_of_sum: float | None = None


class Kernel(_Loose):
    """One kernel name."""

    name: str
    category: str = ""
    calls_per_step: float | None = None
    mean_us: float | None = None
    sum_us: float | None = None
    share_of_sum: float | None = None


class Collective(_Loose):
    """One kind of collective, per decode step."""

    op: str
    calls_per_step: float | None = None
    expected_per_step: float | None = None
    communication_us_per_step: float | None = None
    skew_us_per_step: float | None = None


class TraceDocument(_Loose):
    """One analysed window."""

    ranks: tuple[Rank, ...] = ()
    steps: StepKinds = StepKinds()
    categories: tuple[Category, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    collectives: tuple[Collective, ...] = ()
    busy_us: float | None = None
    sum_us: float | None = None
    idle_us: float | None = None
    window_us: float | None = None
    problems: tuple[str, ...] = ()
    other: tuple[Other, ...] = ()
    method: str = ""
    """How steps were told apart."""

    @property
    def whole_ranks(self) -> tuple[Rank, ...]:
        """The files that are ranks."""
        return tuple(rank for rank in self.ranks if rank.role == "rank")

    @property
    def damage(self) -> tuple[str, ...]:
        """What is wrong with the files. That steps vary too much is a verdict on the window, not damage to it."""
        return tuple(problem for problem in self.problems if not problem.startswith("inconclusive:"))

    @property
    def busy_per_step(self) -> float | None:
        """µs of a decode step in which the device was busy: the categories' exclusive times add up to it."""
        return _total(category.busy_us_per_step for category in self.categories)

    @property
    def sum_per_step(self) -> float | None:
        """µs of kernels of a decode step, overlap counted twice."""
        return _total(category.sum_us_per_step for category in self.categories)

    @property
    def on_device(self) -> bool:
        """Whether these are kernels of a device, not operators of a CPU."""
        return any(rank.device and not str(rank.device).lower().startswith("cpu") for rank in self.ranks)


@dataclass(frozen=True)
class TraceReading:
    """One window with the place it came from."""

    phase: PhaseRecord
    step: StepRecord
    artifact: Artifact
    cell: Cell | None
    document: TraceDocument

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
            and not reading.document.damage
            and (reading.cell is None or reading.cell.state == "verified")
        ]
        batches = {reading.document.steps.decode.batch for reading in whole}
        smallest = min((batch for batch in batches if batch is not None), default=None)
        return tuple(reading for reading in whole if reading.document.steps.decode.batch == smallest)


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
                except (OSError, ValueError) as error:
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


def _read(folder: Path, artifact: Artifact) -> TraceDocument:
    path = (folder / artifact.path).resolve()
    if not path.is_relative_to(folder.resolve()):
        msg = "lies outside the run's folder"
        raise ValueError(msg)
    if path.stat().st_size > LARGEST:
        msg = f"is larger than {LARGEST} bytes: not an analysis"
        raise ValueError(msg)
    return TraceDocument.model_validate(json.loads(path.read_bytes()))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"not an analysis: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _cell_of(step: StepRecord, artifact: Artifact) -> Cell | None:
    """Return the cell that an analysis belongs to: by the path the cell names, else by the file's name."""
    cells = step.result.cells if step.result else ()
    named = [cell for cell in cells if cell.detail.get("trace") == artifact.path]
    stem = _plain(Path(artifact.path).stem.removeprefix("trace-"))
    return next(iter(named), None) or next((cell for cell in cells if _plain(cell.id) == stem), None)


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None

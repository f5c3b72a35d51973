"""A run as the sections of a report want it: cells with their place, found once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opsctl.record import PhaseRecord, RunRecord, StepRecord
from opsctl.report.traces import Traces, read_traces
from opsctl.results import Cell, State, StepResult


@dataclass(frozen=True)
class Placed:
    """A cell and where it stands."""

    phase: PhaseRecord
    step: StepRecord
    cell: Cell
    place: str
    """The step's id, with host and round where the run has several."""

    @property
    def profiled(self) -> bool:
        """Whether a profiler slowed it."""
        return self.step.result is not None and self.step.result.profiled


@dataclass(frozen=True)
class Material:
    """Everything that the sections draw on."""

    record: RunRecord
    traces: Traces
    previous: RunRecord | None = None

    def cells(self, stage: str | None = None, *, verified: bool = False) -> list[Placed]:
        """Return the cells of a stage (or of all), in the order of the run."""
        return [
            placed
            for placed in cells_of(self.record)
            if stage in (None, placed.step.stage) and (not verified or placed.cell.state is State.VERIFIED)
        ]

    def results(self) -> list[tuple[str, StepResult]]:
        """Return every step's result with the step's place."""
        return [
            (place_of(self.record, phase, step), step.result)
            for phase in self.record.phases
            for step in phase.steps
            if step.result is not None
        ]

    def production_services(self) -> frozenset[str]:
        """Return the names of the services that are production in this run."""
        return frozenset(item.service for item in self.record.production)

    def serving(self, *, production: bool) -> list[Placed]:
        """Return verified serving cells with production's own service, or with any other."""
        services = self.production_services()
        return [
            placed
            for placed in self.cells("serving-benchmark", verified=True)
            if (placed.phase.serve in services) is production and not placed.profiled
        ]


def cells_of(record: RunRecord) -> Iterator[Placed]:
    """Yield every cell of a run with its place."""
    for phase in record.phases:
        for step in phase.steps:
            place = place_of(record, phase, step)
            for cell in step.result.cells if step.result else ():
                yield Placed(phase, step, cell, place)


def place_of(record: RunRecord, phase: PhaseRecord, step: StepRecord) -> str:
    """Return a step's id, made unique in the run: with its host where there are several, and its round."""
    several = len({item.host for item in record.phases}) > 1
    repeated = any(item.round > 1 for item in record.phases)
    return step.id + (f" on {phase.host}" if several else "") + (f", round {phase.round}" if repeated else "")


def read(record: RunRecord, previous: RunRecord | None = None) -> Material:
    """Return a run with its trace analyses, which are read from its folder."""
    return Material(record, read_traces(record), previous)

"""What every stage is: options, a pure plan of cells, a payload to run on the host, and a judge of what came back.

Stages never import ``host``: ``campaign`` carries their invocations out. A payload runs on the host as a
transient unit, with the serving environment's Python, from a zipapp::

    PYTHON opsctl-payload.pyz STAGE --spec spec.json --out results.jsonl      (cwd: the step's folder)

and writes JSON Lines as it goes, each flushed and synced: the records of ``opsctl/payload/records.py``.
A payload that is started again with the same ``--out`` skips the cells that stand there verified.

How to add a stage: docs/add-a-stage.md.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypedDict

from opsctl.engines import ENGINES
from opsctl.errors import StageError
from opsctl.nearest import nearest
from opsctl.options import Model
from opsctl.payload.records import Spec
from opsctl.results import Cell, StepResult
from opsctl.stages.judging import judge_records
from opsctl.stages.rendering import FigureKind, Rendering, ResultTable

NOTHING = "nothing"


class Served(Protocol):
    """A service of the inventory, as far as stages look at it; a variant has what it inherits filled in."""

    @property
    def url(self) -> str | None:
        """Where it listens, as seen on the host."""

    @property
    def model(self) -> str | None:
        """Served model name."""

    @property
    def engine(self) -> str:
        """Name of the engine."""

    @property
    def api_key_file(self) -> str | None:
        """Path on the host."""

    @property
    def ca_file(self) -> str | None:
        """Path on the host: certificates that sign the server's."""

    @property
    def verify(self) -> bool:
        """Whether the server's certificate is checked."""

    @property
    def tensor_parallel(self) -> int | None:
        """Ranks."""

    @property
    def profiler(self) -> str | None:
        """Which profiler its server has on."""

    @property
    def exec_prefix(self) -> tuple[str, ...]:
        """What is put before its command."""


class HostFacts(Protocol):
    """A host of the inventory, as far as stages look at it."""

    @property
    def gpus(self) -> int | None:
        """Number of GPUs; None: not said."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A host, and what serves on it while a step runs: all that ``opsctl validate`` knows."""

    host_name: str
    host: HostFacts
    service_name: str | None = None
    service: Served | None = None
    """What serves in this phase, variants resolved; None for `nothing`."""
    production: Served | None = None
    """What the campaign gives back: whose parallelism a step measures where nothing else says."""

    @property
    def tensor_parallel(self) -> int | None:
        """Ranks of what serves, else of production; None where the inventory does not say."""
        for service in (self.service, self.production):
            if service is not None and service.tensor_parallel:
                return service.tensor_parallel
        return None


@dataclass(frozen=True, kw_only=True)
class StageContext(Place):
    """All that a stage may know when it plans."""

    gpus: int | None = None
    """GPUs that were seen on the host; None: not looked for, or they could not be counted."""
    run: str
    step: str
    folder: str
    """The step's folder on the host."""
    trace_dir: str | None = None
    """Where the phase's service writes its traces, when its profiler is on."""
    model_config: Mapping[str, Any] | None = None
    """The served model's config.json, when it could be read."""
    engine_version: str | None = None
    peers: tuple[tuple[str, str], ...] = ()
    """(name, address) of every host of the run, in the same order on each: for stages that run across hosts."""


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """How to run a stage's payload on the host."""

    stage: str
    spec: Spec
    limit: float
    """Seconds; RuntimeMaxSec of the unit."""
    collect: tuple[str, ...] = ()
    """Globs below the step's folder, fetched when it ended (results.jsonl always is)."""

    def argv(self, python: str, *program: str) -> tuple[str, ...]:
        """Return the command line, to be run in the step's folder. ``program`` is the zipapp."""
        engines = ENGINES.values()
        recorded = ("--packages", *_each(engine.package for engine in engines if engine.package))
        recorded += ("--variables", *_each(name for engine in engines for name in engine.variables))
        return (python, *program, self.stage, "--spec", "spec.json", "--out", "results.jsonl", *recorded)

    def spec_json(self) -> bytes:
        """Return what spec.json holds."""
        return json.dumps(self.spec.to_dict()).encode()


def _each(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


class Stage(ABC):
    """One kind of measuring step: a subclass a file, listed in ``opsctl/stages/__init__.py``."""

    name: ClassVar[str]
    """As playbooks write it. Its payload is the module of that name in ``opsctl/payload/`` (- as _)."""
    options: ClassVar[type[Model]]
    """What the user writes. It must have ``limit``: seconds after which the host itself ends the step."""
    about: ClassVar[str] = ""
    """What it measures, to end the sentence "this run did not look at …"; "": left out there."""
    figures: ClassVar[tuple[FigureKind, ...]] = (FigureKind("*"),)
    """Which figures enter the history, and which way is worse. The first that fits a name counts."""
    incidental: ClassVar[tuple[str, ...]] = ()
    """Options that do not change what a cell measures: runs that differ in them alone are compared."""
    rendering: ClassVar[Rendering | None] = None
    """How reports and `opsctl bench` show its cells; None: as a plain list of figures."""
    profiled: ClassVar[bool] = False
    """Whether it slows what it measures: its phases stay out of the history, and reports have a section for it."""

    def problems(self, options: Any, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield (option, what is wrong) for what types cannot say; option "" is the step itself.

        ``places`` are the hosts; empty where they are not known. What a run would refuse is refused here.
        """
        return ()

    @abstractmethod
    def cells(self, options: Any, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate every cell, pending. Pure: the plan shows them before anything is touched. Raises StageError."""

    @abstractmethod
    def invocation(self, options: Any, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError when the options cannot be met on this host."""

    def judge(
        self,
        options: Any,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Turn the payload's records into a result: every planned cell is in it, whatever became of it."""
        return judge_records(self.name, planned, records, profiled=self.profiled)

    def tables(self, result: StepResult) -> tuple[ResultTable, ...]:
        """Return what a report shows beside the cells, from the result's ``detail``."""
        return ()

    def unplannable(self, options: Any, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield why a place gets no cells, for options whose cells need nothing that only the host could tell."""
        for place in places:
            context = StageContext(**{**vars(place), "run": "", "step": self.name, "folder": ""})
            try:
                self.cells(options, context)
            except StageError as error:
                yield "", "; ".join(error.lines())
                return

    def refuse(self, options: Any, context: StageContext) -> None:
        """Raise StageError with the first problem."""
        for option, message in self.problems(options, (context,)):
            raise StageError(f"{context.step}: {f'{option}: ' if option else ''}{message}", where=context.host_name)


class Target(TypedDict):
    """The fields of a payload's spec that say which server is measured, and how it is trusted."""

    url: str
    model: str
    api_key_file: str | None
    ca_file: str | None
    verify: bool


def served(context: StageContext) -> Target:
    """Return what serves in this phase. Raises StageError where it is not said."""
    service = context.service
    if service is None or not service.url or not service.model:
        missing = "no service serves" if service is None else f"{context.service_name} has no url or model"
        raise StageError(
            f"{context.step} wants a service that serves, and {missing}",
            where=context.host_name,
            hint="give the service `url` and `model` in the inventory, and the phase a `serve` that is a service",
        )
    return Target(
        url=service.url,
        model=service.model,
        api_key_file=service.api_key_file,
        ca_file=service.ca_file,
        verify=service.verify,
    )


def needs_server(name: str, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
    """Yield the problem of a stage that measures a server, in a phase without one."""
    if any(place.service_name is None for place in places):
        yield "", f"`{name}` needs a service that serves, found `serve: {NOTHING}` in its phase"


def needs_free_gpus(name: str, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
    """Yield the problem of a stage that takes the GPUs itself, in a phase that serves."""
    for place in places:
        if place.service_name is not None:
            yield (
                "",
                f"`{name}` needs free GPUs, found `serve: {place.service_name}`: use a phase that serves {NOTHING}",
            )
            return


def positive(option: str, values: Sequence[float]) -> Iterable[tuple[str, str]]:
    """Yield the problem of a list whose values are cells: each above 0, none twice."""
    if any(value <= 0 for value in values):
        yield option, f"wanted numbers above 0, found {min(values):g}"
    elif len(set(values)) < len(values):
        yield option, "wanted values that differ (each is a cell), found one twice"


def only_of(option: str, values: Iterable[str], known: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Yield the problem of names that are none of those known."""
    unknown = [value for value in values if value not in known]
    if unknown:
        found = ", ".join(unknown)
        near = nearest(unknown[0], known)
        yield option, f"wanted any of {', '.join(known)}, found {found}{f'; nearest: `{near}`' if near else ''}"

"""What every stage is: a pure plan of cells, a payload to run on the host, and a judge of what came back.

Stages never import ``host``: ``campaign`` carries their invocations out. A payload runs on the host as a
transient unit, with the serving environment's Python, from a zipapp::

    PYTHON opsctl-payload.pyz STAGE --spec spec.json --out results.jsonl      (cwd: the step's folder)

and writes JSON Lines as it goes, each flushed and synced:

``{"record": "environment", "environment": {…}}``
``{"record": "cell", "id": …, "state": …, "reason": …, "figures": [{…Figure}], "detail": {…}}``
``{"record": "evidence", "asked": …, "observed": …, "time": …}``
``{"record": "progress", "text": …, "done": n, "of": m}``
``{"record": "artifact", "path": …, "size": …, "sha256": …, "kind": …}``
``{"record": "end", "state": …, "reason": …}``      the last line; without it the payload died

A payload that is started again with the same ``--out`` skips the cells that stand there verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from opsctl.playbook.models import HostEntry, Model, ServiceEntry
from opsctl.results import Cell, StepResult


@dataclass(frozen=True)
class StageContext:
    """All that a stage may know when it plans."""

    run: str
    step: str
    host_name: str
    host: HostEntry
    folder: str
    """The step's folder on the host."""
    service_name: str | None = None
    service: ServiceEntry | None = None
    """What serves in this phase, variants resolved (url, model, tensor_parallel filled in); None for `nothing`."""
    trace_dir: str | None = None
    """Where the phase's service writes its traces, when its profiler is on."""
    model_config: Mapping[str, Any] | None = None
    """The served model's config.json, when it could be read."""
    engine_version: str | None = None
    peers: tuple[tuple[str, str], ...] = ()
    """(name, address) of every host of the run, in the same order on each: for stages that run across hosts."""


@dataclass(frozen=True)
class Invocation:
    """How to run a stage's payload on the host."""

    payload: str
    spec: dict[str, Any]
    limit: float
    """Seconds; RuntimeMaxSec of the unit."""
    environment: dict[str, str] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    """Globs below the step's folder, fetched when it ended (results.jsonl always is)."""
    exclusive_gpu: bool = False
    """Whether the stage itself takes the GPUs (phase `nothing`)."""


class Stage(Protocol):
    """One kind of measuring step."""

    name: ClassVar[str]
    options: ClassVar[type[Model]]
    needs: ClassVar[Literal["serving", "nothing", "any"]]
    """What must hold while it runs: a service that serves, free GPUs, or neither."""

    def cells(self, options: Any, context: StageContext) -> tuple[Cell, ...]:
        """Enumerate every cell, pending. Pure: the plan shows them before anything is touched."""
        ...

    def invocation(self, options: Any, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError when the options cannot be met on this host."""
        ...

    def judge(
        self,
        options: Any,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Turn the payload's records into a result: every planned cell is in it, whatever became of it."""
        ...

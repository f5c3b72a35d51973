"""From a run's record to its snapshots: which figures enter, and what their fingerprint is.

Profiled phases never enter: a profiler makes every number slow, also while it only stands armed.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.record import PhaseRecord, RunRecord, StepRecord
from opsctl.results import Cell, Figure, State
from opsctl.snapshots.models import Metric, MetricKey, Snapshot
from opsctl.stages import STAGES, figure_kind

VOLATILE = frozenset(
    {
        *("before", "after", "during", "findings", "host", "pid", "time", "problem", "serial", "uuid", "boot_id"),
        *("uptime", "load", "pressure", "steal"),
    }
)
"""Keys of an environment that differ between runs on the very same machine, at any depth."""
VOLATILE_GPU = frozenset(
    {
        *("memory.used", "utilization.gpu", "power.draw", "clocks.sm", "clocks.mem", "temperature.gpu", "throttle"),
        *("index", "pci.bus_id", "pcie.link.gen.current"),
    }
)
"""Keys of a GPU that say how it was, not what it is."""


def snapshot_of(record: RunRecord) -> tuple[Snapshot, ...]:
    """Return one snapshot for each host and service that a run measured without a profiler.

    Only verified cells enter. Where a run measured a cell in several rounds, the value is their mean, the
    spread their standard deviation and ``samples`` their number.
    """
    found: dict[tuple[str, str], dict[MetricKey, list[Figure]]] = {}
    definitions: dict[tuple[str, str], dict[str, str]] = {}
    for phase, step in _unprofiled(record):
        owner = (phase.host, phase.serve)
        metrics = found.setdefault(owner, {})
        definitions.setdefault(owner, {}).update(_definition(step))
        for cell in step.result.cells if step.result else ():
            if cell.state is State.VERIFIED:
                _collect(metrics, step.stage, cell)
    return tuple(
        Snapshot(
            run=record.run,
            host=host,
            service=service,
            time=record.started,
            playbook=record.playbook,
            fingerprint={**_environment(record, host, service), **definitions[host, service]},
            metrics=tuple(_merged(key, figures) for key, figures in metrics.items()),
        )
        for (host, service), metrics in found.items()
        if metrics
    )


def _unprofiled(record: RunRecord) -> Iterator[tuple[PhaseRecord, StepRecord]]:
    profiled = {phase.serve for phase in record.phases if any(_profiles(step) for step in phase.steps)} | {
        service for service, lines in record.variants.items() if any("profiler" in line.lower() for line in lines)
    }
    for phase in record.phases:
        if phase.serve not in profiled:
            for step in phase.steps:
                yield phase, step


def _profiles(step: StepRecord) -> bool:
    stage = STAGES.get(step.stage)
    return (stage is not None and stage.profiled) or (step.result is not None and step.result.profiled)


def _collect(metrics: dict[MetricKey, list[Figure]], stage: str, cell: Cell) -> None:
    for figure in cell.figures:
        if figure_kind(stage, figure.name) is None:
            continue
        metrics.setdefault(MetricKey(stage=stage, cell=cell.id, name=figure.name), []).append(figure)


def _merged(key: MetricKey, figures: list[Figure]) -> Metric:
    first = figures[0]
    if len(figures) == 1:
        return Metric(
            key=key,
            value=first.value,
            unit=first.unit,
            samples=first.samples,
            spread=first.spread,
            low=first.low,
            high=first.high,
        )
    values = [figure.value for figure in figures]
    return Metric(
        key=key,
        value=statistics.fmean(values),
        unit=first.unit,
        samples=len(values),
        spread=statistics.stdev(values),
    )


def _definition(step: StepRecord) -> dict[str, str]:
    """Return how a step measured, an option a line: not those that leave its cells comparable."""
    stage = STAGES.get(step.stage)
    incidental = {"limit", *(stage.incidental if stage else ())}
    return {
        f"{step.stage}.{name}": _text(value)
        for name, value in step.options.items()
        if name not in incidental and value is not None
    }


def _environment(record: RunRecord, host: str, service: str) -> dict[str, str]:
    """Return what the host was: from the run's own record of it, and from what each step saw."""
    facts: dict[str, str] = {}
    for phase in record.phases:
        if phase.host == host and phase.serve == service:
            for step in phase.steps:
                if step.result:
                    facts.update(_flat(step.result.environment))
    facts.update(_flat(record.environment.get(host, {})))
    # The engine's version as the server itself said it when it was loaded in this run.
    versions = [load.version for load in record.loads if load.service == service and load.version]
    if versions:
        facts["engine version"] = versions[-1]
    return facts


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    lines: dict[str, str] = {}
    for key, value in facts.items():
        name = f"{prefix}{key}"
        if key == "before" and isinstance(value, Mapping):
            lines.update(_gpus(value.get("gpus") or ()))
        elif key == "gpus" and isinstance(value, list | tuple):
            lines.update(_gpus(value))
        elif key in VOLATILE or value is None:
            continue
        elif isinstance(value, Mapping):
            lines.update(_flat(value, f"{name}."))
        else:
            lines[name] = _text(value)
    return lines


def _gpus(gpus: Any) -> dict[str, str]:
    """Return what the GPUs are, not how they were: ``gpus.name`` "8 × NVIDIA H200"."""
    listed = [gpu for gpu in gpus if isinstance(gpu, Mapping)]
    fields = sorted({key for gpu in listed for key in gpu if key not in VOLATILE_GPU | VOLATILE})
    lines = {}
    for field in fields:
        values = [str(gpu.get(field, "")) for gpu in listed]
        distinct = dict.fromkeys(values)
        lines[f"gpus.{field}"] = ", ".join(f"{values.count(value)} × {value}" for value in distinct)
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)

"""What serving-benchmark is told: the server, the load, and the names of the server's metrics by their role."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.payload import records
from opsctl.payload.records import Record, many


@dataclass(frozen=True)
class Metrics(Record):
    """Names in ``/metrics`` by what they count. Of each role the first that the server has is read."""

    running: tuple[str, ...] = ()
    """Gauges of requests that run, and of those that wait."""
    waiting: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    cache_hits: tuple[str, ...] = ()
    """Counters of prompt tokens that the prefix cache gave; of ``cache_queries``, in the same order, all of them."""
    cache_queries: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuietSpec(Record):
    """Measure only while at most ``running`` requests of others are in flight. Seconds."""

    wait: float
    """Longest wait for quiet."""
    stable: float
    """Quiet for so long."""
    running: int = 0


@dataclass(frozen=True)
class CellSpec(Record):
    """One cell: a closed loop, or an open one."""

    id: str
    concurrency: int | None = None
    request_rate: float | None = None
    """Arrivals a second."""


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is measured. Limits and durations are seconds."""

    url: str
    model: str
    input_tokens: int
    output_tokens: int
    cells: tuple[CellSpec, ...] = many(CellSpec)
    limit: float = 3600.0
    api_key_file: str | None = None
    ca_file: str | None = None
    """Path on the host: certificates in PEM that sign the server's."""
    verify: bool = True
    requests: int | None = None
    duration: float | None = None
    warmup_requests: int = 2
    warmup_limit: float = 300.0
    rounds: int = 3
    seed: int = 0
    slo: dict[str, float] = field(default_factory=dict)
    request_limit: float = 600.0
    quiet: QuietSpec | None = field(default=None, metadata={"of": QuietSpec})
    metrics: Metrics = field(default_factory=Metrics, metadata={"of": Metrics})
    version: tuple[tuple[str, str], ...] = ()
    """(route, key of its JSON answer) of the server's version, in the order in which they are asked."""

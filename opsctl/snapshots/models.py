"""A snapshot: what a run's figures were, and everything that must be equal for them to be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetricKey(_Model):
    """Which figure it is: ``serving-benchmark`` ``concurrency=8`` ``tpot.p50``."""

    stage: str
    cell: str
    name: str

    def __str__(self) -> str:
        return f"{self.stage}/{self.cell}/{self.name}"


class Metric(_Model):
    """One figure of one run. ``spread`` is a standard deviation over ``samples``; low and high a 95 % interval."""

    key: MetricKey
    value: float
    unit: str
    samples: int = 1
    spread: float | None = None
    low: float | None = None
    high: float | None = None


class Snapshot(_Model):
    """The figures of one service on one host in one run. ``service`` "nothing": measured with the GPUs free."""

    run: str
    host: str
    service: str
    time: str
    """UTC, ISO 8601: when the run started."""
    playbook: str = ""
    fingerprint: dict[str, str] = Field(default_factory=dict)
    metrics: tuple[Metric, ...] = ()

    @property
    def identity(self) -> str:
        """Return a short hash of the fingerprint: snapshots with the same one may be compared."""
        return fingerprint_hash(self.fingerprint)

    def metric(self, key: MetricKey) -> Metric | None:
        """Return the metric of that key, or None."""
        return next((metric for metric in self.metrics if metric.key == key), None)


def fingerprint_hash(fingerprint: Mapping[str, str]) -> str:
    """Return 12 hexadecimal digits that are equal exactly where fingerprints are."""
    return hashlib.sha256(json.dumps(dict(fingerprint), sort_keys=True).encode()).hexdigest()[:12]

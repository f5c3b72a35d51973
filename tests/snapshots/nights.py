"""Snapshots of many nights, made without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from opsctl.snapshots import Metric, MetricKey, Series, Snapshot
from opsctl.snapshots.store import Point

TPOT = MetricKey(stage="serving-benchmark", cell="concurrency=1", name="tpot.p50")
OUTPUT = MetricKey(stage="serving-benchmark", cell="concurrency=64", name="output_throughput")
FINGERPRINT = {"driver": "580.95.05", "versions.vllm": "0.31.0", "serving-benchmark.input-tokens": "1024"}
FIRST = datetime(2026, 10, 1, 2, 30, tzinfo=UTC)


def night(
    index: int,
    tpot: float,
    *,
    half: float | None = 0.1,
    fingerprint: Mapping[str, str] = FINGERPRINT,
    host: str = "kimi",
    output: float | None = None,
) -> Snapshot:
    """Return one night's snapshot. ``half``: half of the 95 % interval, None where no noise is known."""
    metrics = [
        Metric(
            key=TPOT,
            value=tpot,
            unit="ms",
            samples=24 if half is not None else 1,
            low=None if half is None else tpot - half,
            high=None if half is None else tpot + half,
        )
    ]
    if output is not None:
        metrics.append(Metric(key=OUTPUT, value=output, unit="tok/s", samples=3, spread=output * 0.01))
    return Snapshot(
        run=f"night-{index:03}",
        host=host,
        service="vllm-kimi-k25-int4",
        time=(FIRST + timedelta(days=index)).isoformat(),
        playbook="nightly-snapshot",
        fingerprint=dict(fingerprint),
        metrics=tuple(metrics),
    )


def series(values: Sequence[float], identities: Sequence[str] | None = None) -> Series:
    """Return a series of plain values."""
    names = identities or ["a"] * len(values)
    return Series(
        host="kimi",
        service="vllm",
        key=TPOT,
        unit="ms",
        points=tuple(
            Point(
                run=f"night-{index:03}",
                time=(FIRST + timedelta(days=index)).isoformat(),
                value=value,
                spread=None,
                samples=24,
                identity=identity,
            )
            for index, (value, identity) in enumerate(zip(values, names, strict=True))
        ),
    )

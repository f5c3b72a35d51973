"""Figures for other programs: OpenMetrics text for the node exporter, CSV, JSON Lines."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from opsctl.snapshots.models import Metric, Snapshot

if TYPE_CHECKING:
    from prometheus_client.core import GaugeMetricFamily

BASE_UNITS = {
    # unit of ours: (suffix of the metric's name, factor to that base unit)
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "B": ("bytes", 1.0),
    "GB/s": ("bytes_per_second", 1e9),
    "TFLOP/s": ("flops", 1e12),
    "tok/s": ("tokens_per_second", 1.0),
    "req/s": ("requests_per_second", 1.0),
    "ratio": ("ratio", 1.0),
    "W": ("watts", 1.0),
    "C": ("celsius", 1.0),
}
COLUMNS = (
    *("time", "run", "playbook", "host", "service", "stage", "cell", "figure"),
    *("value", "unit", "samples", "spread", "low", "high", "fingerprint"),
)


def open_metrics(snapshots: Iterable[Snapshot]) -> str:
    """Return one gauge a figure in base units, newest value only; the text also reads as Prometheus' own format.

    Give the newest snapshot of each host and service: the node exporter takes no timestamps.
    """
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - only an export needs it
    from prometheus_client.openmetrics.exposition import generate_latest  # noqa: PLC0415

    collector = _Collector(list(snapshots))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


class _Collector:
    """What prometheus-client asks for its metrics."""

    def __init__(self, snapshots: list[Snapshot]) -> None:
        self.snapshots = snapshots

    def collect(self) -> Iterator[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        taken = GaugeMetricFamily(
            "opsctl_snapshot_time_seconds", "When the run started.", labels=("host", "service", "run", "fingerprint")
        )
        families: dict[str, GaugeMetricFamily] = {}
        for snapshot in self.snapshots:
            when = datetime.fromisoformat(snapshot.time).timestamp()
            taken.add_metric((snapshot.host, snapshot.service, snapshot.run, snapshot.identity), when)
            for metric in snapshot.metrics:
                name, factor = metric_name(metric)
                family = families.get(name)
                if family is None:
                    text = f"Figure {metric.key.name} as opsctl measured it."
                    family = families[name] = GaugeMetricFamily(name, text, labels=("host", "service", "stage", "cell"))
                family.add_metric(
                    (snapshot.host, snapshot.service, metric.key.stage, metric.key.cell), metric.value * factor
                )
        yield taken
        yield from families.values()


def metric_name(metric: Metric) -> tuple[str, float]:
    """Return the gauge's name with its base unit as suffix, and the factor to that unit.

    >>> metric_name(Metric(key=MetricKey(stage="s", cell="c", name="tpot.p50"), value=12, unit="ms"))
    ('opsctl_tpot_p50_seconds', 0.001)
    """
    suffix, factor = BASE_UNITS.get(metric.unit, ("", 1.0))
    name = re.sub(r"[^a-zA-Z0-9]+", "_", f"opsctl_{metric.key.name}").strip("_").lower()
    return (f"{name}_{suffix}" if suffix and not name.endswith(f"_{suffix}") else name), factor


def rows(snapshots: Iterable[Snapshot]) -> Iterator[dict[str, Any]]:
    """Yield one flat dictionary a figure, with COLUMNS as keys."""
    for snapshot in snapshots:
        for metric in snapshot.metrics:
            yield {
                "time": snapshot.time,
                "run": snapshot.run,
                "playbook": snapshot.playbook,
                "host": snapshot.host,
                "service": snapshot.service,
                "stage": metric.key.stage,
                "cell": metric.key.cell,
                "figure": metric.key.name,
                "value": metric.value,
                "unit": metric.unit,
                "samples": metric.samples,
                "spread": metric.spread,
                "low": metric.low,
                "high": metric.high,
                "fingerprint": snapshot.identity,
            }


def as_csv(snapshots: Iterable[Snapshot]) -> str:
    """Return CSV with a head. Text that a spreadsheet would run as a formula is quoted with an apostrophe."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(snapshots):
        writer.writerow({name: _inert(value) for name, value in row.items()})
    return out.getvalue()


def _inert(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value


def as_json_lines(snapshots: Iterable[Snapshot]) -> str:
    """Return one JSON object a line."""
    return "".join(json.dumps(row) + "\n" for row in rows(snapshots))

"""Which figures are watched and shown first. Few: each more is one more chance of a false alarm."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.snapshots.models import MetricKey
from opsctl.snapshots.store import Series

SHOWN = ("tpot.p50", "tpot.p99", "ttft.p50", "ttft.p99", "output_throughput", "request_throughput", "goodput")
SHOWN_STAGES = {"gemm": ("gemm.time",), "collectives": ("collective.time.p50",)}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def is_headline(key: MetricKey) -> bool:
    """Whether a figure is shown before someone asks for all."""
    return key.name in SHOWN_STAGES.get(key.stage, SHOWN)


def watched(series: Iterable[Series]) -> list[Series]:
    """Return the two series a service that alarms rest on: TPOT at the lowest load, throughput at the highest.

    They answer different questions (latency of one user, capacity), and with two the false alarms of a host
    stay within 1 in 200 quiet nights (changes.py).
    """
    chosen: list[Series] = []
    serving = [item for item in series if item.key.stage == "serving-benchmark"]
    for owner in dict.fromkeys((item.host, item.service) for item in serving):
        mine = [item for item in serving if (item.host, item.service) == owner]
        latency = [item for item in mine if item.key.name == "tpot.p50"]
        output = [item for item in mine if item.key.name == "output_throughput"]
        if latency:
            chosen.append(min(latency, key=_load))
        if output:
            chosen.append(max(output, key=_load))
    return chosen


def _load(series: Series) -> tuple[float, str]:
    """Order cells such as ``concurrency=8`` by their number."""
    number = _NUMBER.search(series.key.cell)
    return (float(number[0]) if number else 0.0, series.key.cell)

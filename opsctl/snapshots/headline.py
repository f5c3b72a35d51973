"""Which figures are watched and shown first, as the stages say. Few: each more is one more chance of a false alarm."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.snapshots.models import MetricKey
from opsctl.snapshots.store import Series
from opsctl.stages import figure_kind

_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def is_headline(key: MetricKey) -> bool:
    """Whether a figure is shown before someone asks for all."""
    kind = figure_kind(key.stage, key.name)
    return kind is not None and kind.headline


def watched(series: Iterable[Series]) -> list[Series]:
    """Return the series of each service that alarms rest on: TPOT at the lowest load, throughput at the highest.

    They answer different questions (latency of one user, capacity), and with two the false alarms of a host
    stay within 1 in 200 quiet nights (changes.py).
    """
    found: dict[tuple[str, str, bool, str], list[Series]] = {}
    for item in series:
        kind = figure_kind(item.key.stage, item.key.name)
        if kind is not None and kind.watched:
            highest = kind.watched == "highest load"
            found.setdefault((item.host, item.service, highest, item.key.name), []).append(item)
    return [(max if which[2] else min)(found[which], key=_load) for which in sorted(found)]


def _load(series: Series) -> tuple[float, str]:
    """Order cells such as ``concurrency=8`` by their number."""
    number = _NUMBER.search(series.key.cell)
    return (float(number[0]) if number else 0.0, series.key.cell)

"""How long things took before on a host, from the journal: what ``opsctl plan`` expects is what was measured."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import datetime

from pydantic import ValidationError

from opsctl.plan.facts import Estimate
from opsctl.playbook.hashing import content_hash
from opsctl.runs.journal import Journal
from opsctl.stages import STAGES

_LATEST = 20
"""Samples of one thing: a host changes, and what it did a year ago says little."""


def loads(journal: Journal, host: str) -> dict[str, Estimate]:
    """Return start to ready by service, over loads that became ready."""
    rows = journal.query(
        "SELECT service AS name, seconds FROM loads WHERE host=? AND outcome='ready' ORDER BY id DESC", host
    )
    return _estimates((row["name"], row["seconds"]) for row in rows if row["seconds"] is not None)


def stops(journal: Journal, host: str) -> dict[str, Estimate]:
    """Return stop to GPUs free by service."""
    rows = journal.query(
        "SELECT run, event, time, data FROM events WHERE host=? AND event IN ('service.stopping', 'gpus.free')"
        " ORDER BY id",
        host,
    )
    return _estimates(reversed(list(_stop_samples(rows))))


def steps(journal: Journal, host: str) -> dict[str, Estimate]:
    """Return the duration of verified steps by the content hash of their options."""
    rows = journal.query(
        "SELECT stage, options, started, ended FROM steps WHERE host=? AND state='verified'"
        " AND started IS NOT NULL AND ended IS NOT NULL ORDER BY started DESC",
        host,
    )
    return _estimates(sample for row in rows for sample in _step_sample(row))


def _stop_samples(rows: Iterable[sqlite3.Row]) -> Iterable[tuple[str, float]]:
    begun: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row["event"] == "service.stopping":
            begun[row["run"]] = (str(json.loads(row["data"]).get("service", "")), row["time"])
        elif row["run"] in begun:
            service, since = begun.pop(row["run"])
            yield service, _between(since, row["time"])


def _step_sample(row: sqlite3.Row) -> Iterable[tuple[str, float]]:
    """Yield the step, unless an older opsctl wrote options that are none any more."""
    try:
        options = STAGES[row["stage"]].options.model_validate_json(row["options"])
    except (KeyError, ValidationError):
        return
    yield content_hash(options), _between(row["started"], row["ended"])


def _between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def _estimates(samples: Iterable[tuple[str, float]]) -> dict[str, Estimate]:
    """Return the mean and spread of each name's latest samples; the newest come first."""
    by_name: dict[str, list[float]] = {}
    for name, seconds in samples:
        kept = by_name.setdefault(name, [])
        if len(kept) < _LATEST:
            kept.append(seconds)
    return {name: estimate for name, kept in by_name.items() if (estimate := Estimate.of(kept)) is not None}

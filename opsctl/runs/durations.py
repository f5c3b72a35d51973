"""How long things took before on a host, from the journal: what ``opsctl plan`` expects is what was measured."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import datetime

from pydantic import ValidationError

from opsctl.estimate import LATEST, Estimate
from opsctl.playbook.hashing import content_hash
from opsctl.runs.journal import Journal
from opsctl.stages import STAGES


def loads(journal: Journal, host: str, *, before: int | None = None) -> dict[str, Estimate]:
    """Return start to ready by service, over loads that became ready, of those ``before`` one by its id.

    A failed load says nothing of how long a load takes.
    """
    rows = journal.query(
        "SELECT service, seconds, phases FROM loads WHERE host=? AND outcome='ready' AND seconds IS NOT NULL"
        " AND (? IS NULL OR id < ?) ORDER BY id DESC",
        host,
        before,
        before,
    )
    by_service: dict[str, list[sqlite3.Row]] = {}
    for row in rows:
        by_service.setdefault(row["service"], []).append(row)
    estimates = {
        name: Estimate.of(
            (row["seconds"] for row in found[:LATEST]), [json.loads(row["phases"]) for row in found[:LATEST]]
        )
        for name, found in by_service.items()
    }
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


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
    """Return the estimate from each name's latest samples; the newest come first."""
    by_name: dict[str, list[float]] = {}
    for name, seconds in samples:
        kept = by_name.setdefault(name, [])
        if len(kept) < LATEST:
            kept.append(seconds)
    return {name: estimate for name, kept in by_name.items() if (estimate := Estimate.of(kept)) is not None}

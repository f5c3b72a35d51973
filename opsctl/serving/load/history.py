"""History of loads at the controller: how long this service took on this host before, and what is slow today."""

from __future__ import annotations

import json
import sqlite3
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from opsctl.errors import JournalError
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration
from opsctl.serving.load.stalls import StallLimits

KEPT = 20
"""Loads looked back upon: an old environment's loads say little of today's."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS loads (
  id INTEGER PRIMARY KEY,
  host TEXT NOT NULL,
  service TEXT NOT NULL,
  version TEXT NOT NULL DEFAULT '',
  ready_at TEXT NOT NULL,
  seconds REAL NOT NULL CHECK (seconds >= 0),
  phases TEXT NOT NULL DEFAULT '{}',
  run TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS loads_by_service ON loads (host, service, id);
"""


@dataclass(frozen=True)
class Estimate:
    """How long a load takes, from those before. Seconds; ``spread`` is a standard deviation, None with one load."""

    seconds: float
    """Median."""
    samples: int
    spread: float | None = None
    fastest: float = 0.0
    slowest: float = 0.0
    version: str = ""
    """"" when loads of several versions had to be put together."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Median seconds by phase."""

    def remaining(self, waited: float) -> float:
        """Return seconds that are left, never below 0."""
        return max(0.0, self.seconds - waited)

    def slower_than_ever(self, waited: float) -> bool:
        """Return whether a wait has outlasted every load so far."""
        return waited > self.slowest

    def __str__(self) -> str:
        spread = f" ± {format_duration(self.spread)}" if self.spread is not None else ""
        return f"{format_duration(self.seconds)}{spread} (n={self.samples})"


class LoadHistory:
    """Loads by host, service and version, in one SQLite file. Every method raises JournalError with the path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self,
        *,
        host: str,
        service: str,
        seconds: float,
        version: str | None = None,
        phases: Mapping[str, float] | None = None,
        run: str = "",
        ready_at: datetime | None = None,
    ) -> None:
        """Keep one load that ended in a serving server; a failed one says nothing about how long a load takes."""
        row = (
            host,
            service,
            version or "",
            (ready_at or datetime.now(UTC)).isoformat(timespec="seconds"),
            seconds,
            json.dumps(dict(phases or {})),
            run,
        )
        with self._opened(write=True) as base:
            base.execute(
                "INSERT INTO loads (host, service, version, ready_at, seconds, phases, run)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )

    def estimate(self, *, host: str, service: str, version: str | None = None) -> Estimate | None:
        """Return what earlier loads took: those of this version where there are any, else of all; None without any."""
        rows = self._rows(host, service, version) if version else []
        of_version = version or ""
        if not rows:
            rows, of_version = self._rows(host, service, None), ""
        if not rows:
            return None
        seconds = [row[0] for row in rows]
        return Estimate(
            seconds=statistics.median(seconds),
            samples=len(seconds),
            spread=statistics.stdev(seconds) if len(seconds) > 1 else None,
            fastest=min(seconds),
            slowest=max(seconds),
            version=of_version,
            phases=_by_phase([row[1] for row in rows], statistics.median),
        )

    def stalls(self, service: ResolvedService) -> StallLimits:
        """Return how long each phase may stand still, from the longest so far of this service on its host."""
        rows = self._rows(service.host, service.name, None)
        return StallLimits.for_service(service, _by_phase([row[1] for row in rows], max), len(rows))

    def _rows(self, host: str, service: str, version: str | None) -> list[tuple[float, dict[str, float]]]:
        if not self.path.exists():
            return []
        query = "SELECT seconds, phases FROM loads WHERE host = ? AND service = ? AND (? IS NULL OR version = ?)"
        with self._opened() as base:
            rows = base.execute(f"{query} ORDER BY id DESC LIMIT {KEPT}", (host, service, version, version)).fetchall()
        return [(float(seconds), json.loads(phases)) for seconds, phases in rows]

    @contextmanager
    def _opened(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        try:
            if write:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=10)) as base:
                base.execute("PRAGMA journal_mode = WAL")
                base.executescript(_SCHEMA)
                with base:
                    yield base
        except (sqlite3.Error, OSError, json.JSONDecodeError) as error:
            raise JournalError(
                "the history of loads cannot be used",
                seen=str(error),
                where=str(self.path),
                hint="move the file away: only estimates of load times are lost",
            ) from error


def _by_phase(loads: list[dict[str, float]], choose: Callable[[list[float]], float]) -> dict[str, float]:
    """Return one figure a phase over all loads that went through it."""
    names = dict.fromkeys(name for phases in loads for name in phases)
    return {name: choose([phases[name] for phases in loads if name in phases]) for name in names}

"""The history: every snapshot in one SQLite file beside the journal. Figures stay when artifacts are pruned."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from opsctl.errors import JournalError
from opsctl.snapshots.models import Metric, MetricKey, Snapshot

FILE = "history.sqlite"
VERSION = 1
_SCHEMA = """
CREATE TABLE snapshots (
  id INTEGER PRIMARY KEY,
  run TEXT NOT NULL, host TEXT NOT NULL, service TEXT NOT NULL,
  time TEXT NOT NULL, playbook TEXT NOT NULL,
  identity TEXT NOT NULL, fingerprint TEXT NOT NULL,
  UNIQUE (run, host, service)
) STRICT;
CREATE INDEX snapshots_of_a_service ON snapshots (host, service, time);
CREATE TABLE metrics (
  snapshot INTEGER NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
  stage TEXT NOT NULL, cell TEXT NOT NULL, name TEXT NOT NULL,
  value REAL NOT NULL, unit TEXT NOT NULL, samples INTEGER NOT NULL, spread REAL, low REAL, high REAL,
  PRIMARY KEY (snapshot, stage, cell, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX metrics_by_name ON metrics (name, cell, stage);
"""


@dataclass(frozen=True)
class Point:
    """One night of a series."""

    run: str
    time: str
    value: float
    spread: float | None
    samples: int
    identity: str
    """Short hash of the fingerprint: a change of it is a change of what was measured."""


@dataclass(frozen=True)
class Series:
    """One figure of one service on one host over time, the oldest first."""

    host: str
    service: str
    key: MetricKey
    unit: str
    points: tuple[Point, ...]


class History:
    """The open history. Raises JournalError when the file cannot be opened, read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise self._problem("cannot be opened", error) from error
        self._db.row_factory = sqlite3.Row
        try:
            with self._guarded("cannot be used"):
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("PRAGMA foreign_keys=ON")
                self._prepare()
        except JournalError:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def add(self, snapshots: Iterable[Snapshot]) -> None:
        """Record snapshots, all or none; those of the same run, host and service are replaced."""
        with self._guarded("could not be written"), self._transaction():
            for snapshot in snapshots:
                where = (snapshot.run, snapshot.host, snapshot.service)
                self._db.execute("DELETE FROM snapshots WHERE run=? AND host=? AND service=?", where)
                row = self._db.execute(
                    "INSERT INTO snapshots (run, host, service, time, playbook, identity, fingerprint)"
                    " VALUES (?,?,?,?,?,?,?)",
                    (
                        *where,
                        snapshot.time,
                        snapshot.playbook,
                        snapshot.identity,
                        json.dumps(snapshot.fingerprint, sort_keys=True),
                    ),
                ).lastrowid
                self._db.executemany(
                    "INSERT INTO metrics VALUES (?,?,?,?,?,?,?,?,?,?)",
                    [
                        (row, m.key.stage, m.key.cell, m.key.name, m.value, m.unit, m.samples, m.spread, m.low, m.high)
                        for m in snapshot.metrics
                    ],
                )

    def snapshots(
        self, *, run: str | None = None, host: str | None = None, service: str | None = None, since: str | None = None
    ) -> list[Snapshot]:
        """Return snapshots with all their figures, the oldest first."""
        where, values = _conditions(run=run, host=host, service=service, since=since)
        with self._guarded("cannot be read"):
            rows = self._db.execute(f"SELECT * FROM snapshots{where} ORDER BY time, id", values).fetchall()  # noqa: S608
            return [self._snapshot(row) for row in rows]

    def latest(self, *, host: str | None = None, service: str | None = None) -> list[Snapshot]:
        """Return the newest snapshot of every service on every host."""
        newest = {
            (snapshot.host, snapshot.service): snapshot for snapshot in self.snapshots(host=host, service=service)
        }
        return list(newest.values())

    def baseline(self, snapshot: Snapshot, *, nights: int = 14) -> list[Snapshot]:
        """Return the last snapshots of the same host and service before this one with the same fingerprint."""
        where, values = _conditions(host=snapshot.host, service=snapshot.service, identity=snapshot.identity)
        with self._guarded("cannot be read"):
            rows = self._db.execute(
                f"SELECT * FROM snapshots{where} AND time < ? AND run != ? ORDER BY time DESC LIMIT ?",  # noqa: S608
                (*values, snapshot.time, snapshot.run, nights),
            ).fetchall()
            return [self._snapshot(row) for row in reversed(rows)]

    def series(
        self,
        metric: str,
        *,
        cell: str | None = None,
        host: str | None = None,
        service: str | None = None,
        since: str | None = None,
    ) -> list[Series]:
        """Return every series of a metric: ``tpot.p50``, or ``serving-benchmark/concurrency=8/tpot.p50``."""
        stage, named_cell, name = _split(metric)
        return self._series(name=name, cell=cell or named_cell, stage=stage, host=host, service=service, since=since)

    def all_series(self, *, host: str | None = None, service: str | None = None) -> list[Series]:
        """Return every series of every figure."""
        return self._series(host=host, service=service)

    def _series(self, **wanted: str | None) -> list[Series]:
        where, values = _conditions(**wanted)
        with self._guarded("cannot be read"):
            rows = self._db.execute(
                f"SELECT * FROM metrics JOIN snapshots ON snapshots.id = metrics.snapshot{where}"  # noqa: S608
                " ORDER BY host, service, stage, cell, name, time, id",
                values,
            ).fetchall()
        grouped: dict[tuple[str, ...], list[sqlite3.Row]] = {}
        for row in rows:
            grouped.setdefault(
                (row["host"], row["service"], row["stage"], row["cell"], row["name"], row["unit"]), []
            ).append(row)
        return [
            Series(
                host=host_,
                service=service_,
                key=MetricKey(stage=stage_, cell=cell_, name=name_),
                unit=unit,
                points=tuple(
                    Point(row["run"], row["time"], row["value"], row["spread"], row["samples"], row["identity"])
                    for row in members
                ),
            )
            for (host_, service_, stage_, cell_, name_, unit), members in grouped.items()
        ]

    def names(self) -> list[str]:
        """Return the names of all figures that the history holds."""
        with self._guarded("cannot be read"):
            return [row["name"] for row in self._db.execute("SELECT DISTINCT name FROM metrics ORDER BY name")]

    def _snapshot(self, row: sqlite3.Row) -> Snapshot:
        metrics = self._db.execute("SELECT * FROM metrics WHERE snapshot=? ORDER BY stage, cell, name", (row["id"],))
        return Snapshot(
            run=row["run"],
            host=row["host"],
            service=row["service"],
            time=row["time"],
            playbook=row["playbook"],
            fingerprint=json.loads(row["fingerprint"]),
            metrics=tuple(
                Metric(
                    key=MetricKey(stage=metric["stage"], cell=metric["cell"], name=metric["name"]),
                    value=metric["value"],
                    unit=metric["unit"],
                    samples=metric["samples"],
                    spread=metric["spread"],
                    low=metric["low"],
                    high=metric["high"],
                )
                for metric in metrics
            ),
        )

    def _prepare(self) -> None:
        with self._transaction():
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found > VERSION:
                raise JournalError(
                    "the history was written by a newer opsctl",
                    wanted=f"version {VERSION}",
                    seen=f"version {found}",
                    where=str(self.path),
                    hint="use the opsctl that wrote it, or move the file away",
                )
            if found == 0:
                for statement in _SCHEMA.strip().split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version={VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._problem(what, error) from error

    def _problem(self, what: str, error: Exception) -> JournalError:
        return JournalError(
            f"the history {what}", seen=str(error), where=str(self.path), hint="free space, or move a broken file away"
        )


def _conditions(**wanted: str | None) -> tuple[str, Sequence[str]]:
    """Return a WHERE clause over this module's own column names, and its values."""
    parts = [("time >= ?" if name == "since" else f"{name} = ?", value) for name, value in wanted.items() if value]
    if not parts:
        return "", ()
    return " WHERE " + " AND ".join(part for part, _ in parts), [value for _, value in parts]


def _split(metric: str) -> tuple[str | None, str | None, str]:
    """Return stage, cell and name of a metric as typed: a name alone, or stage/cell/name (a cell may hold slashes)."""
    parts = metric.split("/")
    if len(parts) < 3:
        return None, None, metric
    return parts[0], "/".join(parts[1:-1]), parts[-1]

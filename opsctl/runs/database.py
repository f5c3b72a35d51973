"""The journal's SQLite file: opened, migrated, written through a disk that fills up, read.

WAL with ``synchronous=FULL``: a commit that returned survives kill -9 and a power cut. From the first write on that the
disk refuses, a copy in memory goes on: how a run ended is derived from the journal, and must be true all the same.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from opsctl.errors import JournalError
from opsctl.runs.schema import MIGRATIONS, SCHEMA, SCHEMA_VERSION
from opsctl.strike_points import strike_point


class Database:
    """The open database. Safe to use from several threads; every write is committed when it returns.

    Raises JournalError when it cannot be opened or written: a full disk, a broken file, another program that holds
    it for longer than ten seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._forgiving = threading.local()
        self.failed: JournalError | None = None
        self._copy: sqlite3.Connection | None = None
        """The journal in memory, from the first write on that the disk refused: what was seen is known all the same."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(
                folder / "journal.sqlite", timeout=10, check_same_thread=False, isolation_level=None
            )
        except (OSError, sqlite3.Error) as error:
            raise JournalError("the journal cannot be opened", seen=str(error), where=str(folder)) from error
        self._db.row_factory = sqlite3.Row
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()
        except sqlite3.Error as error:
            self._db.close()
            raise JournalError("the journal cannot be used", seen=str(error), where=str(folder)) from error

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
            for version in range(found or SCHEMA_VERSION, SCHEMA_VERSION):
                for statement in MIGRATIONS[version]:
                    self._db.execute(statement)
            if found < SCHEMA_VERSION:
                self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            self._db.execute("COMMIT")
        except sqlite3.Error:
            # A full disk has rolled back already, and a second roll-back would hide what was wrong.
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise
        if found > SCHEMA_VERSION:
            raise JournalError(
                "the journal was written by a newer opsctl",
                wanted=f"schema {SCHEMA_VERSION}",
                seen=f"schema {found}",
                where=str(self.folder / "journal.sqlite"),
                hint="use the opsctl that wrote it, or move the file away",
            )

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()
            if self._copy is not None:
                self._copy.close()

    def _write(self, what: str, statement: str, values: tuple[Any, ...], *, by_row: bool = False) -> int:
        """Commit one statement. ``by_row``: it names a row by an id that only the copy in memory may have."""
        strike_point(f"journal {what} before")
        with self._lock:
            row, error = 0, None
            if not (by_row and self._copy is not None):
                try:
                    row = int(self._db.execute(statement, values).lastrowid or 0)
                except sqlite3.Error as caught:
                    error = caught
            if error is not None or self._copy is not None:
                row = int(self._in_memory().execute(statement, values).lastrowid or 0)
            if error is not None:
                self._refused(what, error)
                return row
        strike_point(f"journal {what} after")
        return row

    def _in_memory(self) -> sqlite3.Connection:
        if self._copy is None:
            self._copy = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
            self._copy.row_factory = sqlite3.Row
            try:
                self._db.backup(self._copy)
            except sqlite3.Error:
                # Not even readable: what is seen from now on is still known.
                self._copy.executescript(SCHEMA)
        return self._copy

    def _refused(self, what: str, error: sqlite3.Error) -> None:
        failed = JournalError(
            f"the journal could not record {what}",
            seen=str(error),
            where=str(self.folder / "journal.sqlite"),
            hint="free space on this machine's disk; production is restored all the same",
        )
        first, self.failed = self.failed is None, self.failed or failed
        # The campaign ends for the first failure. The restore that follows must not be stopped by the same full
        # disk; what can be written once there is space again, is.
        if first and not getattr(self._forgiving, "here", False):
            raise failed from error

    def forgive(self) -> None:
        """From now on a write of this thread that fails is kept in ``failed``, not raised: a restore goes on."""
        self._forgiving.here = True

    def query(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        """Read. Raises JournalError."""
        with self._lock:
            try:
                return (self._copy or self._db).execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise JournalError("the journal cannot be read", seen=str(error), where=str(self.folder)) from error

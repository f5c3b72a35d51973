"""The record of every run: SQLite, committed before and after each action.

WAL with ``synchronous=FULL``: a commit that returned survives kill -9 and a power cut. A *mutation* (anything
that changes a host) is written when it begins and again when it ended; one that stands begun and not ended
after a crash is resolved by looking at the host (``resume.py``), never by guessing.

Whether a run's controller lives is not a column, which a dead process could never correct, but a lock:
the controller holds ``runs/<run>/controller.lock`` for as long as it runs.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from pydantic import BaseModel

from opsctl.clock import now
from opsctl.errors import JournalError
from opsctl.redaction import redact_value
from opsctl.results import State, StepResult
from opsctl.runs.schema import SCHEMA, SCHEMA_VERSION
from opsctl.strike_points import strike_point


def state_home() -> Path:
    """Return the controller's own folder: ``$XDG_STATE_HOME/opsctl``."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "opsctl"


def controller_name() -> str:
    """Return who runs this: user@host, the name shown to whoever finds the host held."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


class Journal:
    """The open journal. Safe to use from several threads; every write is committed when it returns.

    Raises JournalError when the database cannot be opened or written: a full disk, a broken file, another
    program that holds it for longer than ten seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._lockfiles: dict[str, IO[str]] = {}
        self._forgiving = threading.local()
        self.failed: JournalError | None = None
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

    @classmethod
    def open(cls, folder: Path | None = None) -> Journal:
        """Open the journal of this user, made when it is not there."""
        return cls(folder or state_home())

    def _migrate(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found == 0:
                for statement in SCHEMA.split(";\n"):
                    self._db.execute(statement)
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
        """Close the database and let go of every run's lock."""
        with self._lock:
            self._db.close()
            for handle in self._lockfiles.values():
                handle.close()
            self._lockfiles.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, what: str, statement: str, values: tuple[Any, ...]) -> int:
        strike_point(f"journal {what} before")
        with self._lock:
            try:
                cursor = self._db.execute(statement, values)
            except sqlite3.Error as error:
                failed = JournalError(
                    f"the journal could not record {what}",
                    seen=str(error),
                    where=str(self.folder / "journal.sqlite"),
                    hint="free space on this machine's disk; production is restored all the same",
                )
                first, self.failed = self.failed is None, self.failed or failed
                if first and not getattr(self._forgiving, "here", False):
                    raise failed from error
                # The campaign ends for the first failure. The restore that follows must not be stopped by the
                # same full disk; what can be written once there is space again, is.
                return 0
        strike_point(f"journal {what} after")
        return int(cursor.lastrowid or 0)

    def forgive(self) -> None:
        """From now on a write of this thread that fails is kept in ``failed``, not raised: a restore goes on."""
        self._forgiving.here = True

    def query(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        """Read. Raises JournalError."""
        with self._lock:
            try:
                return self._db.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise JournalError("the journal cannot be read", seen=str(error), where=str(self.folder)) from error

    # -- runs

    def run_folder(self, run: str) -> Path:
        """Return where a run's artifacts lie on the controller."""
        return self.folder / "runs" / run

    def begin_run(self, run: str, *, playbook: str, file: str, version: str, definition: Mapping[str, Any]) -> None:
        """Record a run and take its lock. ``definition`` is all that a resume needs: playbook, inventory, options."""
        self.run_folder(run).mkdir(parents=True, exist_ok=True)
        self.lock_run(run)
        self._write(
            "run begun",
            "INSERT INTO runs (run, playbook, file, controller, version, definition, started) VALUES (?,?,?,?,?,?,?)",
            (run, playbook, file, controller_name(), version, json.dumps(redact_value(definition)), now()),
        )

    def lock_run(self, run: str) -> None:
        """Hold the run as its controller. Raises JournalError when another process does."""
        path = self.run_folder(run) / "controller.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.close()
            raise JournalError(
                f"run {run} has a living controller",
                where=str(path),
                hint=f"opsctl status {run} --watch",
            ) from error
        self._lockfiles[run] = handle

    def controller_lives(self, run: str) -> bool:
        """Whether some process holds the run's lock."""
        if run in self._lockfiles:
            return True
        try:
            with (self.run_folder(run) / "controller.lock").open("r+") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def end_run(self, run: str, *, outcome: str, exit_code: int, reason: str) -> None:
        """Record how a run ended."""
        self._write(
            "run ended",
            "UPDATE runs SET ended=?, outcome=?, exit_code=?, reason=? WHERE run=?",
            (now(), outcome, exit_code, redact_value(reason), run),
        )

    def reopen_run(self, run: str) -> None:
        """Record that a run goes on: its lock is held by this process."""
        self._write(
            "run reopened",
            "UPDATE runs SET ended=NULL, outcome='running', exit_code=NULL, reason='' WHERE run=?",
            (run,),
        )

    # -- hosts

    def host(self, run: str, host: str, *, production: str, unit: str) -> None:
        """Record which production a run borrows on a host."""
        self._write(
            "host",
            "INSERT OR IGNORE INTO hosts (run, host, production, unit) VALUES (?,?,?,?)",
            (run, host, production, unit),
        )

    def update_host(self, run: str, host: str, **columns: Any) -> None:
        """Set columns of a host, such as token, as_found, verified, evidence, down_since, back_at or restored_by."""
        names = ", ".join(f"{name}=?" for name in columns)
        self._write(
            f"host {' '.join(columns)}",
            f"UPDATE hosts SET {names} WHERE run=? AND host=?",  # noqa: S608 - names are this module's callers' keywords
            (*(_plain(value) for value in columns.values()), run, host),
        )

    # -- phases and steps

    def phase(self, run: str, host: str, ordinal: int, *, round_: int, name: str, serve: str) -> None:
        """Record a phase, pending."""
        self._write(
            "phase",
            "INSERT OR IGNORE INTO phases (run, host, ordinal, round, name, serve, state) VALUES (?,?,?,?,?,?,?)",
            (run, host, ordinal, round_, name, serve, State.PENDING),
        )

    def phase_state(self, run: str, host: str, ordinal: int, state: State, reason: str = "") -> None:
        """Move a phase to a state; its start and end times follow from it."""
        stamp = "ended=?" if state.final else "started=COALESCE(started, ?)"
        self._write(
            f"phase {state}",
            f"UPDATE phases SET state=?, reason=?, {stamp} WHERE run=? AND host=? AND ordinal=?",  # noqa: S608 - one of two fixed names
            (state, redact_value(reason), now(), run, host, ordinal),
        )

    def step(
        self,
        run: str,
        host: str,
        ordinal: int,
        position: int,
        *,
        id_: str,
        stage: str,
        name: str,
        options: BaseModel,
        hash_: str,
        planned: StepResult,
    ) -> None:
        """Record a step with every cell that it plans, pending; one that stands verified and unchanged stays so."""
        self._write(
            "step",
            "INSERT INTO steps (run, host, ordinal, position, id, stage, name, options, hash, state, result)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET id=excluded.id, stage=excluded.stage,"
            " name=excluded.name, options=excluded.options, hash=excluded.hash, state=excluded.state,"
            " result=excluded.result, ended=NULL WHERE steps.hash<>excluded.hash OR steps.state<>'verified'",
            (
                run,
                host,
                ordinal,
                position,
                id_,
                stage,
                name,
                json.dumps(redact_value(options.model_dump(mode="json", by_alias=True))),
                hash_,
                State.PENDING,
                _plain(planned),
            ),
        )

    def step_state(
        self,
        run: str,
        host: str,
        ordinal: int,
        position: int,
        state: State,
        *,
        result: StepResult | None = None,
        unit: str | None = None,
    ) -> None:
        """Move a step to a state, with its result when it has one."""
        column = "ended" if state.final else "started"
        stamp = f"{column}=?" if state.final else f"{column}=COALESCE({column}, ?)"
        sets, values = [f"state=?, {stamp}"], [state, now()]
        if result is not None:
            sets.append("result=?")
            values.append(_plain(result))
        if unit is not None:
            sets.append("unit=?")
            values.append(unit)
        self._write(
            f"step {state}",
            f"UPDATE steps SET {', '.join(sets)} WHERE run=? AND host=? AND ordinal=? AND position=?",  # noqa: S608 - fixed names
            (*values, run, host, ordinal, position),
        )

    # -- mutations, loads, holds

    @contextmanager
    def mutation(self, run: str, host: str, action: str, subject: str) -> Iterator[dict[str, Any]]:
        """Record a change of the host before it is made and after it ended; the yielded dict is its detail."""
        detail: dict[str, Any] = {}
        row = self._write(
            f"{action} begun",
            "INSERT INTO mutations (run, host, action, subject, begun) VALUES (?,?,?,?,?)",
            (run, host, action, subject, now()),
        )
        strike_point(f"mutation {action} before")
        outcome = "did not end"
        try:
            yield detail
            outcome = "done"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            raise
        finally:
            strike_point(f"mutation {action} after")
            self._write(
                f"{action} ended",
                "UPDATE mutations SET ended=?, outcome=?, detail=? WHERE id=?",
                (now(), redact_value(outcome), _plain(detail), row),
            )

    def unfinished(self, run: str) -> list[sqlite3.Row]:
        """Return mutations that began and of which nobody knows whether they took effect."""
        return self.query("SELECT * FROM mutations WHERE run=? AND ended IS NULL ORDER BY id", run)

    def resolve(self, mutation: int, outcome: str) -> None:
        """Record what looking at the host said of an unfinished mutation."""
        self._write(
            "mutation resolved", "UPDATE mutations SET ended=?, outcome=? WHERE id=?", (now(), outcome, mutation)
        )

    def begin_load(self, run: str, host: str, *, service: str, unit: str, attempt: int) -> int:
        """Record that a model server starts to load; returns the load's id."""
        return self._write(
            "load begun",
            "INSERT INTO loads (run, host, service, unit, attempt, started) VALUES (?,?,?,?,?,?)",
            (run, host, service, unit, attempt, now()),
        )

    def end_load(
        self,
        load: int,
        *,
        outcome: str,
        seconds: float | None = None,
        version: str | None = None,
        phases: Mapping[str, float] | None = None,
    ) -> None:
        """Record how a load ended; ``seconds`` only where it became ready."""
        self._write(
            "load ended",
            "UPDATE loads SET ready=?, seconds=?, version=?, phases=?, outcome=? WHERE id=?",
            (
                now() if seconds is not None else None,
                seconds,
                version,
                _plain(dict(phases or {})),
                redact_value(outcome),
                load,
            ),
        )

    def hold(self, run: str, host: str, holder: str, role: str) -> None:
        """Record who holds the GPUs from now on; whoever held them before holds them no more."""
        moment = now()
        self._write(
            "hold ended", "UPDATE holds SET ended=? WHERE run=? AND host=? AND ended IS NULL", (moment, run, host)
        )
        self._write(
            "hold",
            "INSERT INTO holds (run, host, holder, role, started) VALUES (?,?,?,?,?)",
            (run, host, holder, role, moment),
        )

    def end_holds(self, run: str) -> None:
        """Record that the run no longer watches who holds the GPUs."""
        self._write("holds ended", "UPDATE holds SET ended=? WHERE run=? AND ended IS NULL", (now(), run))

    def variant(self, run: str, service: str, differences: tuple[str, ...]) -> None:
        """Record how a variant differs from production, a line each."""
        self._write(
            "variant", "INSERT OR REPLACE INTO variants VALUES (?,?,?)", (run, service, _plain(list(differences)))
        )

    def event(
        self,
        run: str,
        time: str,
        event: str,
        *,
        host: str,
        phase: str,
        step: str,
        message: str,
        data: Mapping[str, Any],
    ) -> None:
        """Record an event as it was shown."""
        self._write(
            "event",
            "INSERT INTO events (run, time, event, host, phase, step, message, data) VALUES (?,?,?,?,?,?,?,?)",
            (run, time, event, host, phase, step, message, _plain(dict(data))),
        )


def _plain(value: Any) -> Any:
    """Return a column's value: models and containers as redacted JSON, the rest as it is."""
    if isinstance(value, BaseModel):
        return json.dumps(redact_value(value.model_dump(mode="json")))
    if isinstance(value, list | tuple):
        return json.dumps([redact_value(v.model_dump(mode="json") if isinstance(v, BaseModel) else v) for v in value])
    if isinstance(value, dict):
        return json.dumps(redact_value(value))
    return value

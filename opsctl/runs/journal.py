"""The record of every run: SQLite, committed before and after each action.

A *mutation* (anything
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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from opsctl.clock import now
from opsctl.errors import JournalError
from opsctl.redaction import redact_value
from opsctl.results import Evidence, State, StepResult, moved
from opsctl.runs.database import Database
from opsctl.strike_points import strike_point

if TYPE_CHECKING:
    from opsctl.plan.actions import Action


def state_home() -> Path:
    """Return the controller's own folder: ``$XDG_STATE_HOME/opsctl``."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "opsctl"


def controller_name() -> str:
    """Return who runs this: user@host, the name shown to whoever finds the host held."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


_LOOKERS = 0.05
"""Seconds after which whoever looked whether a controller lives has let go."""


def _locked(handle: int, kind: int, folder: Path) -> bool:
    """Lock a run's folder; return False where a controller holds it. Raises JournalError where it cannot be locked."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise JournalError(
            f"the file system of {folder} cannot lock a folder",
            seen=str(error.strerror),
            where=str(folder),
            hint="have opsctl's state on a local disk: set XDG_STATE_HOME (NFS locks no folders)",
        ) from error
    return True


class Journal(Database):
    """The open journal. Safe to use from several threads; every write is committed when it returns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._locks: dict[str, int] = {}

    @classmethod
    def open(cls, folder: Path | None = None) -> Journal:
        """Open the journal of this user, made when it is not there."""
        return cls(folder or state_home())

    def close(self) -> None:
        """Close the database and let go of every run's lock."""
        super().close()
        for handle in self._locks.values():
            os.close(handle)
        self._locks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        # The folder itself: a file could be deleted by hand, and a controller at work would look dead.
        path = self.run_folder(run)
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        held = False
        try:
            held = _locked(handle, fcntl.LOCK_EX, path)
            if not held:
                # Somebody may be looking whether a controller lives, which takes no time.
                time.sleep(_LOOKERS)
                held = _locked(handle, fcntl.LOCK_EX, path)
        finally:
            if not held:
                os.close(handle)
        if not held:
            words = f"run {run} has a living controller"
            raise JournalError(words, where=str(path), hint=f"opsctl status {run} --watch")
        self._locks[run] = handle

    def controller_lives(self, run: str) -> bool:
        """Whether some process holds the run's lock. Raises JournalError where its file system cannot lock."""
        if run in self._locks:
            return True
        try:
            handle = os.open(self.run_folder(run), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return False
        try:
            return not _locked(handle, fcntl.LOCK_SH, self.run_folder(run))
        finally:
            os.close(handle)

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
            "UPDATE runs SET ended=NULL, outcome='running', exit_code=NULL, reason='', interrupted=0, error='',"
            " error_code=NULL WHERE run=?",
            (run,),
        )
        self._write("failures forgotten", "UPDATE hosts SET failure='' WHERE run=?", (run,))

    def run_failure(self, run: str, *, interrupted: bool, error: str, code: int | None) -> None:
        """Record what ended a run before its time: a person's signal, an error with its own exit code."""
        self._write(
            "run failure",
            "UPDATE runs SET interrupted=?, error=?, error_code=? WHERE run=?",
            (int(interrupted), redact_value(error), code, run),
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

    def fail_host(self, run: str, host: str, failure: str) -> None:
        """Record why the campaign failed on a host; the first reason stays."""
        self._write(
            "host failure",
            "UPDATE hosts SET failure=? WHERE run=? AND host=? AND failure=''",
            (redact_value(failure), run, host),
        )

    # -- phases

    def phase(
        self, run: str, host: str, ordinal: int, *, round_: int, name: str, serve: str, todo: bool = True
    ) -> None:
        """Record a phase, pending; one that was verified and has nothing to do any more stays so."""
        self._write(
            "phase",
            "INSERT INTO phases (run, host, ordinal, round, name, serve, state) VALUES (?,?,?,?,?,?,?)"
            " ON CONFLICT DO UPDATE SET state=excluded.state, reason='', ended=NULL"
            " WHERE ? OR phases.state<>'verified'",
            (run, host, ordinal, round_, name, serve, State.PENDING, todo),
        )

    def phase_state(self, run: str, host: str, ordinal: int, state: State, reason: str = "") -> None:
        """Move a phase to a state; its start and end times follow from it."""
        place = (run, host, ordinal)
        self._check("SELECT state FROM phases WHERE run=? AND host=? AND ordinal=?", place, state)
        stamp = "ended=?" if state.final else "started=COALESCE(started, ?)"
        self._write(
            f"phase {state}",
            f"UPDATE phases SET state=?, reason=?, {stamp} WHERE run=? AND host=? AND ordinal=?",  # noqa: S608 - one of two fixed names
            (state, redact_value(reason), now(), *place),
        )

    def _check(self, statement: str, place: tuple[Any, ...], after: State, *, again: bool = False) -> None:
        """Raise Defect where a row's state cannot become another; ``again``: what ended is taken up once more."""
        for row in self.query(statement, *place):
            moved(State(row["state"]), after, again=again)

    # -- actions

    def plan(self, run: str, host: str, actions: Sequence[Action]) -> int:
        """Record the actions of a plan, pending, and return the plan's number: 1, and one more for each resume.

        What an earlier plan of the run left pending or running is skipped: the new plan records its outcome.
        """
        (row,) = self.query("SELECT COALESCE(MAX(plan), 0) AS last FROM actions WHERE run=? AND host=?", run, host)
        number = int(row["last"]) + 1
        self._write(
            "plan replaced",
            "UPDATE actions SET state=?, reason=?, ended=COALESCE(ended, ?) WHERE run=? AND host=? AND state IN (?,?)",
            (State.SKIPPED, "the run was resumed: planned anew", now(), run, host, State.PENDING, State.RUNNING),
        )
        rows = ", ".join(["(?,?,?,?,?,?,?,?,?,?)"] * len(actions))
        values = [
            (run, host, number, ordinal, action.id, action.kind, action.branch, action.phase,
             redact_value(action.describe()), State.PENDING)
            for ordinal, action in enumerate(actions)
        ]  # fmt: skip
        self._write(
            "actions planned",
            f"INSERT INTO actions (run, host, plan, ordinal, id, kind, branch, phase, sentence, state) VALUES {rows}",  # noqa: S608 - marks
            tuple(value for row in values for value in row),
        )
        return number

    def action_state(
        self,
        run: str,
        host: str,
        plan: int,
        ordinal: int,
        state: State,
        *,
        reason: str = "",
        evidence: Sequence[Evidence] = (),
        again: bool = False,
    ) -> None:
        """Move an action to a state. ``again``: it is in a branch that is repeated, and ended before."""
        place = (run, host, plan, ordinal)
        self._check(
            "SELECT state FROM actions WHERE run=? AND host=? AND plan=? AND ordinal=?", place, state, again=again
        )
        stamp = "ended=?" if state.final else "attempts=attempts+1, ended=NULL, started=COALESCE(started, ?)"
        self._write(
            f"action {state}",
            f"UPDATE actions SET state=?, reason=?, evidence=?, {stamp} WHERE run=? AND host=? AND plan=? AND ordinal=?",  # noqa: S608, E501 - one of two fixed names
            (state, redact_value(reason), _plain(list(evidence)), now(), *place),
        )

    # -- steps

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
        again: bool = False,
    ) -> None:
        """Move a step to a state, with its result when it has one. ``again``: what had ended is judged anew."""
        place = (run, host, ordinal, position)
        where = "run=? AND host=? AND ordinal=? AND position=?"
        self._check(f"SELECT state FROM steps WHERE {where}", place, state, again=again)  # noqa: S608 - fixed names
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
            f"UPDATE steps SET {', '.join(sets)} WHERE {where}",  # noqa: S608 - fixed names
            (*values, *place),
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
                by_row=True,
            )

    def unfinished(self, run: str) -> list[sqlite3.Row]:
        """Return mutations that began and whose effect is unknown."""
        return self.query("SELECT * FROM mutations WHERE run=? AND ended IS NULL ORDER BY id", run)

    def resolve(self, mutation: int, outcome: str) -> None:
        """Record what looking at the host said of an unfinished mutation."""
        self._write(
            "mutation resolved",
            "UPDATE mutations SET ended=?, outcome=? WHERE id=?",
            (now(), outcome, mutation),
            by_row=True,
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
            by_row=True,
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

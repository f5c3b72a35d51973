"""systemd by commands on the host: ``busctl --json`` and ``systemctl``, for a controller without GLib (a Mac).

The same contract as ``systemd.py``, one program a call instead of one message: some 10 ms and a round trip
more. In a lease's session each of these programs runs in a scope of its own that the guard kills with the
token (``opsctl-guard exec TOKEN``), so the fence is the same.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.deadline import Deadline
from opsctl.errors import (
    BusError,
    CommandFailed,
    DeadlineExceeded,
    JobFailed,
    OpsctlError,
    PrivilegeMissing,
    UnfitError,
    UnitNotFound,
)
from opsctl.host.guard import GuardExit, guard_argv
from opsctl.host.protocol import JobOutcome, TransientUnit, UnitStatus
from opsctl.host.units import dbus_typed, full_name, object_path, status_of, transient_properties

if TYPE_CHECKING:
    from opsctl.host.binding import BoundHost

CALL_LIMIT = 20.0
RELOAD_LIMIT = 90.0
_BUS_NAME = "org.freedesktop.systemd1"
_MANAGER = ("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_POLL = 0.1
# What systemctl prints of a job that is not done, with LC_ALL=C; the first that matches is the job's result.
_RESULTS = (
    (re.compile(r"dependency job for", re.IGNORECASE), "dependency"),
    (re.compile(r"cancell?ed", re.IGNORECASE), "canceled"),
    (re.compile(r"job for .* timed out", re.IGNORECASE), "timeout"),
    (re.compile(r"skipped", re.IGNORECASE), "skipped"),
)
_NOT_THERE = re.compile(r"not found|not loaded|NoSuchUnit|no such unit", re.IGNORECASE)
_REFUSED = re.compile(r"interactive authentication required|access denied|permission denied", re.IGNORECASE)
_EXISTS = re.compile(r"already (loaded|exists)", re.IGNORECASE)


def open_commands(host: BoundHost, *, token: int | None = None) -> CommandSystemd:
    """Return the binding; with a token, after the host has said that it holds. Raises LeaseLost, UnfitError."""
    systemd = CommandSystemd(host, token=token)
    if token is not None:
        systemd.check_token(Deadline(CALL_LIMIT, f"a look at the token on {host.name}"))
    return systemd


class CommandSystemd:
    """The protocol's ``Systemd`` over ``Host.run``. With a token, every change goes through the lease's session."""

    def __init__(self, host: BoundHost, *, token: int | None = None) -> None:
        if not host.has_systemd:
            raise UnfitError(f"{host.name} does not run systemd", where=host.name, hint="opsctl needs systemd units")
        self._host = host
        self._token = token

    @property
    def alive(self) -> bool:
        """Whether calls can be made: there is no connection of its own that could break."""
        return self._host.link.alive

    def check_token(self, deadline: Deadline) -> None:
        """Raise LeaseLost when the token does not hold."""
        try:
            self._run(("true",), deadline, changes=True)
        except CommandFailed as error:
            raise self._refused(error, f"session of token {self._token}") from error

    def status(self, unit: str, *, deadline: Deadline) -> UnitStatus:
        """Return one reading. A unit that there is none of has the load_state not-found."""
        name = full_name(unit)
        path = object_path(name)
        said = self._call((path, "org.freedesktop.DBus.Properties", "GetAll", "s", ""), name, deadline)
        return status_of(name, {key: value["data"] for key, value in said[0].items()})

    def list_units(self, *patterns: str, deadline: Deadline) -> tuple[UnitStatus, ...]:
        """Return the loaded units whose names match one of the globs (all without one)."""
        words = ("ListUnitsByPatterns", "asas", "0", str(len(patterns)), *patterns)
        rows = self._call((*_MANAGER, *words), "list of units", deadline)[0]
        return tuple(UnitStatus(name=row[0], load_state=row[2], active_state=row[3], sub_state=row[4]) for row in rows)

    def start(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Start a unit and await the job. Raises JobFailed unless it is done, UnitNotFound."""
        return self._job("start", full_name(unit), deadline)

    def stop(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Stop a unit and await the job. Raises JobFailed unless it is done, UnitNotFound."""
        return self._job("stop", full_name(unit), deadline)

    def start_transient(self, unit: TransientUnit, *, deadline: Deadline) -> JobOutcome:
        """Make a unit, start it, await the job. Raises BusError where a unit of that name is loaded."""
        name, started = full_name(unit.name), time.monotonic()
        properties = transient_properties(unit)
        words = [str(len(properties))]
        for key, value in properties.items():
            kind, plain = dbus_typed(key, value)
            words += [key, kind, *_busctl_words(kind, plain)]
        call = (*_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", *words, "0")
        self._call(call, name, deadline, changes=True)
        status = self._without_job(name, deadline)
        # Where the unit is gone already, it was collected: it ran to its end without a failure.
        result = "failed" if status.active_state == "failed" else "done"
        outcome = JobOutcome(name, "start", result, time.monotonic() - started)
        if result != "done":
            raise self._job_failed(outcome, status)
        return outcome

    def kill(self, unit: str, signal: int, *, deadline: Deadline) -> None:
        """Send a signal to every process of a unit."""
        name = full_name(unit)
        self._call((*_MANAGER, "KillUnit", "ssi", name, "all", str(int(signal))), name, deadline, changes=True)

    def reset_failed(self, unit: str, *, deadline: Deadline) -> None:
        """Forget that a unit failed, and its start counter. Raises UnitNotFound where it is not loaded."""
        name = full_name(unit)
        self._call((*_MANAGER, "ResetFailedUnit", "s", name), name, deadline, changes=True)

    def daemon_reload(self, *, deadline: Deadline) -> None:
        """Have systemd read all unit files again."""
        self._call((*_MANAGER, "Reload"), "daemon-reload", deadline, changes=True, limit=RELOAD_LIMIT)

    def processes(self, unit: str, *, deadline: Deadline) -> tuple[tuple[int, str], ...]:
        """Return (pid, command line) of every process in the unit's cgroup."""
        name = full_name(unit)
        rows = self._call((*_MANAGER, "GetUnitProcesses", "s", name), name, deadline)[0]
        return tuple((int(pid), str(command)) for _, pid, command in rows)

    def close(self) -> None:
        """Do nothing: no call leaves anything behind."""

    def _call(
        self,
        words: Sequence[str],
        what: str,
        deadline: Deadline,
        *,
        changes: bool = False,
        limit: float = CALL_LIMIT,
    ) -> Any:
        """Make one D-Bus call on the host and return its answer's values."""
        patience = deadline.within(limit, f"a call to systemd on {self._host.name}")
        argv = ("busctl", *self._scope(), "--json=short", f"--timeout={max(1, round(limit))}", "call", "--", _BUS_NAME)
        try:
            done = self._run((*argv, *words), patience, changes=changes)
        except CommandFailed as error:
            raise self._refused(error, what) from error
        return json.loads(done)["data"] if done.strip() else []

    def _run(self, argv: Sequence[str], deadline: Deadline, *, changes: bool) -> bytes:
        if changes and self._token is not None:
            argv = guard_argv(self._host.entry, "exec", str(self._token), *argv)
        become = None if not self._host.user_scope else False
        return self._host.run(argv, deadline=deadline, become=become).stdout

    def _scope(self) -> tuple[str, ...]:
        return ("--user",) if self._host.user_scope else ()

    def _job(self, kind: str, unit: str, deadline: Deadline) -> JobOutcome:
        deadline.check(where=self._host.name)
        started = time.monotonic()
        try:
            self._run(("systemctl", *self._scope(), kind, "--", unit), deadline, changes=True)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(
                error.message,
                where=f"{self._host.name}: {unit}",
                seen=f"the {kind} job of {unit} still runs",
                hint=f"journalctl -u {unit} on the host; the job goes on",
            ) from error
        except CommandFailed as error:
            refused = self._refused(error, unit)
            if not isinstance(refused, BusError):
                raise refused from error
            result = next((word for pattern, word in _RESULTS if pattern.search(error.stderr)), "failed")
            outcome = JobOutcome(unit, kind, result, time.monotonic() - started)
            raise self._job_failed(outcome, self.status(unit, deadline=Deadline(CALL_LIMIT, "a look"))) from error
        return JobOutcome(unit, kind, "done", time.monotonic() - started)

    def _without_job(self, unit: str, deadline: Deadline) -> UnitStatus:
        """Return the unit's status once no job of it is queued any more."""
        while True:
            status = self.status(unit, deadline=deadline)
            job: Any = status.properties.get("Job", (0, "/"))
            if int(job[0]) == 0:
                return status
            deadline.check(where=f"{self._host.name}: {unit}", seen=f"the start job of {unit} still runs")
            time.sleep(min(_POLL, deadline.remaining() + 0.001))

    def _job_failed(self, outcome: JobOutcome, status: UnitStatus) -> JobFailed:
        return JobFailed(
            f"{outcome.kind} of {outcome.unit} ended in {outcome.result} on {self._host.name}",
            result=outcome.result,
            wanted="done",
            seen=f"{status.active_state} ({status.sub_state}), Result={status.result}, "
            f"exit status {status.exec_main_status}",
            where=self._host.name,
            hint=f"journalctl -u {outcome.unit} -n 50 on the host",
        )

    def _refused(self, error: CommandFailed, what: str) -> OpsctlError:
        """Return ours for a program that failed, by its exit status and words."""
        said = error.stderr
        about: Mapping[str, str] = {"seen": said, "where": self._host.name}
        if self._token is not None and error.exit_status == GuardExit.LOST:
            return self._host.lease_lost(self._token, said)
        if self._token is not None and error.exit_status == -1:
            # A signal: the guard has killed the scope.
            return self._host.lease_lost(self._token, "the session was killed")
        if error.exit_status == 127:
            return UnfitError(f"{self._host.name} has no busctl", hint="it is part of systemd 240 and newer", **about)
        if _REFUSED.search(said):
            hint = "log in as root, or set become: true in the inventory and allow sudo without a password"
            return PrivilegeMissing(f"systemd on {self._host.name} refused: {what}", hint=hint, **about)
        if _NOT_THERE.search(said):
            return UnitNotFound(f"{self._host.name} has no such unit", wanted=what, **about)
        name = "org.freedesktop.systemd1.UnitExists" if _EXISTS.search(said) else ""
        return BusError(f"systemd on {self._host.name} refused: {what}", name=name, **about)


def _busctl_words(kind: str, value: Any) -> list[str]:
    """Return a value as busctl reads it: a count before each list, members one after the other."""
    if kind == "b":
        return ["true" if value else "false"]
    if kind == "as":
        return [str(len(value)), *value]
    if kind == "a(sasb)":
        words = [str(len(value))]
        for program, argv, ignore in value:
            words += [program, *_busctl_words("as", argv), *_busctl_words("b", ignore)]
        return words
    return [str(value)]

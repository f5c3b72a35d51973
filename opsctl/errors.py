"""The one tree of exceptions, and the exit codes that each branch ends in.

Libraries' errors are mapped to these once, where they enter (``opsctl/host/error_mapping.py`` for paramiko, GLib and
httpx; source.py, expressions.py and problems.py of ``opsctl/playbook/`` for PyYAML, Jinja2 and pydantic).
No other module knows a library's own exception. Every error is written for a person: what was
wanted, what was seen, where, and what to do next.

::

    OpsctlError
    ├── UnfitError             2  the playbook, inventory, command line or host is not fit; nothing was touched
    │   ├── DefinitionError       playbook or inventory; holds every Problem found
    │   ├── NotGuardable          the host cannot hold a lease
    │   └── PreflightStop         a check said stop
    ├── HostError
    │   ├── HostUnreachable       no connection could be made
    │   ├── HostKeyRejected       unknown or changed host key; never retried
    │   ├── AuthenticationFailed
    │   ├── PrivilegeMissing      sudo -n refused, polkit refused
    │   ├── TransportLost         a link that stood has gone; retryable, with a budget of its own
    │   ├── HostRebooted          boot_id differs from the one seen before
    │   ├── CommandFailed         a remote program's exit status was not 0
    │   └── BusError              systemd refused a call
    ├── UnitError
    │   ├── UnitNotFound
    │   ├── JobFailed             a systemd job ended in something other than done
    │   └── ProductionAppeared    somebody started production while the campaign had it down
    ├── DeadlineExceeded          a wait reached its limit
    ├── NotReady                  the model server is not (or no longer) ready
    │   ├── LoadFailed            it died, or logged a fatal line
    │   ├── LoadStalled           nothing moved for longer than its phase may take
    │   └── NotProven             it serves, but what runs is not what was meant to run
    ├── GpuNotFree                a process or memory stays on a GPU
    ├── StageError                a measuring step could not be carried out
    ├── TraceError             2  no file of a folder could be read
    ├── LeaseError
    │   ├── HostHeld           4  someone else holds the host
    │   ├── LeaseLost             the token is gone: the guard has acted, or acts now
    │   └── GuardSilent           the lease holds, but no guard watches it: the controller restores at once
    ├── JournalError           2  the record of a run cannot be read or written
    ├── Interrupted          130
    └── Defect                    opsctl itself is wrong; production is restored all the same
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process says to its caller. A promise: tests pin it."""

    VERIFIED = 0
    FAILED = 1
    UNFIT = 2
    PRODUCTION_NOT_VERIFIED = 3
    HELD = 4
    INCONCLUSIVE = 5
    INTERRUPTED = 130


class OpsctlError(Exception):
    """Base of everything that opsctl raises on purpose.

    ``str(error)`` is the first line a person sees. ``seen``, ``where`` and ``hint`` follow on lines of
    their own when they are given.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(
        self,
        message: str,
        *,
        wanted: str | None = None,
        seen: str | None = None,
        where: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.wanted = wanted
        self.seen = seen
        self.where = where
        self.hint = hint

    def lines(self) -> list[str]:
        """Return the error, a line an item, as the terminal and the journal show it."""
        named = (("wanted", self.wanted), ("seen", self.seen), ("where", self.where), ("next", self.hint))
        return [self.message, *(f"  {name + ':':<8}{text}" for name, text in named if text)]


class UnfitError(OpsctlError):
    """The playbook, inventory, command line or host is not fit. Nothing was touched."""

    exit_code = ExitCode.UNFIT


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong in a file that the user wrote. ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class DefinitionError(UnfitError):
    """A playbook or an inventory holds problems: all of them, in the order of the file."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems)
        count = len(self.problems)
        files = ", ".join(sorted({problem.file for problem in problems}))
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in {files}")

    def lines(self) -> list[str]:
        """Return one line a problem; the count stands last."""
        return [*(str(problem) for problem in self.problems), self.message]


class NotGuardable(UnfitError):
    """The host cannot be guarded: no linger, no rights, or its state folder cannot be written."""


class PreflightStop(UnfitError):
    """A check before the swap said stop."""


class HostError(OpsctlError):
    """Something went wrong between the controller and a host."""


class HostUnreachable(HostError):
    """No connection could be made."""

    exit_code = ExitCode.UNFIT


class HostKeyRejected(HostError):
    """The host's key is unknown, or is not the one that known_hosts has. Never retried."""

    exit_code = ExitCode.UNFIT


class AuthenticationFailed(HostError):
    """The host refused every key that was offered."""

    exit_code = ExitCode.UNFIT


class PrivilegeMissing(HostError):
    """``sudo -n`` or polkit refused."""

    exit_code = ExitCode.UNFIT


class TransportLost(HostError):
    """A link that stood has gone. The one host error that is worth a retry."""


class HostRebooted(HostError):
    """The host's boot_id is not the one seen before: all that ran there is gone."""


class CommandFailed(HostError):
    """A program on the host ended with a status other than 0."""

    def __init__(self, message: str, *, exit_status: int, stderr: str = "", **about: str | None) -> None:
        super().__init__(message, **about)
        self.exit_status = exit_status
        self.stderr = stderr


class BusError(HostError):
    """systemd refused a call. ``name`` is the D-Bus error name, such as org.freedesktop.systemd1.NoSuchUnit."""

    def __init__(self, message: str, *, name: str = "", **about: str | None) -> None:
        super().__init__(message, **about)
        self.name = name


class UnitError(OpsctlError):
    """A unit is not what it should be."""


class UnitNotFound(UnitError):
    """The host has no such unit."""

    exit_code = ExitCode.UNFIT


class JobFailed(UnitError):
    """A systemd job ended in something other than done. ``result`` is systemd's word for it."""

    def __init__(self, message: str, *, result: str, **about: str | None) -> None:
        super().__init__(message, **about)
        self.result = result


class ProductionAppeared(UnitError):
    """Somebody else started production while a campaign had it down: it is left serving, and the campaign ends."""


class DeadlineExceeded(OpsctlError):
    """A wait reached its limit."""


class NotReady(OpsctlError):
    """A model server does not answer as it should."""


class LoadFailed(NotReady):
    """The server died, or logged a line after which it will never serve.

    ``transient`` is true where a second attempt can help; ``lines_quoted`` holds the first cause.
    """

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        lines_quoted: tuple[str, ...] = (),
        **about: str | None,
    ) -> None:
        super().__init__(message, **about)
        self.transient = transient
        self.lines_quoted = lines_quoted

    def lines(self) -> list[str]:
        """Return the error with the server's own lines quoted under it."""
        return [*super().lines(), *(f"  | {line}" for line in self.lines_quoted)]


class LoadStalled(NotReady):
    """Nothing moved for longer than the phase of the load may take."""


class NotProven(NotReady):
    """A server answers, but its process does not show what it was meant to run with."""


class GpuNotFree(OpsctlError):
    """A process, or memory, stays on a GPU that should be free."""


class StageError(OpsctlError):
    """A measuring step could not be carried out at all. A cell that failed is a result, not this."""


class TraceError(OpsctlError):
    """No file of a folder could be read as a trace."""

    exit_code = ExitCode.UNFIT


class LeaseError(OpsctlError):
    """The lease on production is not as it should be."""


class HostHeld(LeaseError):
    """Someone else holds the host."""

    exit_code = ExitCode.HELD


class LeaseLost(LeaseError):
    """The token is gone: the guard restored production, or does so now."""


class GuardSilent(LeaseError):
    """The lease holds, but its guard has stopped looking: production is not restored if the controller dies."""


class JournalError(OpsctlError):
    """The record of a run cannot be read or written; where that ends a campaign at work, the campaign failed."""

    exit_code = ExitCode.UNFIT


class Interrupted(OpsctlError):
    """A person, or the system, asked the run to stop."""

    exit_code = ExitCode.INTERRUPTED


class Defect(OpsctlError):
    """opsctl itself is wrong. Production is restored all the same, and the place is named for a report."""


def as_defect(error: Exception) -> Defect:
    """Return an error that opsctl did not foresee as one of its own, with the place in the code."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return Defect(
        f"a defect of opsctl: {type(error).__name__}: {error}",
        where=f"{frame.filename}:{frame.lineno} in {frame.name}",
        hint="please report it with these lines; OPSCTL_TRACEBACK=1 shows the full traceback",
    )

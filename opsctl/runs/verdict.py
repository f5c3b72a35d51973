"""How a run ended: its exit code, outcome and reason, derived from what the journal holds and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import ExitCode
from opsctl.record import Standing
from opsctl.results import State
from opsctl.runs.journal import Journal

_SEVERITY = (
    ExitCode.PRODUCTION_NOT_VERIFIED,
    ExitCode.INTERRUPTED,
    ExitCode.HELD,
    ExitCode.UNFIT,
    ExitCode.FAILED,
    ExitCode.INCONCLUSIVE,
    ExitCode.VERIFIED,
)
_OUTCOMES = {
    ExitCode.VERIFIED: "verified",
    ExitCode.FAILED: "failed",
    ExitCode.UNFIT: "not fit",
    ExitCode.PRODUCTION_NOT_VERIFIED: "production not verified",
    ExitCode.HELD: "held by someone else",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.INTERRUPTED: "interrupted",
}
_NO_TOUCH = ("install guard", "arm", "release")
"""Changes of a host that leave its production and everything else on it alone."""


@dataclass(frozen=True)
class HostEnding:
    """What the journal holds of one host."""

    host: str
    touched: bool
    """Whether anything but guard and lease was changed, or may have been."""
    held: bool
    """Whether a lease was armed and is not known to be closed."""
    proved: bool
    """Whether production was verified after all that was done, with evidence."""
    left_down: bool
    """Whether it was left down as it was found, as a person had asked."""
    failure: str
    states: frozenset[State]
    """Of its steps."""

    @property
    def standing(self) -> Standing:
        """How production stands when the run is over."""
        if self.proved:
            return Standing.VERIFIED
        if self.left_down:
            return Standing.LEFT_DOWN
        return Standing.UNVERIFIED if self.touched or self.held else Standing.UNTOUCHED

    @property
    def code(self) -> ExitCode | None:
        """The exit code that this host alone calls for; None where it was neither touched nor held."""
        if self.standing is Standing.UNTOUCHED:
            return None
        if self.standing is Standing.UNVERIFIED:
            return ExitCode.PRODUCTION_NOT_VERIFIED
        if self.failure or self.states & {State.FAILED, State.SKIPPED}:
            return ExitCode.FAILED
        return ExitCode.INCONCLUSIVE if self.states - {State.VERIFIED} else ExitCode.VERIFIED


@dataclass(frozen=True)
class Verdict:
    """How a run ended. ``reason`` is "" where it ended verified."""

    code: ExitCode
    reason: str

    @property
    def outcome(self) -> str:
        """The code in words."""
        return _OUTCOMES[self.code]


def verdict_of(journal: Journal, run: str) -> Verdict:
    """Return how a run ended, from its journal: 2 and 4 only where it holds no touch, 0 only with evidence."""
    (row,) = journal.query("SELECT interrupted, error, error_code FROM runs WHERE run=?", run)
    hosts = endings(journal, run)
    codes = {host.code for host in hosts if host.code is not None}
    failed = row["error"] or any(host.failure for host in hosts) or journal.failed is not None
    if not codes:
        # Nothing was borrowed: the host is held, or something is not fit, and the error says what.
        codes = {ExitCode.HELD if row["error_code"] == ExitCode.HELD else ExitCode.UNFIT}
    elif failed:
        codes.add(ExitCode.FAILED)
    if row["interrupted"]:
        codes.add(ExitCode.INTERRUPTED)
    code = next(code for code in _SEVERITY if code in codes)
    return Verdict(code, _reason(journal, run, row["error"], hosts))


def endings(journal: Journal, run: str) -> tuple[HostEnding, ...]:
    """Return what the journal holds of each host of a run."""
    states: dict[str, set[State]] = {}
    for row in journal.query("SELECT host, state FROM steps WHERE run=?", run):
        states.setdefault(row["host"], set()).add(State(row["state"]))
    return tuple(
        HostEnding(
            host=row["host"],
            touched=_touched(journal, run, row["host"]) or row["down_since"] is not None,
            held=_held(journal, run, row["host"]),
            proved=bool(row["verified"]) and row["evidence"] != "[]",
            left_down=bool(row["left_down"]),
            failure=row["failure"],
            states=frozenset(states.get(row["host"], ())),
        )
        for row in journal.query("SELECT * FROM hosts WHERE run=? ORDER BY host", run)
    )


def _touched(journal: Journal, run: str, host: str) -> bool:
    marks = ", ".join("?" for _ in _NO_TOUCH)
    statement = f"SELECT 1 FROM mutations WHERE run=? AND host=? AND action NOT IN ({marks}) LIMIT 1"  # noqa: S608 - marks
    return bool(journal.query(statement, run, host, *_NO_TOUCH))


def _held(journal: Journal, run: str, host: str) -> bool:
    """Whether the last record of the lease is anything but its release."""
    where = "run=? AND host=? AND action IN ('arm', 'release')"
    rows = journal.query(f"SELECT action, outcome FROM mutations WHERE {where} ORDER BY id DESC", run, host)  # noqa: S608
    if not rows:
        return False
    if rows[0]["action"] == "release" and rows[0]["outcome"] == "done":
        return False
    # An arming that was refused held nothing; one that did not end may hold.
    refused = rows[0]["action"] == "arm" and str(rows[0]["outcome"] or "").startswith(("HostHeld", "NotGuardable"))
    return not refused


def _reason(journal: Journal, run: str, error: str, hosts: tuple[HostEnding, ...]) -> str:
    """Return in words why a run did not end verified."""
    words = [f"{host.host}: {host.failure}" for host in hosts if host.failure]
    words += [error] if error else []
    words += [str(journal.failed)] if journal.failed is not None and not words else []
    if not words:
        rows = journal.query(
            "SELECT host, id, state FROM steps WHERE run=? AND state<>? ORDER BY host, ordinal, position",
            run,
            State.VERIFIED,
        )
        words = [f"{row['host']}: {row['id']} {row['state']}" for row in rows]
    return "; ".join(words)

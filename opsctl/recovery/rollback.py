"""Production back on a host, from any machine that can reach it, without a journal.

The guard is the one that restores: it needs no controller, and does not stop when this process ends. So rollback makes
sure that there is a lease with the right terms, breaks it, watches what the guard does, and verifies the end
with its own eyes. Doing it again does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.guard_watch import watch_guard
from opsctl.campaign.restore import Standing, standing_of
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import NotReady
from opsctl.host.dependents import Hanging, closure, runs
from opsctl.host.guard import control
from opsctl.host.guard.control import LeaseTerms
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.runs.journal import Journal, controller_name
from opsctl.serving import readiness
from opsctl.serving.probing import ProbeOutcome
from opsctl.serving.unitstate import server_gone

_ROLLBACK_TTL = 60.0


@dataclass(frozen=True)
class RolledBack:
    """What a rollback found, did and proved on one host."""

    host: str
    service: str
    found: str
    acted: bool
    evidence: tuple[Evidence, ...] = ()
    guard: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "host": self.host,
            "service": self.service,
            "found": self.found,
            "acted": self.acted,
            "verified": bool(self.evidence),
            "evidence": [item.model_dump() for item in self.evidence],
            "guard": self.guard,
        }


def roll_back(host: Host, production: ResolvedService, say: Callable[[str], object]) -> RolledBack:
    """Restore and verify production of a host. ``say`` gets a line whenever something moved.

    Raises NotGuardable, HostError, NotReady and DeadlineExceeded when production cannot be verified.
    """
    view = control.show(host, deadline=_call(host, "the lease"))
    host.listener = view.listener if view is not None and view.live else ""
    seen = readiness.observe(host, production, deadline=Deadline(limits.CONNECT, f"a look at {production.name}"))
    say(f"found: production {production.name} {seen.state}: {seen.seen}")
    if view is not None and view.live:
        say(f"found: lease {view.describe()}")
    elif seen.serving and not _missing_dependents(host, production):
        ready = readiness.verify_serving(host, production, deadline=_verification(production))
        say(f"production {production.name} serves; nothing to do")
        return RolledBack(host.name, production.name, seen.seen, acted=False, evidence=ready.evidence)
    else:
        _arm_for_restore(host, production, say)
    view = control.break_(host, by=controller_name(), deadline=_call(host, "breaking the lease", limits.UNIT_JOB))
    view = watch_guard(host, production, say)
    ready = _verify(host, production)
    if view is not None and view.live:
        view = control.confirm(host, by=controller_name(), deadline=_call(host, "confirming the restore"))
    say(f"production {production.name} serves, verified by {len(ready.evidence)} observations")
    return RolledBack(
        host.name,
        production.name,
        seen.seen,
        acted=True,
        evidence=ready.evidence,
        guard=view.document() if view else {},
    )


def note_in_journal(done: RolledBack, journal: Journal) -> tuple[str, ...]:
    """Record that production is back in the runs of this controller that left it down; return those runs."""
    rows = journal.query(
        "SELECT run, hosts.* FROM hosts WHERE host=? AND production=? AND down_since IS NOT NULL AND NOT verified",
        done.host,
        done.service,
    )
    noted = tuple(str(row["run"]) for row in rows if not journal.controller_lives(row["run"]))
    for run in noted:
        journal.update_host(
            run, done.host, verified=1, evidence=list(done.evidence), back_at=now(), restored_by="rollback"
        )
    return noted


def _arm_for_restore(host: Host, production: ResolvedService, say: Callable[[str], object]) -> None:
    control.install(host, deadline=_call(host, "installing the guard", limits.UNIT_JOB))
    hanging = _hanging_on(host, production)
    terms = LeaseTerms(
        run=f"rollback-{int(time.time())}",
        holder=controller_name(),
        ttl=_ROLLBACK_TTL,
        service=production,
        dependents=hanging.dependents,
        triggers=hanging.triggers,
        rehearse=False,
        alert=host.entry.alert,
    )
    lease = control.arm(host, terms, deadline=_call(host, "arming", limits.UNIT_JOB))
    say(f"lease {lease.token} armed: the guard restores {production.unit}")
    if production.unit and _wedged(host, production):
        # The guard would wait for the limit of a load before it tries again: what does not answer is started anew now.
        say(f"{production.unit} is active and does not answer: stopping it")
        host.fenced_systemd(lease.token).stop(
            production.unit,
            deadline=_call(host, f"stop of {production.unit}", production.stop.limit + limits.STOP_GRACE),
        )


def _wedged(host: Host, production: ResolvedService) -> bool:
    """Whether production runs without a server: silent past its limit, or with no process that could be one.

    What answers, or may still load, is never stopped.
    """
    seen = readiness.observe(host, production, deadline=Deadline(limits.CONNECT, f"a look at {production.name}"))
    if seen.status is None or not seen.status.active:
        return False
    if standing_of(seen, silent=False) is Standing.SILENT:
        return True
    return seen.problem is ProbeOutcome.REFUSED and server_gone(
        host, seen.status, deadline=_call(host, f"the processes of {production.unit}")
    )


def _hanging_on(host: Host, production: ResolvedService) -> Hanging:
    """Return production's dependents that run or are enabled: no record shows what ran before."""

    def wanted(status: UnitStatus) -> bool:
        return runs(status) or status.unit_file_state in {"enabled", "enabled-runtime"}

    return closure(production.unit, lambda name: _status(host, name), wanted=wanted)


def _missing_dependents(host: Host, production: ResolvedService) -> bool:
    hanging = _hanging_on(host, production)
    return any(not runs(_status(host, name)) for name in (*hanging.dependents, *hanging.triggers))


def _verify(host: Host, production: ResolvedService) -> readiness.Ready:
    """Wait until production serves: where the guard cannot see it, it may still load."""
    status = _status(host, production.unit)
    if not status.active:
        raise NotReady(
            f"production {production.name} is not running after the guard's restore",
            seen=f"{status.active_state} ({status.sub_state}), Result={status.result}",
            where=f"{production.unit} on {host.name}",
            hint=f"journalctl -u {production.unit}; opsctl lease show {host.name}",
        )
    return readiness.await_ready(
        host,
        production,
        deadline=Deadline(production.readiness.limit, f"load of {production.name}"),
        started=status,
    )


def _status(host: Host, unit: str) -> UnitStatus:
    return host.systemd().status(unit, deadline=_call(host, f"status of {unit}"))


def _call(host: Host, what: str, seconds: float = limits.CALL) -> Deadline:
    return Deadline(seconds, f"{what} on {host.name}")


def _verification(production: ResolvedService) -> Deadline:
    return Deadline(3 * production.readiness.request_limit, f"verification of {production.name}")

"""One host of a run, from its first phase to giving it back. How it ended stands in the journal, and nowhere else."""

from __future__ import annotations

from opsctl.campaign import limits, restore
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.execution import run_phases
from opsctl.campaign.guard_watch import watch_guard
from opsctl.campaign.restore import StartedUnverified
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import HostError, LeaseLost, OpsctlError, as_defect
from opsctl.host.guard import control
from opsctl.runs.journal import controller_name
from opsctl.serving import readiness


def carry_out(b: BorrowedHost) -> OpsctlError | None:
    """Run the phases on a borrowed host and give it back, whatever happened. Returns why it failed; never raises."""
    failure: OpsctlError | None = None
    try:
        run_phases(b)
    except OpsctlError as error:
        failure = error
    except Exception as defect:  # noqa: BLE001 - whatever is wrong with us, production comes back
        failure = as_defect(defect)
    b.recorder.journal.forgive()
    if failure is not None:
        _fail(b, failure)
        b.say("run.failing", str(failure), error=failure.lines())
    try:
        if isinstance(failure, LeaseLost):
            _after_the_guard(b, failure)
            return failure
        restore.give_back(b, failed=failure is not None)
    except LeaseLost as error:
        failure = failure or error
        _after_the_guard(b, error)
    except Exception as problem:  # noqa: BLE001 - the guard takes over, and the output reports it
        trouble = problem if isinstance(problem, OpsctlError) else as_defect(problem)
        failure = failure or trouble
        _not_verified(b, trouble)
    finally:
        b.let_go()
    return failure


def _fail(b: BorrowedHost, error: OpsctlError) -> None:
    """Record why the campaign on this host failed; the first reason counts."""
    b.recorder.journal.fail_host(b.run, b.name, str(error))


def _not_verified(b: BorrowedHost, trouble: OpsctlError) -> None:
    """Record that production could not be verified, and leave it to the guard."""
    _fail(b, trouble)
    b.recorder.journal.update_host(b.run, b.name, verified=0)
    b.skip(b.plan.actions, f"not reached: {trouble}")
    if isinstance(trouble, StartedUnverified):
        _hand_over(b)
        words = f"started, unverified: {trouble} ({trouble.seen}); the guard goes on looking, and calls a person"
    else:
        words = f"{trouble}; {b.heartbeat.when_the_guard_acts()}" if b.armed else str(trouble)
    b.say("restore.ended", f"production is NOT verified: {words}", error=trouble.lines())


def _hand_over(b: BorrowedHost) -> None:
    """Give the lease to the guard at once: it goes on looking, and runs the host's alert."""
    b.let_go()
    try:
        control.break_(b.host, by=controller_name(), deadline=b.call("handing the lease to the guard", limits.UNIT_JOB))
    except HostError as error:
        b.say("restore.attempt", f"the guard takes over when the lease has run out: {error}")


def _after_the_guard(b: BorrowedHost, error: LeaseLost) -> None:
    """Watch, and only watch, what the guard does: a controller without its token touches nothing."""
    _fail(b, error)
    b.skip(b.plan.actions, f"not reached: {error}")
    b.say("lease.lost", str(error), error=error.lines())
    b.let_go()
    b.recorder.journal.update_host(b.run, b.name, verified=0)
    try:
        seen = _watched(b)
    except OpsctlError as trouble:
        b.say("restore.ended", f"production is NOT verified: {trouble}", error=trouble.lines())
        return
    if not seen.serving:
        b.say("restore.ended", f"production is NOT verified: {seen.seen}")
        return
    b.recorder.journal.update_host(
        b.run,
        b.name,
        verified=1,
        evidence=list(seen.evidence),
        back_at=now() if b.touched else None,
        restored_by="guard",
    )
    words = f"production {b.production.name} serves; the guard restored it"
    b.say("production.verified", words, service=b.production.name)


def _watched(b: BorrowedHost) -> readiness.ServingState:
    """Return how production answers once the guard is done with it. Raises HostError, DeadlineExceeded."""
    patience = max(60.0, b.ttl)
    watch_guard(b.host, b.production, lambda line: b.progress("restore.attempt", line), patience=patience)
    return readiness.observe(b.host, b.production, deadline=Deadline(limits.CONNECT, f"a look at {b.production.unit}"))

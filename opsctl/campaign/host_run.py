"""One host of a run, from arming to giving back, and what is to be said of it at the end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from opsctl.campaign import limits, restore, variant_units
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.cancellation import Cancellation
from opsctl.campaign.guard_watch import watch_guard
from opsctl.campaign.heartbeat import Heartbeat
from opsctl.campaign.phases import Policy, run_phases, skip_phases
from opsctl.campaign.preflight import Prepared, lease_terms
from opsctl.campaign.steps import stop_stage
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import ExitCode, HostError, JournalError, LeaseLost, OpsctlError, as_defect
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from opsctl.host.protocol import Host
from opsctl.results import State
from opsctl.runs.events import Recorder
from opsctl.serving import readiness


@dataclass(frozen=True)
class HostOutcome:
    """How one host of a run ended. ``production`` says in words what is known of it."""

    host: str
    code: ExitCode
    error: OpsctlError | None
    production: str


def arm(prepared: Prepared, recorder: Recorder, ttl: float) -> Lease:
    """Put the guard in place and arm the lease: from here on production comes back whatever happens to us.

    Raises NotGuardable, HostHeld, HostError, JournalError. Nothing of production was touched.
    """
    host = prepared.host
    with recorder.journal.mutation(recorder.run, host.name, "install guard", host.name):
        control.install(host, deadline=Deadline(limits.UNIT_JOB, f"installation of the guard on {host.name}"))
    lease: Lease | None = None
    try:
        with recorder.journal.mutation(recorder.run, host.name, "arm", prepared.production.unit):
            lease = control.arm(
                host,
                lease_terms(prepared, recorder.run, ttl),
                deadline=Deadline(limits.UNIT_JOB, f"arming on {host.name}"),
            )
        recorder.journal.update_host(recorder.run, host.name, token=lease.token)
    except JournalError:
        # What cannot be recorded must not be begun: the host is not left held by a run that ends here.
        if lease is not None:
            with suppress(HostError):
                disarm(prepared, lease, recorder)
        raise
    recorder.say(
        "lease.armed",
        f"lease {lease.token} armed on {host.name}: the guard restores {prepared.production.unit} "
        f"when it is not renewed for {ttl:g} s",
        host=host.name,
        token=lease.token,
        ttl=ttl,
    )
    return lease


def disarm(prepared: Prepared, lease: Lease, recorder: Recorder) -> None:
    """Give a lease back under which nothing was touched."""
    host = prepared.host
    with recorder.journal.mutation(recorder.run, host.name, "release", "lease"):
        control.release(host, lease, deadline=Deadline(limits.CALL, f"release on {host.name}"))
    recorder.say("lease.released", f"the lease on {host.name} is released; nothing was touched", host=host.name)


def borrow(
    prepared: Prepared,
    lease: Lease,
    *,
    ttl: float,
    recorder: Recorder,
    cancellation: Cancellation,
    connect: Callable[[], Host],
) -> BorrowedHost:
    """Start the heartbeat and return the borrowed host."""
    heartbeat = Heartbeat(
        connect,
        lease,
        ttl=ttl,
        on_renewed=lambda seconds: recorder.progress(
            "lease.renewed",
            f"lease held for {seconds:.0f} s more",
            host=prepared.host.name,
            remaining=seconds,
        ),
    )
    heartbeat.start()
    if prepared.serving:
        recorder.journal.hold(
            recorder.run, prepared.host.name, prepared.serving, str(prepared.services[prepared.serving].role)
        )
    return BorrowedHost(
        host=prepared.host,
        recorder=recorder,
        cancellation=cancellation,
        production=prepared.production,
        lease=lease,
        heartbeat=heartbeat,
        ttl=ttl,
        dependents=prepared.dependents,
        serving=prepared.serving,
        touched=prepared.touched,
        restore_wanted=prepared.restore_wanted,
    )


def carry_out(b: BorrowedHost, prepared: Prepared, policy: Policy) -> HostOutcome:
    """Run the phases on a borrowed host and give it back, whatever happened. Never raises what opsctl knows."""
    failure: OpsctlError | None = None
    try:
        _make_ready(b, prepared)
        run_phases(b, prepared.phases, prepared.services, policy)
    except OpsctlError as error:
        failure = error
    except Exception as defect:  # noqa: BLE001 - whatever is wrong with us, production comes back
        failure = as_defect(defect)
    b.recorder.journal.forgive()
    if failure is not None:
        b.say("run.failing", str(failure), error=failure.lines())
    try:
        if isinstance(failure, LeaseLost):
            return _after_the_guard(b, failure)
        restore.give_back(b, kill_foreign=policy.kill_foreign)
    except LeaseLost as error:
        return _after_the_guard(b, error)
    except Exception as problem:  # noqa: BLE001 - the guard takes over, and the person hears so
        trouble = problem if isinstance(problem, OpsctlError) else as_defect(problem)
        b.say("restore.ended", f"production is NOT verified: {trouble}", error=trouble.lines())
        return HostOutcome(b.name, ExitCode.PRODUCTION_NOT_VERIFIED, trouble, _guard_words(b))
    finally:
        b.heartbeat.stop()
    words = "serves, verified" if b.restore_wanted else "is left down, as it was found"
    return HostOutcome(b.name, _code(b, failure), failure, f"{b.production.name} {words}")


def _make_ready(b: BorrowedHost, prepared: Prepared) -> None:
    """Do what comes before the first phase, while production still serves."""
    try:
        for unit in prepared.strays:
            stop_stage(b, unit)
        variant_units.install_all(b, prepared.variants, prepared.trace_dir, prepared.engine_version)
    except OpsctlError as error:
        skip_phases(b, prepared.phases, f"not reached: {error}")
        raise


def _code(b: BorrowedHost, failure: OpsctlError | None) -> ExitCode:
    """Return the exit code of a host whose production is verified."""
    if b.cancellation.by_signal:
        return ExitCode.INTERRUPTED
    if failure is not None or b.recorder.journal.failed is not None:
        return ExitCode.FAILED
    states = {
        row["state"]
        for row in b.recorder.journal.query("SELECT state FROM steps WHERE run=? AND host=?", b.run, b.name)
    }
    if states & {State.FAILED, State.SKIPPED}:
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if states - {State.VERIFIED} else ExitCode.VERIFIED


def _after_the_guard(b: BorrowedHost, error: LeaseLost) -> HostOutcome:
    """Watch, and only watch, what the guard does: a controller without its token touches nothing."""
    b.say("lease.lost", str(error), error=error.lines())
    b.heartbeat.stop()
    try:
        seen = _watched(b)
    except OpsctlError as trouble:
        b.say("restore.ended", f"production is NOT verified: {trouble}", error=trouble.lines())
        return HostOutcome(b.name, ExitCode.PRODUCTION_NOT_VERIFIED, error, f"{trouble}; {_guard_words(b)}")
    if not seen.serving:
        b.say("restore.ended", f"production is NOT verified: {seen.seen}")
        return HostOutcome(b.name, ExitCode.PRODUCTION_NOT_VERIFIED, error, f"seen: {seen.seen}; {_guard_words(b)}")
    b.recorder.journal.update_host(
        b.run,
        b.name,
        verified=1,
        evidence=list(seen.evidence),
        back_at=now() if b.touched else None,
        restored_by="guard",
    )
    b.say(
        "production.verified",
        f"production {b.production.name} serves; the guard restored it",
        service=b.production.name,
    )
    code = ExitCode.INTERRUPTED if b.cancellation.by_signal else ExitCode.FAILED
    return HostOutcome(b.name, code, error, f"{b.production.name} serves, restored by the guard")


def _watched(b: BorrowedHost) -> readiness.ServingState:
    """Return how production answers once the guard is done with it. Raises HostError, DeadlineExceeded."""
    patience = max(60.0, b.ttl)
    watch_guard(b.host, b.production, lambda line: b.progress("restore.attempt", line), patience=patience)
    return readiness.observe(b.host, b.production, deadline=Deadline(limits.CONNECT, f"a look at {b.production.unit}"))


def _guard_words(b: BorrowedHost) -> str:
    return f"{b.heartbeat.last_words()}; look: opsctl lease show {b.name}; act: opsctl rollback {b.name}"

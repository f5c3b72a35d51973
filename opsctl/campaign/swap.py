"""Swaps: one service down, the GPUs free, another up and verified. Each part may be done twice without harm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

from pydantic import TypeAdapter

from opsctl.campaign import limits
from opsctl.campaign.borrowed_host import BorrowedHost, Done, Loading, seen
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import (
    BusError,
    CommandFailed,
    DeadlineExceeded,
    Defect,
    GpuNotFree,
    Interrupted,
    JournalError,
    LeaseError,
    LeaseLost,
    LoadStalled,
    OpsctlError,
    UnitError,
    UnitNotFound,
)
from opsctl.estimate import Estimate
from opsctl.host.guard import control
from opsctl.host.protocol import UnitStatus
from opsctl.plan.actions import AwaitReady, Gate, Start, Stop, TrafficIn, TrafficOut, Verify
from opsctl.playbook.models import Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration
from opsctl.results import Evidence, State
from opsctl.runs import durations
from opsctl.serving import readiness, stopping, traffic
from opsctl.serving.gpu import gate
from opsctl.serving.launch import proof
from opsctl.serving.load.progress import LoadProgress
from opsctl.serving.load.stalls import StallLimits
from opsctl.serving.readiness import Ready
from opsctl.serving.unitstate import describe_unit
from opsctl.serving.waits import evidence

OURS = ("opsctl.slice",)


def stop(b: BorrowedHost, action: Stop) -> Done:
    """Stop a service and wait for its unit to be inactive. Raises as ``take_down``."""
    return take_down(b, action.service)


def take_down(b: BorrowedHost, service: ResolvedService) -> Done:
    """Stop a service and wait for its unit to be inactive.

    What production leaves behind is ended where the inventory allows it. Production is watched from then on.
    Raises JobFailed, DeadlineExceeded, UnitError, LeaseLost, Interrupted.
    """
    deadline = Deadline(
        service.stop.drain + service.stop.limit + limits.STOP_GRACE, f"stop of {service.unit} on {b.name}"
    )
    b.say("service.stopping", f"stopping {service.unit}", service=service.name, role=service.role)
    b.holds(service.name, "stopping")

    def stop_it() -> tuple[Evidence, ...]:
        status = b.host.systemd().status(service.unit, deadline=b.call("status"))
        if status.stopped:
            end_leftovers(b, service)
            return (evidence(f"systemd: state of {service.unit}", describe_unit(status)),)
        with b.change("stop", service.unit) as detail:
            if service.role is Role.PRODUCTION:
                _note_what_runs(b, service)
                _mark_down(b)
            record = stopping.stop_service(
                b.systemd(),
                b.host,
                service,
                deadline=deadline,
                cancelled=cancelled(b),
            )
            detail.update(as_detail(record))
        end_leftovers(b, service)
        return record.evidence

    proof = b.persist(f"stop of {service.unit}", stop_it)
    if service.role is Role.PRODUCTION:
        b.watch.is_down(
            b.persist(
                f"a look at {service.unit}", lambda: b.host.systemd().status(service.unit, deadline=b.call("status"))
            )
        )
    b.holds(None, "nobody")
    b.say("service.stopped", f"{service.unit} is inactive", service=service.name)
    return Done(proof)


def end_leftovers(b: BorrowedHost, service: ResolvedService) -> None:
    """End what outlived the stop of production, where the inventory allows it.

    Raises UnitError where something does not end, LeaseLost. A restore says so and goes on: production must start.
    """
    if not service.ends_leftovers:
        return
    try:
        with b.change("end leftovers", service.unit):
            control.sweep(b.host, b.lease, deadline=b.call("the end of what production left behind", limits.UNIT_JOB))
    except LeaseLost:
        raise
    except LeaseError as error:
        if not b.restoring:
            raise UnitError(error.message, seen=error.seen, where=f"{service.unit} on {b.name}") from error
        b.say("restore.attempt", f"{error.message}; production is started all the same")


def free_gpus(b: BorrowedHost, action: Gate) -> Done:
    """Wait until no compute process is left and the memory is down, stable over samples.

    Raises GpuNotFree; a restore goes on all the same: a foreign process must not keep production down.
    """
    limit = Deadline(action.limit, f"the GPU gate on {b.name}")

    def wait() -> gate.GateRecord:
        return gate.await_gpus_free(
            b.host,
            limit=limit,
            ours=OURS,
            kill_foreign=b.kill_foreign,
            systemd=b.systemd(),
            cancelled=cancelled(b),
        )

    try:
        with _lease_first(b):
            record = b.persist("the GPU gate", wait)
    except GpuNotFree as error:
        if not b.restoring:
            raise
        words = f"{error.message}; production is started all the same"
        b.say("gpus.free", words, free=False)
        return Done((evidence("the GPUs before production's start", words),), State.INCONCLUSIVE, words)
    # Unknown is never shown as good: a host without nvidia-smi says so.
    words = "the GPUs are free" if record.free else f"whether the GPUs are free is unknown: {record.reason}"
    b.say("gpus.free", f"{words} after {format_duration(record.seconds)}", **as_detail(record))
    return seen("the GPUs, in several samples", words)


def start(b: BorrowedHost, action: Start) -> Done:
    """Start a service's unit; one that runs already is left as it is. Raises JobFailed, LeaseLost, Interrupted."""
    service, journal = action.service, b.recorder.journal
    load = journal.begin_load(b.run, b.name, service=service.name, unit=service.unit, attempt=b.attempt)
    began = time.monotonic()
    b.holds(service.name, "loading")
    if service.role is Role.PRODUCTION:
        b.watch.is_wanted()
    try:
        mark = b.persist("the journal", lambda: readiness.journal_mark(b.host, service, deadline=b.call("the journal")))
        started, fresh = b.persist(f"start of {service.unit}", lambda: _start(b, service))
    except OpsctlError as error:
        journal.end_load(load, outcome=f"{type(error).__name__}: {error}")
        raise
    b.loading = Loading(load, mark, started, began, fresh)
    return seen(f"systemd: state of {service.unit}", describe_unit(started))


def await_ready(b: BorrowedHost, action: AwaitReady) -> Done:
    """Wait until a service that was started serves.

    Raises LoadFailed, LoadStalled, NotReady, DeadlineExceeded, LeaseLost, Interrupted.
    """
    service, journal, loading = action.service, b.recorder.journal, b.loading
    if loading is None:
        raise Defect(f"{action.id} has no start before it")
    b.loading, b.silent = None, False
    expected = _expected(b, service)
    deadline = Deadline(action.limit, f"load of {service.unit} on {b.name}")
    try:
        with _lease_first(b):
            ready = readiness.await_ready(
                b.host,
                service,
                deadline=deadline,
                started=loading.started,
                on_progress=_shown(b, service, expected),
                cancelled=cancelled(b),
                journal_after=loading.mark,
                stalls=StallLimits.for_service(service, expected),
            )
        ready = _proven(b, service, ready)
    except OpsctlError as error:
        b.silent = service == b.production and (isinstance(error, LoadStalled) or deadline.expired)
        journal.end_load(loading.id, outcome=f"{type(error).__name__}: {error}")
        raise
    seconds = time.monotonic() - loading.began
    # Later loads are held against those that were the service's own beyond doubt, from its start on.
    outcome = "ready" if loading.fresh and ready.load_known else "ready, not counted"
    journal.end_load(loading.id, outcome=outcome, seconds=seconds, version=ready.version, phases=ready.phases)
    b.heartbeat.check()
    b.holds(service.name, str(service.role))
    return _serves(b, service, ready, f" after {format_duration(seconds)}", seconds=seconds, phases=dict(ready.phases))


def _serves(b: BorrowedHost, service: ResolvedService, ready: Ready, words: str, **data: Any) -> Done:
    b.say(
        "service.ready",
        f"{service.name} serves{words}",
        service=service.name,
        evidence=[item.model_dump() for item in ready.evidence],
        **data,
    )
    if service == b.production:
        b.evidence = ready.evidence
    return Done(ready.evidence)


def _proven(b: BorrowedHost, service: ResolvedService, ready: Ready) -> Ready:
    """Add the proof that the process that serves is the one that was meant. Raises NotProven.

    Production in a restore is compared at its end (``as_it_ran``): what answers then is not stopped any more.
    """
    if service.role is Role.PRODUCTION:
        found = () if b.restoring else as_it_ran(b)
    else:
        intended = b.intended[service.name]
        found = b.persist(
            f"proof of {service.name}",
            lambda: proof.prove_variant(b.host, service, intended, deadline=b.call(f"proof of {service.name}")),
        )
    return replace(ready, evidence=(*ready.evidence, *found))


def _note_what_runs(b: BorrowedHost, service: ResolvedService) -> None:
    """Keep what production runs before its first stop; what cannot be read is not compared later."""
    if not b.ran:
        with suppress(CommandFailed, BusError, DeadlineExceeded):
            b.ran = proof.what_runs(b.host, service, deadline=b.call(f"a look at what {service.name} runs"))


def as_it_ran(b: BorrowedHost) -> tuple[Evidence, ...]:
    """Prove that production runs again as it ran before the outage. Raises NotProven; () where that is not known."""
    if not b.ran:
        return ()
    found = b.persist(
        f"comparison of {b.production.name}",
        lambda: proof.compare_production(
            b.host, b.production, b.ran, deadline=b.call(f"a look at what {b.production.name} runs")
        ),
    )
    return (found,)


def _start(b: BorrowedHost, service: ResolvedService) -> tuple[UnitStatus, bool]:
    """Start a unit that is not active; return its status, and whether it was started now."""
    status = b.host.systemd().status(service.unit, deadline=b.call("status"))
    fresh = not status.active
    if fresh:
        b.say("service.starting", f"starting {service.unit}", service=service.name, role=service.role)
        with b.change("start", service.unit):
            systemd = b.systemd()
            # Forgets the starts that systemd has counted, too: swaps there and back must not meet StartLimitBurst=.
            with suppress(UnitNotFound):
                systemd.reset_failed(service.unit, deadline=b.call("reset-failed"))
            systemd.start(service.unit, deadline=b.call(f"start of {service.unit}", limits.UNIT_JOB))
        status = b.host.systemd().status(service.unit, deadline=b.call("status"))
    return status, fresh


def verify(b: BorrowedHost, action: Verify) -> Done:
    """Prove that a service which should serve does, by completions and by its process. Raises NotReady, NotProven."""
    return _serves(b, action.service, _proven(b, action.service, prove(b, action.service)), "")


def prove(b: BorrowedHost, service: ResolvedService) -> Ready:
    """Prove by completions that a service which should serve does. Raises NotReady and its kin."""
    return b.persist(
        f"verification of {service.name}",
        lambda: readiness.verify_serving(
            b.host,
            service,
            deadline=Deadline(3 * service.readiness.request_limit, f"verification of {service.name}"),
        ),
    )


def _mark_down(b: BorrowedHost) -> None:
    if not b.touched:
        b.touched = True
        b.recorder.journal.update_host(b.run, b.name, down_since=now(), verified=0)
        b.say("production.down", f"production {b.production.name} goes down now", service=b.production.name)


def traffic_out(b: BorrowedHost, action: TrafficOut) -> Done:
    """Take production out of the load balancer. Raises CommandFailed."""
    with b.change("traffic out", action.service.name) as detail:
        record = _traffic(b, action.service, "out")
        detail.update(as_detail(record))
    return Done(record.evidence)


def traffic_in(b: BorrowedHost, action: TrafficIn) -> Done:
    """Put production back into the load balancer, after it was verified. Raises CommandFailed."""
    with b.change("traffic in", action.service.name) as detail:
        record = _traffic(b, action.service, "in")
        detail.update(as_detail(record))
    return Done(record.evidence)


def _traffic(b: BorrowedHost, service: ResolvedService, direction: Literal["out", "in"]) -> traffic.TrafficRecord:
    deadline = b.call(f"traffic {direction}", 2 * service.traffic.limit + limits.CALL)
    return traffic.run_traffic(b.systemd(), b.host, service, direction, deadline=deadline)


def _shown(b: BorrowedHost, service: ResolvedService, expected: Estimate | None) -> Callable[[LoadProgress], None]:
    """Return what shows a load's progress, beside how long such a load took before on this host."""
    began = time.monotonic()

    def show(progress: LoadProgress) -> None:
        waited = time.monotonic() - began
        words = f"{service.name}: {progress.text}, {format_duration(waited)}"
        if expected is not None:
            words += f" of {expected}"
            words += ", SLOWER than ever before" if expected.slower_than_ever(waited) else ""
        b.progress(
            "service.loading",
            words,
            service=service.name,
            phase_of_load=progress.phase.value,
            shards_done=progress.shards_done,
            shards_total=progress.shards_total,
            rate=progress.rate,
            eta=progress.eta,
            waited=waited,
            expected=expected.seconds if expected else None,
        )

    return show


def _expected(b: BorrowedHost, service: ResolvedService) -> Estimate | None:
    """Return how long loads of it took before. An estimate that cannot be read is no reason to fail a load."""
    with suppress(JournalError):
        return durations.loads(b.recorder.journal, b.name).get(service.name)
    return None


@contextmanager
def _lease_first(b: BorrowedHost) -> Iterator[None]:
    """Where a wait was cut short, say first whether that is because the lease went."""
    try:
        yield
    except Interrupted:
        b.heartbeat.check()
        raise


def cancelled(b: BorrowedHost) -> Callable[[], bool]:
    """Return what a wait asks: a restore is cut short by a lost lease alone, all else by a cancelled run too.

    And by production, where somebody else starts it; ``perform`` then says so.
    """
    if b.restoring:
        return lambda: b.heartbeat.lost
    return lambda: b.cancellation.requested or b.heartbeat.lost or b.watch.seems_up(b)


def as_detail(record: object) -> dict[str, Any]:
    """Return a record of another room as plain data for the journal."""
    plain: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json")
    return plain

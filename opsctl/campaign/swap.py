"""Swaps: one service down, the GPUs free, another up and verified. Each part may be done twice without harm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from pydantic import TypeAdapter

from opsctl.campaign import limits
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import Interrupted, JournalError, LoadFailed, OpsctlError, UnitNotFound
from opsctl.estimate import Estimate
from opsctl.host.protocol import UnitStatus
from opsctl.playbook.models import Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration
from opsctl.runs import durations
from opsctl.serving import readiness, stopping, traffic
from opsctl.serving.gpu import gate
from opsctl.serving.load.progress import LoadProgress
from opsctl.serving.load.stalls import StallLimits
from opsctl.serving.readiness import Ready

OURS = ("opsctl.slice",)


def take_down(b: BorrowedHost, service: ResolvedService) -> None:
    """Stop a service, out of the load balancer first when it is production, and wait for its unit to be inactive.

    Raises JobFailed, DeadlineExceeded, LeaseLost, Interrupted.
    """
    if service.role is Role.PRODUCTION:
        _traffic_out(b, service)
    deadline = Deadline(
        service.stop.drain + service.stop.limit + limits.STOP_GRACE, f"stop of {service.unit} on {b.name}"
    )
    b.say("service.stopping", f"stopping {service.unit}", service=service.name, role=service.role)
    b.holds(service.name, "stopping")

    def stop() -> None:
        if b.host.systemd().status(service.unit, deadline=b.call("status")).stopped:
            return
        with b.change("stop", service.unit) as detail:
            if service.role is Role.PRODUCTION:
                _mark_down(b)
            record = stopping.stop_service(
                b.systemd(),
                b.host,
                service,
                deadline=deadline,
                cancelled=cancelled(b),
            )
            detail.update(as_detail(record))

    b.persist(f"stop of {service.unit}", stop)
    b.serving = None
    b.holds(None, "nobody")
    b.say("service.stopped", f"{service.unit} is inactive", service=service.name)


def free_gpus(b: BorrowedHost, service: ResolvedService, *, kill_foreign: bool) -> None:
    """Wait until no compute process is left and the memory is down, stable over samples. Raises GpuNotFree."""
    limit = Deadline(service.stop.gpu_limit, f"the GPU gate on {b.name}")

    def wait() -> gate.GateRecord:
        return gate.await_gpus_free(
            b.host,
            limit=limit,
            ours=OURS,
            kill_foreign=kill_foreign,
            systemd=b.systemd(),
            cancelled=cancelled(b),
        )

    with _lease_first(b):
        record = b.persist("the GPU gate", wait)
    # Unknown is never shown as good: a host without nvidia-smi says so.
    words = "the GPUs are free" if record.free else f"whether the GPUs are free is unknown: {record.reason}"
    b.say("gpus.free", f"{words} after {format_duration(record.seconds)}", **as_detail(record))


def bring_up(b: BorrowedHost, service: ResolvedService, *, attempts: int, kill_foreign: bool) -> Ready:
    """Start a service and wait until it is ready; a load that died of something transient is tried again.

    Raises LoadFailed, LoadStalled, NotReady, DeadlineExceeded, GpuNotFree, LeaseLost, Interrupted.
    """
    for attempt in range(1, attempts + 1):
        try:
            return _load(b, service, attempt)
        except LoadFailed as error:
            if not error.transient or attempt == attempts:
                raise
            b.say(
                "service.failed",
                f"{service.unit}: {error.message}; attempt {attempt} of {attempts}, trying again",
                service=service.name,
                lines=list(error.lines_quoted),
            )
            take_down(b, service)
            free_gpus(b, service, kill_foreign=kill_foreign)
    raise AssertionError  # unreachable: attempts is at least 1


def _load(b: BorrowedHost, service: ResolvedService, attempt: int) -> Ready:
    journal = b.recorder.journal
    load = journal.begin_load(b.run, b.name, service=service.name, unit=service.unit, attempt=attempt)
    expected = _expected(b, service)
    began = time.monotonic()
    b.holds(service.name, "loading")
    try:
        mark = b.persist("the journal", lambda: readiness.journal_mark(b.host, service, deadline=b.call("the journal")))
        started = b.persist(f"start of {service.unit}", lambda: _start(b, service))
        with _lease_first(b):
            ready = readiness.await_ready(
                b.host,
                service,
                deadline=Deadline(service.readiness.limit, f"load of {service.unit} on {b.name}"),
                started=started,
                on_progress=_shown(b, service, expected),
                cancelled=cancelled(b),
                journal_after=mark,
                stalls=StallLimits.for_service(service, expected),
            )
    except OpsctlError as error:
        journal.end_load(load, outcome=f"{type(error).__name__}: {error}")
        raise
    seconds = time.monotonic() - began
    journal.end_load(load, outcome="ready", seconds=seconds, version=ready.version, phases=ready.phases)
    b.heartbeat.check()
    b.serving = service.name
    b.holds(service.name, str(service.role))
    b.say(
        "service.ready",
        f"{service.name} serves after {format_duration(seconds)}",
        service=service.name,
        seconds=seconds,
        phases=dict(ready.phases),
        evidence=[item.model_dump() for item in ready.evidence],
    )
    return ready


def _start(b: BorrowedHost, service: ResolvedService) -> UnitStatus:
    status = b.host.systemd().status(service.unit, deadline=b.call("status"))
    if not status.active:
        b.say("service.starting", f"starting {service.unit}", service=service.name, role=service.role)
        with b.change("start", service.unit):
            systemd = b.systemd()
            # Forgets the starts that systemd has counted, too: swaps there and back must not meet StartLimitBurst=.
            with suppress(UnitNotFound):
                systemd.reset_failed(service.unit, deadline=b.call("reset-failed"))
            systemd.start(service.unit, deadline=b.call(f"start of {service.unit}", limits.UNIT_JOB))
        status = b.host.systemd().status(service.unit, deadline=b.call("status"))
    return status


def verify(b: BorrowedHost, service: ResolvedService) -> Ready:
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


def _traffic_out(b: BorrowedHost, service: ResolvedService) -> None:
    if service.traffic.out:
        with b.change("traffic out", service.name) as detail:
            detail.update(as_detail(_traffic(b, service, "out")))


def put_in(b: BorrowedHost, service: ResolvedService) -> None:
    """Put production back into the load balancer, after it was verified."""
    if service.traffic.in_:
        with b.change("traffic in", service.name) as detail:
            detail.update(as_detail(_traffic(b, service, "in")))


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
    """Return what a wait asks: a restore is cut short by a lost lease alone, all else by a cancelled run too."""
    if b.restoring:
        return lambda: b.heartbeat.lost
    return lambda: b.cancellation.requested or b.heartbeat.lost


def as_detail(record: object) -> dict[str, Any]:
    """Return a record of another room as plain data for the journal."""
    plain: dict[str, Any] = TypeAdapter(type(record)).dump_python(record, mode="json")
    return plain

"""Taking a service down: drain, SIGTERM by its unit, the unit's own limit, and a record of what had to be killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.deadline import Deadline
from opsctl.errors import BusError, DeadlineExceeded, HostError, NotReady, UnitError, UnitNotFound
from opsctl.host.protocol import Host, Systemd, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.probing import ServerProbe
from opsctl.serving.unitstate import describe_unit
from opsctl.serving.waits import CALL_LIMIT, check_cancelled, evidence, never, pause

KILL_LIMIT = 20.0
"""Seconds that a unit may take to be gone after SIGKILL; one in the driver never goes (vllm 25127)."""


@dataclass(frozen=True)
class StopRecord:
    """How a service went down."""

    seconds: float
    was_running: bool
    requests_left: int | None = None
    """In flight when SIGTERM was sent; None where /metrics did not say."""
    drained: bool | None = None
    """None: no drain was asked for, or it could not be seen."""
    result: str = ""
    """systemd's Result of the unit: success, timeout (SIGTERM was refused, SIGKILL followed), signal…"""
    killed: tuple[str, ...] = ()
    """What had to be killed, in words."""
    evidence: tuple[Evidence, ...] = ()


def stop_service(
    systemd: Systemd,
    host: Host,
    service: ResolvedService,
    *,
    deadline: Deadline,
    cancelled: Callable[[], bool] = never,
) -> StopRecord:
    """Drain, stop, and see that nothing of the unit is left. ``systemd`` is a fenced one.

    A cancel is heeded while it drains; once SIGTERM is out the stop is carried through. Raises UnitNotFound,
    UnitError when the unit is still there after SIGKILL, HostError.
    """
    began = time.monotonic()
    before = host.systemd().status(service.unit, deadline=deadline.within(CALL_LIMIT, f"reading {service.unit}"))
    if before.load_state == "not-found":
        raise UnitNotFound(f"{host.name} has no unit {service.unit}", where=f"host {host.name}")
    running = not before.stopped
    drained, left = _drain(host, service, deadline, cancelled) if running and before.active else (None, None)
    killed: list[str] = []
    if running:
        killed += _stop(systemd, service, deadline)
    after = _await_stopped(host, service, deadline)
    if running and after.result == "timeout":
        killed.append(f"{service.unit} ignored SIGTERM until its TimeoutStopSec and was killed by systemd")
    elif running and after.result in {"signal", "core-dump", "watchdog"}:
        killed.append(f"{service.unit} ended by a signal ({after.result}, {after.exec_main_status})")
    proofs = (
        evidence(f"systemd: state of {service.unit} before", describe_unit(before)),
        evidence(f"systemd: state of {service.unit} after its stop", describe_unit(after)),
        *(evidence("had to be killed", words) for words in killed),
    )
    return StopRecord(time.monotonic() - began, running, left, drained, after.result, tuple(killed), proofs)


def _drain(
    host: Host, service: ResolvedService, deadline: Deadline, cancelled: Callable[[], bool]
) -> tuple[bool | None, int | None]:
    """Wait for running requests to end, as long as asked for; return (drained, requests left)."""
    try:
        probe = ServerProbe(host, service, deadline=deadline)
    except (NotReady, HostError):
        return None, None
    what = f"draining {service.name}"
    limit = deadline.within(service.stop.drain, what)
    quiet = 0
    try:
        left = _running(probe)
        while service.stop.drain > 0 and left is not None and not limit.expired:
            # Twice in a row: a request may lie between two steps of the engine.
            quiet = quiet + 1 if left == 0 else 0
            if quiet >= 2:
                return True, 0
            pause(0.25, deadline=limit, cancelled=cancelled, what=what)
            left = _running(probe)
    finally:
        probe.close()
    check_cancelled(cancelled, what)
    return (None if service.stop.drain <= 0 or left is None else left == 0), left


def _running(probe: ServerProbe) -> int | None:
    try:
        return probe.running(limit=2.0)
    except HostError:
        return None


def _stop(systemd: Systemd, service: ResolvedService, deadline: Deadline) -> list[str]:
    """Stop the unit; where it outlasts ``stop.limit``, kill it. Return what had to be killed."""
    limit = deadline.within(service.stop.limit, f"the stop of {service.unit}")
    try:
        systemd.stop(service.unit, deadline=limit)
    except DeadlineExceeded:
        names = _processes(systemd, service.unit)
        systemd.kill(service.unit, signal.SIGKILL, deadline=Deadline(CALL_LIMIT, f"killing {service.unit}"))
        return [f"{service.unit} was not down after {limit.seconds:.3g} s and was killed: {names}"]
    return []


def _processes(systemd: Systemd, unit: str) -> str:
    try:
        found = systemd.processes(unit, deadline=Deadline(CALL_LIMIT, f"the processes of {unit}"))
    except (BusError, UnitError):
        return "its processes could not be listed"
    return "; ".join(f"pid {pid} {command[:80]}" for pid, command in found) or "no process"


def _await_stopped(host: Host, service: ResolvedService, deadline: Deadline) -> UnitStatus:
    """Return the status once nothing of the unit runs. Raises UnitError when that does not come."""
    limit = Deadline(max(KILL_LIMIT, min(deadline.remaining(), KILL_LIMIT)), f"the end of {service.unit}")
    while True:
        status = host.systemd().status(service.unit, deadline=limit)
        if status.stopped:
            return status
        if limit.expired:
            raise UnitError(
                f"{service.unit} does not go away",
                seen=f"{describe_unit(status)}; {_processes(host.systemd(), service.unit)}",
                where=f"host {host.name}",
                hint="a process in state D sits in the driver: the host needs a reboot",
            )
        time.sleep(0.05)

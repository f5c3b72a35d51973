"""Giving the host back: production up, its dependents up, verified by completions, the lease released.

A restore has a budget of its own and is not cancelled by a first Ctrl-C. When it cannot be done the lease
stays, and the guard on the host, which never stops trying, takes over.
"""

from __future__ import annotations

from opsctl.campaign import limits, swap, variant_units
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.clock import now
from opsctl.errors import CommandFailed, JobFailed, LeaseError, OpsctlError, TransportLost
from opsctl.host.guard import control
from opsctl.host.protocol import UnitStatus
from opsctl.quantities import format_duration
from opsctl.serving.readiness import Ready


def give_back(b: BorrowedHost, *, kill_foreign: bool) -> None:
    """Restore production, verify it, and release the lease.

    Raises what the last attempt raised when production cannot be verified, LeaseLost when the guard has taken over.
    """
    b.restoring = True
    b.phase, b.step = "", ""
    if not b.restore_wanted:
        _leave_down(b, kill_foreign=kill_foreign)
        return
    b.say("restore.begun", f"restoring {b.production.name}", service=b.production.name)
    ready = _restore(b, kill_foreign=kill_foreign) if b.touched else swap.verify(b, b.production)
    _start_dependents(b)
    swap.put_in(b, b.production)
    journal = b.recorder.journal
    journal.update_host(
        b.run,
        b.name,
        verified=1,
        evidence=list(ready.evidence),
        back_at=now() if b.touched else None,
        restored_by="controller" if b.touched else "",
    )
    b.say(
        "production.verified",
        f"production {b.production.name} serves, verified by {len(ready.evidence)} observations",
        service=b.production.name,
        evidence=[item.model_dump() for item in ready.evidence],
    )
    variant_units.remove_installed(b)
    _release(b)


def _leave_down(b: BorrowedHost, *, kill_foreign: bool) -> None:
    """End what this run started and nothing else: production was found down, and is to stay so."""
    b.say("restore.begun", f"{b.production.name} was found down and is left so", service=b.production.name)
    _clear_the_way(b, kill_foreign=kill_foreign)
    variant_units.remove_installed(b)
    _release(b)


def _restore(b: BorrowedHost, *, kill_foreign: bool) -> Ready:
    pause = limits.RESTORE_PAUSE
    for attempt in range(1, limits.RESTORE_ATTEMPTS + 1):
        try:
            _clear_the_way(b, kill_foreign=kill_foreign)
            return swap.bring_up(b, b.production, attempts=1, kill_foreign=kill_foreign)
        except (LeaseError, TransportLost):
            # The guard has taken over, or the link stayed away for longer than the lease: no attempt gets through.
            raise
        except OpsctlError as error:
            b.say(
                "restore.attempt",
                f"attempt {attempt} of {limits.RESTORE_ATTEMPTS} failed: {error}",
                error=error.lines(),
                attempt=attempt,
            )
            if attempt == limits.RESTORE_ATTEMPTS:
                raise
            b.serving = None
            b.progress("restore.attempt", f"trying again in {format_duration(pause)}")
            b.heartbeat.wait(pause)
            b.heartbeat.check()
            pause = min(2 * pause, limits.RESTORE_PAUSE_LONGEST)
    raise AssertionError  # unreachable


def _clear_the_way(b: BorrowedHost, *, kill_foreign: bool) -> None:
    """Stop all that this run started, by its slice, and a half-started production, then wait for the GPUs."""
    status = b.persist(
        "a look at production", lambda: b.host.systemd().status(b.production.unit, deadline=b.call("status"))
    )
    if b.serving == b.production.name and status.active:
        return

    def stop_slice() -> None:
        with b.change("stop", "opsctl.slice"):
            b.systemd().stop("opsctl.slice", deadline=b.call("stop of opsctl.slice", b.production.stop.limit))

    if b.serving not in {None, b.production.name}:
        b.say("service.stopping", f"stopping {b.serving}, by its slice", service=b.serving)
        b.holds(b.serving, "stopping")
    b.persist("stop of opsctl.slice", stop_slice)
    b.holds(None, "nobody")
    if not status.stopped:
        swap.take_down(b, b.production)
    b.serving = None
    swap.free_gpus(b, b.production, kill_foreign=kill_foreign)


def _start_dependents(b: BorrowedHost) -> None:
    """Start what stopped with production; each is looked at again, since a start job proves little."""
    for unit in b.dependents:

        def start(unit: str = unit) -> UnitStatus:
            status = b.host.systemd().status(unit, deadline=b.call("status"))
            if not status.active:
                with b.change("start", unit):
                    b.systemd().start(unit, deadline=b.call(f"start of {unit}", limits.UNIT_JOB))
                status = b.host.systemd().status(unit, deadline=b.call("status"))
            return status

        status = b.persist(f"start of {unit}", start)
        if not status.active:
            raise JobFailed(
                f"{unit} is a dependent of production and did not come back",
                result=status.result,
                wanted="active",
                seen=f"{status.active_state} ({status.sub_state})",
                where=f"{unit} on {b.name}",
                hint=f"journalctl -u {unit}",
            )
        b.say("service.ready", f"{unit}, a dependent of production, is active again", unit=unit)


def _release(b: BorrowedHost) -> None:
    """Release the lease, through a lost link: a host that is lost now was seen serving, and may serve no more.

    Raises LeaseLost when the host was rebooted meanwhile or the guard took over, TransportLost when it stays away.
    """
    b.heartbeat.stop()

    def release() -> None:
        with b.recorder.journal.mutation(b.run, b.name, "release", "lease"):
            control.release(b.host, b.lease, deadline=b.call("release of the lease"))

    try:
        b.persist("release of the lease", release)
    except CommandFailed as error:
        # Production is verified, the host is there; a lease that could not be released runs out by itself.
        b.say("lease.released", f"the lease could not be released and runs out by itself: {error}")
        return
    except OpsctlError:
        b.recorder.journal.update_host(b.run, b.name, verified=0)
        raise
    b.say("lease.released", f"the lease on {b.name} is released")

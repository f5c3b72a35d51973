"""The lease of a run on one host: guard installed, lease armed or taken over, released at the end."""

from __future__ import annotations

from contextlib import suppress

from opsctl.campaign import limits
from opsctl.campaign.borrowed_host import BorrowedHost, Done, seen
from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, HostError, JournalError, OpsctlError
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease, LeaseTerms
from opsctl.host.protocol import Host
from opsctl.plan.actions import Arm, InstallGuard, Release, TakeOver
from opsctl.runs.journal import Journal, controller_name


def install_guard(b: BorrowedHost, _action: InstallGuard) -> Done:
    """Put the guard in place. Raises NotGuardable, HostHeld, HostError."""
    with b.recorder.journal.mutation(b.run, b.name, "install guard", b.name):
        control.install(b.host, deadline=b.call("installation of the guard", limits.UNIT_JOB))
    return seen("the guard on the host", f"version {control.version()[:12]}")


def arm(b: BorrowedHost, action: Arm) -> Done:
    """Arm the lease: from here on production comes back whatever happens to us. Production is not touched.

    Raises NotGuardable, HostHeld, HostError, JournalError.
    """
    lease: Lease | None = None
    try:
        with b.recorder.journal.mutation(b.run, b.name, "arm", b.production.unit):
            lease = control.arm(b.host, _terms(b, action), deadline=b.call("arming", limits.UNIT_JOB))
        # What was proven before says nothing of what happens under this lease.
        b.recorder.journal.update_host(b.run, b.name, token=lease.token, verified=0, left_down=0)
    except JournalError:
        # What cannot be recorded must not be begun: the host is not left held by a run that ends here.
        if lease is not None:
            with suppress(HostError):
                disarm(b.host, b.run, b.recorder.journal, lease)
        raise
    b.ttl = action.ttl
    b.hold(lease)
    b.say(
        "lease.armed",
        f"lease {lease.token} armed on {b.name}: the guard restores {b.production.unit} "
        f"when it is not renewed for {action.ttl:g} s",
        token=lease.token,
        ttl=action.ttl,
    )
    return seen("the guard's look at the lease", f"lease {lease.token}, {lease.remaining:g} s left")


def _terms(b: BorrowedHost, action: Arm) -> LeaseTerms:
    """Return what the guard must know to bring production back without us."""
    return LeaseTerms(
        run=b.run,
        holder=controller_name(),
        ttl=action.ttl,
        service=b.production if action.restores else None,
        dependents=action.dependents,
        triggers=action.triggers,
        rehearse=action.rehearse,
        alert=b.host.entry.alert,
    )


def take_over(b: BorrowedHost, action: TakeOver) -> Done:
    """Go on under a lease that an earlier controller of this run armed. Raises LeaseLost, HostError."""
    view = control.show(b.host, deadline=b.call("the lease"))
    boot, ttl = (view.boot_id, view.ttl) if view is not None else ("", b.ttl)
    lease = control.renew(b.host, Lease(action.token, b.run, ttl, boot, 0.0), deadline=b.call("renewal of the lease"))
    b.recorder.journal.update_host(b.run, b.name, token=lease.token)
    b.ttl = ttl
    b.hold(lease)
    b.say("lease.armed", f"the lease on {b.name} still holds: taken over", token=lease.token)
    return seen("renewal of the lease", f"lease {lease.token}, {lease.remaining:g} s left")


def disarm(host: Host, run: str, journal: Journal, lease: Lease) -> None:
    """Give a lease back under which nothing was touched. Raises HostError."""
    with journal.mutation(run, host.name, "release", "lease"):
        control.release(host, lease, deadline=Deadline(limits.CALL, f"release on {host.name}"))


def release(b: BorrowedHost, _action: Release) -> Done:
    """Release the lease, through a lost link: a host that is lost now was seen serving, and may serve no more.

    Raises LeaseLost when the host was rebooted meanwhile or the guard took over, TransportLost when it stays away.
    """
    b.let_go()

    def give_back() -> None:
        with b.recorder.journal.mutation(b.run, b.name, "release", "lease"):
            control.release(b.host, b.lease, deadline=b.call("release of the lease"))

    try:
        b.persist("release of the lease", give_back)
    except CommandFailed as error:
        # Production is verified, the host is there; a lease that could not be released runs out by itself.
        words = f"the lease could not be released and runs out by itself: {error}"
        b.say("lease.released", words)
        return seen("release of the lease", words)
    except OpsctlError:
        b.recorder.journal.update_host(b.run, b.name, verified=0)
        raise
    b.say("lease.released", f"the lease on {b.name} is released")
    return seen("release of the lease", f"lease {b.lease.token} is closed")

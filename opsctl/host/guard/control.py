"""How the controller speaks to the guard on a host: install it, arm, renew and release a lease, look, break.

Every function works with any ``Host``, in either scope, and raises only errors of ``opsctl.errors``. What the
guard answers is read in ``view.py``; what a lease asks for is written in ``terms.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, HostHeld, LeaseError, LeaseLost, NotGuardable
from opsctl.host.guard import SERVICE, GuardExit, guard_argv
from opsctl.host.guard.terms import LeaseTerms
from opsctl.host.guard.view import LeaseView, parse_view
from opsctl.host.protocol import Completed, Host

__all__ = [
    "Lease",
    "LeaseTerms",
    "LeaseView",
    "abandon",
    "arm",
    "break_",
    "confirm",
    "held_error",
    "holds",
    "install",
    "refuse_held",
    "release",
    "renew",
    "show",
    "sweep",
    "try_fence",
    "uninstall",
    "version",
]

# The script comes in by stdin and the unit as an argument: one call, and nothing is left behind on a lost link
# but a folder in /tmp.
_INSTALL = (
    'folder=$(mktemp -d) && trap \'rm -rf "$folder"\' EXIT && cat >"$folder/opsctl-guard" && '
    'printf %s "$1" >"$folder/unit" && shift && sh "$folder/opsctl-guard" "$@" install "$folder/unit"'
)
_DRILL = (
    'folder=$(mktemp -d) && trap \'rm -rf "$folder"\' EXIT && cat >"$folder/opsctl-guard" && '
    'sh "$folder/opsctl-guard" "$@" drill'
)
_UNINSTALL = (
    'folder=$(mktemp -d) && trap \'rm -rf "$folder"\' EXIT && cat >"$folder/opsctl-guard" && '
    'sh "$folder/opsctl-guard" "$@" uninstall'
)


@dataclass(frozen=True)
class Lease:
    """A lease that this controller holds. ``remaining`` is what was left of it, in seconds, when the host spoke.

    ``tick_age`` is how long ago the guard last looked; ``silent`` when that is too long for it to be alive.
    """

    token: int
    run: str
    ttl: float
    boot_id: str
    remaining: float
    tick_age: float = 0.0
    listener: str = ""

    @property
    def silent(self) -> bool:
        """Whether the guard has stopped looking: production would not be restored if this controller died."""
        return self.tick_age > 30


def try_fence(host: Host, *, deadline: Deadline) -> str | None:
    """Open a session's scope on the host, break it, see it dead; see that ExecCondition= is heeded. No lease is needed.

    Return None when the fence holds, else what was seen. Nothing is left on the host.
    """
    argv = ("sh", "-c", _DRILL, "opsctl-guard", *_scope(host))
    done = host.run(argv, stdin=_script(), deadline=deadline, check=False)
    return None if done.exit_status == 0 else _last_line(done) or f"exit status {done.exit_status}"


def version() -> str:
    """Return the version of the guard that this opsctl brings: the sha256 of its text."""
    return hashlib.sha256(_script()).hexdigest()


def install(host: Host, *, deadline: Deadline) -> None:
    """Put the guard and its unit on the host; the same version under a live lease is left alone.

    Raises HostHeld when a lease is live and the version differs, NotGuardable when the host cannot be guarded.
    """
    seen = show(host, deadline=deadline)
    if seen is not None and seen.live and seen.version == version():
        return
    unit = resources.files("opsctl.host.guard").joinpath(SERVICE).read_text(encoding="utf-8")
    argv = ("sh", "-c", _INSTALL, "opsctl-guard", unit, *_scope(host))
    done = host.run(argv, stdin=_script(), deadline=deadline, check=False)
    _judge(host, done, "install the guard")


def uninstall(host: Host, *, deadline: Deadline) -> None:
    """Remove the guard and its unit; lease history and log stay. Raises HostHeld while a lease is live."""
    done = host.run(
        ("sh", "-c", _UNINSTALL, "opsctl-guard", *_scope(host)), stdin=_script(), deadline=deadline, check=False
    )
    _judge(host, done, "remove the guard")


def arm(host: Host, terms: LeaseTerms, *, deadline: Deadline) -> Lease:
    """Arm a lease and return it once the guard has been seen to watch it. Asking twice for the same is safe.

    Raises HostHeld; NotGuardable, also where production serves and the guard's own probe does not verify it. Production
    is not touched by it.
    """
    done = _ask(host, "arm", stdin=terms.encode(version()), deadline=deadline)
    return _lease(_judge(host, done, "arm a lease"))


def renew(host: Host, lease: Lease, *, deadline: Deadline) -> Lease:
    """Move the deadline to a whole ttl from now. Raises LeaseLost."""
    done = _ask(host, "renew", str(lease.token), deadline=deadline)
    return _lease(_judge(host, done, "renew the lease"))


def release(host: Host, lease: Lease, *, deadline: Deadline) -> LeaseView:
    """Close a lease after production was verified. Asking twice is safe: the answer to the first may have been lost.

    Raises LeaseLost; LeaseError when production is not active.
    """
    done = _ask(host, "release", str(lease.token), deadline=deadline)
    view = parse_view(done.text)
    if (
        done.exit_status == GuardExit.LOST
        and view.state == "closed"
        and view.run == lease.run
        and view.closed_by == view.holder
    ):
        return view
    return _judge(host, done, "release the lease")


def sweep(host: Host, lease: Lease, *, deadline: Deadline) -> None:
    """End what production's stopped invocation left behind (``stop.end-leftovers``), in its control group and beyond.

    Does nothing where the terms do not allow it or production's unit is not down; takes up to 12 s. Raises LeaseLost;
    LeaseError when something does not end.
    """
    _judge(host, _ask(host, "sweep", str(lease.token), deadline=deadline), "end what production left behind")


def show(host: Host, *, deadline: Deadline) -> LeaseView | None:
    """Return what the host says of its lease, live or closed; None where no guard is installed."""
    done = _ask(host, "show", deadline=deadline)
    if done.exit_status != 0 and _missing(done):
        return None
    return _judge(host, done, "read the lease")


def refuse_held(host: Host, *, deadline: Deadline, hint: str = "") -> None:
    """Raise HostHeld while somebody holds the host, before production is judged: it is down for their sake.

    A live lease that no guard watches (its arming was cut short, or somebody stopped the guard) would never end:
    its guard is started, which restores and verifies production when the lease's time is over.
    """
    view = show(host, deadline=deadline)
    if view is None or not view.live:
        return
    also = ""
    if not view.watched:
        woken = _ask(host, "wake", deadline=deadline)
        also = "; it was started" if woken.exit_status == 0 else f"; starting it failed: {_last_line(woken)}"
    raise held_error(host.name, view, wanted="borrow the host", also=also, hint=hint)


def break_(host: Host, *, by: str, deadline: Deadline) -> LeaseView | None:
    """End whatever lease there is: its holder is fenced off and the guard restores production, at once.

    Under a restore that backs off it makes the guard try again now. Returns what then stands; None where no guard is.
    """
    done = _ask(host, "break", by, deadline=deadline)
    if done.exit_status != 0 and _missing(done):
        return None
    return _judge(host, done, "break the lease")


def confirm(host: Host, *, by: str, deadline: Deadline) -> LeaseView:
    """Close a lease whose restore the guard could not verify itself, after somebody saw production serve."""
    return _judge(host, _ask(host, "confirm", by, deadline=deadline), "confirm the restore")


def abandon(host: Host, *, by: str, deadline: Deadline) -> LeaseView:
    """Close whatever lease there is and restore nothing: a person takes over from here."""
    return _judge(host, _ask(host, "abandon", by, deadline=deadline), "abandon the lease")


def holds(host: Host, token: int, *, deadline: Deadline) -> bool:
    """Return whether a token holds at this moment."""
    done = _ask(host, "holds", str(token), deadline=deadline)
    if done.exit_status in {0, 1}:
        return done.exit_status == 0
    _judge(host, done, "look at the token")
    return False


def _script() -> bytes:
    return resources.files("opsctl.host.guard").joinpath("opsctl-guard").read_bytes()


def _scope(host: Host) -> tuple[str, ...]:
    return ("--user",) if host.entry.scope == "user" else ()


def _ask(host: Host, *arguments: str, deadline: Deadline, stdin: bytes = b"") -> Completed:
    return host.run(guard_argv(host.entry, *arguments), stdin=stdin, deadline=deadline, check=False)


def _missing(done: Completed) -> bool:
    """Whether the shell did not find the script (dash: cannot open; bash: No such file; both without a view)."""
    said = done.stderr.decode(errors="replace")
    return not done.stdout and ("annot open" in said or "No such file" in said)


def _lease(view: LeaseView) -> Lease:
    return Lease(view.token, view.run, view.ttl, view.boot_id, view.remaining, view.tick_age, view.listener)


def _judge(host: Host, done: Completed, wanted: str) -> LeaseView:
    """Return what the guard showed, or raise for its exit status."""
    view = parse_view(done.text)
    said = _last_line(done)
    if done.exit_status == 0:
        return view
    if done.exit_status == GuardExit.HELD:
        raise held_error(host.name, view, wanted=wanted, also=f" ({said})")
    if done.exit_status == GuardExit.LOST:
        raise LeaseLost(
            f"the lease on {host.name} is gone: {view.describe()}",
            wanted=wanted,
            seen=view.log[-1] if view.log else said,
            where=host.name,
            hint=f"opsctl lease show {host.name}",
        )
    if done.exit_status == GuardExit.NOT_ACTIVE:
        raise LeaseError(f"the lease on {host.name} stays: {said}", wanted=wanted, where=host.name)
    if done.exit_status == GuardExit.UNFIT or _missing(done):
        raise NotGuardable(
            f"{host.name} cannot be guarded: {said}",
            wanted=wanted,
            where=host.name,
            hint=f"opsctl guard install {host.name}" if _missing(done) or "version" in said else None,
        )
    raise CommandFailed(
        f"the guard on {host.name} could not {wanted}",
        exit_status=done.exit_status,
        stderr=done.stderr.decode(errors="replace"),
        seen=said or "no output",
        where=host.name,
        hint="the lock is held by something that hangs" if done.exit_status == GuardExit.BUSY else None,
    )


def held_error(host: str, view: LeaseView, *, wanted: str = "", also: str = "", hint: str = "") -> HostHeld:
    """Return the error of a host that somebody holds. ``hint`` comes before what may always be done."""
    run = f"run {view.run}, " if view.run else ""
    seen = run + view.since_and_until() if view.state == "held" else view.describe()
    always = f"wait (opsctl lease show {host}); only where they are gone for good: opsctl lease break {host}"
    return HostHeld(
        f"{host} is held by {view.holder or 'someone else'}",
        wanted=wanted or None,
        seen=seen + also,
        where=host,
        hint=hint or always,
    )


def _last_line(done: Completed) -> str:
    lines: Sequence[str] = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("opsctl-guard: ") if lines else ""

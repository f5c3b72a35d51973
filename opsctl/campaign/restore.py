"""Giving the host back: production made to serve by whatever that takes, and never by stopping a server that answers.

A restore has a budget of its own and is not cancelled by a first Ctrl-C. When it cannot be done the lease
stays, and the guard on the host, which never stops trying, takes over.
"""

from __future__ import annotations

from enum import StrEnum

from opsctl.campaign import limits, swap
from opsctl.campaign.borrowed_host import BorrowedHost, Done, seen
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import JobFailed, LeaseError, NotReady, OpsctlError, TransportLost
from opsctl.host.protocol import UnitStatus
from opsctl.plan.actions import (
    Action,
    Clear,
    Gate,
    LeaveDown,
    StartDependent,
    StartTrigger,
    TrafficIn,
    Verify,
)
from opsctl.quantities import format_duration
from opsctl.results import State
from opsctl.serving import readiness
from opsctl.serving.probing import ProbeOutcome
from opsctl.serving.readiness import Serving, ServingState
from opsctl.serving.unitstate import describe_unit
from opsctl.serving.waits import evidence


class Standing(StrEnum):
    """What production is to a restore. Only the last two may be stopped and started anew."""

    VERIFIED = "verified"
    ANSWERING = "answering but unverifiable"
    LOADING = "loading"
    SILENT = "loading in silence past its limit"
    DEAD = "dead"


_ONCE_VERIFIED = (StartDependent, StartTrigger, TrafficIn)
"""What follows production's verification, before it is recorded as back."""
_ANSWERING = {
    ProbeOutcome.UNAUTHORIZED,
    ProbeOutcome.FOREIGN,
    ProbeOutcome.OTHER_MODEL,
    ProbeOutcome.EMPTY,
    ProbeOutcome.UNTRUSTED,
    ProbeOutcome.CROWDED,
}


def standing_of(state: ServingState, *, silent: bool) -> Standing:
    """Return what production is, from one look. ``silent``: a wait for it saw nothing move for as long as it may.

    Raises NotReady where the unit could not be read: what is not known is not stopped.
    """
    if state.serving:
        return Standing.VERIFIED
    if state.status is None:
        raise NotReady("production's unit could not be read", seen=state.seen)
    if state.status.stopped or state.status.load_state == "not-found":
        return Standing.DEAD
    if state.problem is ProbeOutcome.STRANGER:
        return Standing.LOADING  # what it does itself cannot be seen: it comes up, or dies, when its port is free
    if state.problem in _ANSWERING:
        return Standing.ANSWERING
    return Standing.SILENT if silent or state.state is Serving.DOWN else Standing.LOADING


class StartedUnverified(NotReady):
    """Production runs and answers, and cannot be verified: a person has to look, and nothing may stop it."""


def give_back(b: BorrowedHost, *, failed: bool) -> None:
    """Restore production, verify it, and release the lease; ``failed``: by the branch for what failed.

    Raises what the last attempt raised when production cannot be verified, LeaseLost when the guard has taken over.
    """
    b.restoring = True
    b.phase, b.step = "", ""
    plan = b.plan
    words = "restoring" if plan.restores else "found down and left so:"
    b.say("restore.begun", f"{words} {b.production.name}", service=b.production.name)
    if failed:
        b.skip(plan.give_back, "something failed: production is brought back by the branch for that")
        _until_it_serves(b)
    else:
        try:
            for action in plan.give_back:
                b.perform(action)
        except (LeaseError, TransportLost):
            raise
        except OpsctlError as error:
            _say_attempt(b, 1, error)
            b.skip(plan.give_back, "an action before it failed")
            _until_it_serves(b, after=error)
    b.skip(plan.restore, "not needed")
    for action in plan.closing:
        if isinstance(action, _ONCE_VERIFIED):
            b.perform(action)
    _record(b)
    for action in plan.closing:
        if not isinstance(action, _ONCE_VERIFIED):
            b.perform(action)


def _record(b: BorrowedHost) -> None:
    journal = b.recorder.journal
    if not b.plan.restores:
        journal.update_host(b.run, b.name, left_down=1)
        return
    b.evidence = (*b.evidence, *swap.as_it_ran(b))
    journal.update_host(
        b.run,
        b.name,
        verified=1,
        evidence=list(b.evidence),
        back_at=now() if b.touched else None,
        restored_by="controller" if b.touched else "",
    )
    b.say(
        "production.verified",
        f"production {b.production.name} serves, verified by {len(b.evidence)} observations",
        service=b.production.name,
        evidence=[item.model_dump() for item in b.evidence],
    )


def _until_it_serves(b: BorrowedHost, *, after: OpsctlError | None = None) -> None:
    """Carry out the branch of a restore until production serves, with growing pauses, up to a limit."""
    pause = limits.RESTORE_PAUSE
    for attempt in range(1 if after is None else 2, limits.RESTORE_ATTEMPTS + 1):
        if after is not None:
            b.progress("restore.attempt", f"trying again in {format_duration(pause)}")
            b.heartbeat.wait(pause)
            b.heartbeat.check()
            pause = min(2 * pause, limits.RESTORE_PAUSE_LONGEST)
        try:
            _bring_back(b)
        except (LeaseError, TransportLost, StartedUnverified):
            # The guard has taken over, or the link stayed away for longer than the lease, or nothing may be stopped.
            raise
        except OpsctlError as error:
            _say_attempt(b, attempt, error)
            if attempt == limits.RESTORE_ATTEMPTS:
                raise
            after = error
        else:
            return


def _bring_back(b: BorrowedHost) -> None:
    """Carry out the branch of a restore once: each action as far as production's state asks for it."""
    there = False
    actions = list(b.plan.restore)
    if b.watch.appeared:  # what this run started must not share the GPUs with production, whether or not it answers
        actions.sort(key=lambda action: not isinstance(action, Clear))
    for action in actions:
        if isinstance(action, Verify):
            if _serves(b, action):
                return
        elif isinstance(action, Gate) and there:
            b.skip((action,), "production runs, and holds the GPUs")
        else:
            b.perform(action)
            there = there or (isinstance(action, Clear) and not action.leave_down and _runs(b))


def _serves(b: BorrowedHost, action: Action) -> bool:
    """Whether production is verified as it is."""
    try:
        b.perform(action)
    except (LeaseError, TransportLost):
        raise
    except OpsctlError:
        return False
    return True


def _runs(b: BorrowedHost) -> bool:
    return not _status(b, b.production.unit).stopped


def _say_attempt(b: BorrowedHost, attempt: int, error: OpsctlError) -> None:
    b.say(
        "restore.attempt",
        f"attempt {attempt} of {limits.RESTORE_ATTEMPTS} failed: {error}",
        error=error.lines(),
        attempt=attempt,
    )


def clear(b: BorrowedHost, action: Clear) -> Done:
    """Stop all that this run started, by its slice; and production where it is dead, silent, or to stay down.

    Raises StartedUnverified where production answers and cannot be verified: it is left running.
    """

    def stop_slice() -> None:
        with b.change("stop", "opsctl.slice"):
            b.systemd().stop("opsctl.slice", deadline=b.call("stop of opsctl.slice", action.limit))

    b.persist("stop of opsctl.slice", stop_slice)
    b.holds(None, "nobody")
    proof = evidence("systemd: opsctl.slice", "stopped: nothing that this run started is left")
    if action.leave_down and not b.watch.appeared:
        return Done((proof, *swap.take_down(b, action.service).evidence))
    state = b.persist(
        "a look at production",
        lambda: readiness.observe(
            b.host, action.service, deadline=Deadline(limits.CONNECT, f"a look at {action.service.name}")
        ),
    )
    standing = standing_of(state, silent=b.silent)
    if standing is Standing.ANSWERING:
        raise StartedUnverified(
            f"{action.service.name} runs and answers, and cannot be verified: it is left running",
            wanted=f"completions of {action.service.model} at {action.service.url}",
            seen=state.seen,
            where=f"host {b.name}, {action.service.unit}",
            hint="a key, a name or a certificate changed, or it takes no more requests now: mend that, then"
            " opsctl rollback verifies it",
        )
    if standing in {Standing.SILENT, Standing.DEAD} and state.status is not None and not state.status.stopped:
        swap.take_down(b, action.service)
    elif standing is Standing.DEAD:
        b.persist("the end of leftovers", lambda: swap.end_leftovers(b, action.service))
    return seen(f"production {action.service.name}", f"{standing}: {state.seen}", proof)


def leave_down(b: BorrowedHost, action: LeaveDown) -> Done:
    """See that production is down, as it was found; one that somebody else started is left alone. Raises JobFailed."""
    status = _status(b, action.unit)
    if b.watch.appeared:
        words = f"{b.watch.appeared}; it is left running"
        return Done((evidence(f"systemd: state of {action.unit}", words),), State.INCONCLUSIVE, words)
    if not status.stopped:
        raise JobFailed(f"{action.unit} is to stay down, and runs", result=status.result, seen=describe_unit(status))
    return seen(f"systemd: state of {action.unit}", describe_unit(status))


def _status(b: BorrowedHost, unit: str) -> UnitStatus:
    return b.persist("a look at production", lambda: b.host.systemd().status(unit, deadline=b.call("status")))

"""The plan of one host carried out: its actions in order, the branch of a retry, and what a failure means for the rest.

A *step* that fails fails its phase, and the other steps still run: they are measurements of their own.
A *service* that cannot be brought up ends the campaign (unless the phase is ``optional``), since every
further swap would cost production downtime for a host that is not well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.steps import failed_whole
from opsctl.errors import LoadFailed, NotReady, OpsctlError
from opsctl.host.outage import ride_out
from opsctl.plan.actions import Action, Arm, AwaitReady, Branch, InstallGuard, Measure, TakeOver
from opsctl.plan.hostplan import PhasePlan
from opsctl.results import State, StepResult

_ARMING = (InstallGuard, Arm, TakeOver)


def record(b: BorrowedHost) -> None:
    """Write the plan into the journal: every phase, step with its cells, and action, pending."""
    journal = b.recorder.journal
    for phase in b.plan.phases:
        journal.phase(
            b.run, b.name, phase.ordinal, round_=phase.round, name=phase.name, serve=phase.serve,
            todo=bool(phase.actions),
        )  # fmt: skip
        for step in phase.steps:
            journal.step(
                b.run,
                b.name,
                phase.ordinal,
                step.position,
                id_=step.step,
                stage=step.stage,
                name=step.name,
                options=step.options,
                hash_=step.hash,
                planned=StepResult(stage=step.stage, state=State.PENDING, cells=step.planned),
            )
    b.record_plan()


def arm(b: BorrowedHost) -> None:
    """Carry out what makes the host ours: guard and lease. Nothing of production is touched."""
    for action in b.plan.setup:
        if isinstance(action, _ARMING):
            ride_out(b.host, partial(b.perform, action))


def run_phases(b: BorrowedHost) -> None:
    """Carry out the rest of the setup and the phases, in order. The journal holds how each ended.

    Raises Interrupted, LeaseLost, TransportLost, and what kept a service from serving.
    """
    try:
        for action in b.plan.setup:
            if not isinstance(action, _ARMING):
                b.perform(action)
    except OpsctlError as error:
        b.skip(b.plan.setup, f"not reached: {error}")
        skip_phases(b, b.plan.phases, f"not reached: {error}")
        raise
    for index, phase in enumerate(b.plan.phases):
        b.phase = phase.name
        try:
            b.cancellation.check()
            _run_phase(b, phase)
        except OpsctlError as error:
            _skip_rest(b, phase, f"not reached: {error}")
            _close(b, phase, State.FAILED, str(error))
            if phase.optional and isinstance(error, NotReady) and not b.cancellation.requested:
                continue
            skip_phases(b, b.plan.phases[index + 1 :], f"not reached: {phase.name} ended with: {error}")
            raise
        finally:
            b.phase, b.step = "", ""


def _run_phase(b: BorrowedHost, phase: PhasePlan) -> None:
    journal = b.recorder.journal
    if not phase.actions:
        if _state_of(b, phase) is not State.VERIFIED:
            for state in (State.RUNNING, State.VERIFIED):
                journal.phase_state(b.run, b.name, phase.ordinal, state)
        b.say("phase.ended", f"{phase.name}: everything was verified before")
        return
    journal.phase_state(b.run, b.name, phase.ordinal, State.RUNNING)
    b.say("phase.begun", f"{phase.name}: {phase.serve} must serve", serve=phase.serve)
    states = [State.VERIFIED for _ in phase.done]
    for action in phase.actions:
        b.cancellation.check()
        if isinstance(action, Measure):
            b.step = action.step
            states.append(b.perform(action).state)
            b.step = ""
        elif action.branch is Branch.MAIN:
            _perform(b, phase, action)
    b.watch.check(b)
    b.skip(phase.actions, "not needed")
    missing = sum(state is not State.VERIFIED for state in states)
    _close(b, phase, _worst(states), f"{missing} of {len(states)} steps not verified" if missing else "")


def _perform(b: BorrowedHost, phase: PhasePlan, action: Action) -> None:
    """Carry an action out; a load that died of something transient is tried again by the phase's retry branch."""
    b.attempt = 1
    try:
        b.perform(action)
    except LoadFailed as error:
        if not isinstance(action, AwaitReady):
            raise
        _retry(b, phase, action, error)


def _retry(b: BorrowedHost, phase: PhasePlan, action: AwaitReady, error: LoadFailed) -> None:
    branch = [one for one in phase.actions if one.branch is Branch.RETRY]
    for attempt in range(1, action.attempts):
        if not error.transient:
            raise error
        b.say(
            "service.failed",
            f"{action.unit}: {error.message}; attempt {attempt} of {action.attempts}, trying again",
            service=action.service.name,
            lines=list(error.lines_quoted),
        )
        b.attempt = attempt + 1
        try:
            for again in branch:
                b.perform(again)
        except LoadFailed as failed:
            error = failed
        else:
            return
    raise error


def skip_phases(b: BorrowedHost, phases: Sequence[PhasePlan], reason: str) -> None:
    """Record that phases were not reached, every action, step and cell of theirs with the reason."""
    for phase in phases:
        b.phase = phase.name
        _skip_rest(b, phase, reason)
        _close(b, phase, State.SKIPPED, reason)
    b.phase = ""


def _skip_rest(b: BorrowedHost, phase: PhasePlan, reason: str) -> None:
    """Record what of a phase did not begin as skipped."""
    b.skip(phase.actions, reason)
    journal = b.recorder.journal
    pending = journal.query(
        "SELECT position FROM steps WHERE run=? AND host=? AND ordinal=? AND state=?",
        b.run,
        b.name,
        phase.ordinal,
        State.PENDING,
    )
    for position in (row["position"] for row in pending):
        skipped = failed_whole(phase.steps[position], reason, State.SKIPPED)
        journal.step_state(b.run, b.name, phase.ordinal, position, State.SKIPPED, result=skipped)


def _close(b: BorrowedHost, phase: PhasePlan, state: State, reason: str) -> None:
    before = _state_of(b, phase)
    if before.final:
        return
    # A phase that never began did not fail.
    state = State.SKIPPED if before is State.PENDING else state
    b.recorder.journal.phase_state(b.run, b.name, phase.ordinal, state, reason)
    b.say("phase.ended", f"{phase.name}: {state}{': ' + reason if reason else ''}", state=state)


def _state_of(b: BorrowedHost, phase: PhasePlan) -> State:
    (row,) = b.recorder.journal.query(
        "SELECT state FROM phases WHERE run=? AND host=? AND ordinal=?", b.run, b.name, phase.ordinal
    )
    return State(row["state"])


def _worst(states: Sequence[State]) -> State:
    for state in (State.FAILED, State.INCONCLUSIVE, State.SKIPPED):
        if state in states:
            return state
    return State.VERIFIED

"""The phases of a campaign on one host: who must serve, the steps under it, and what a failure means for the rest.

A *step* that fails fails its phase, and the other steps still run: they are measurements of their own.
A *service* that cannot be brought up ends the campaign (unless the phase is ``optional``), since every
further swap would cost production downtime for a host that is not well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.campaign import swap
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.steps import PlannedStep, failed_whole, run_step
from opsctl.errors import Interrupted, NotReady, OpsctlError
from opsctl.playbook.models import NOTHING
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import State, StepResult


@dataclass(frozen=True)
class PlannedPhase:
    """One phase on one host; ``service`` is None for `nothing`."""

    ordinal: int
    name: str
    service: ResolvedService | None
    steps: tuple[PlannedStep, ...]
    optional: bool
    done: dict[str, StepResult]
    """Steps that an earlier controller of this run verified, and that are unchanged."""

    @property
    def serve(self) -> str:
        """What must serve, as the playbook says it."""
        return self.service.name if self.service else NOTHING


@dataclass(frozen=True)
class Policy:
    """How a campaign behaves at its edges."""

    attempts: int
    kill_foreign: bool


def run_phases(
    b: BorrowedHost, phases: tuple[PlannedPhase, ...], services: dict[str, ResolvedService], policy: Policy
) -> None:
    """Carry the phases out in order. Returns when all ended; the journal holds each one's state.

    Raises Interrupted, LeaseLost, TransportLost, and what kept a service from serving.
    """
    for index, phase in enumerate(phases):
        b.phase = phase.name
        try:
            b.cancellation.check()
            _run_phase(b, phase, services, policy)
        except OpsctlError as error:
            _skip_pending(b, phase, f"not reached: {error}")
            _close_phase(b, phase, State.FAILED, str(error))
            if phase.optional and isinstance(error, NotReady) and not b.cancellation.requested:
                continue
            skip_phases(b, phases[index + 1 :], f"not reached: {phase.name} ended with: {error}")
            raise
        finally:
            b.phase, b.step = "", ""


def _run_phase(b: BorrowedHost, phase: PlannedPhase, services: dict[str, ResolvedService], policy: Policy) -> None:
    journal = b.recorder.journal
    todo = [step for step in phase.steps if step.id not in phase.done]
    if phase.steps and not todo:
        b.say("phase.ended", f"{phase.name}: everything was verified before")
        return
    journal.phase_state(b.run, b.name, phase.ordinal, State.RUNNING)
    b.say("phase.begun", f"{phase.name}: {phase.serve} must serve", serve=phase.serve)
    _ensure(b, phase.service, services, policy)
    states = [result.state for result in phase.done.values()]
    for step in todo:
        b.step = step.id
        try:
            states.append(_run_one(b, phase, step))
        finally:
            b.step = ""
    worst = _worst(states)
    reason = (
        ""
        if worst is State.VERIFIED
        else f"{sum(s is not State.VERIFIED for s in states)} of {len(states)} steps not verified"
    )
    _close_phase(b, phase, worst, reason)


def _ensure(
    b: BorrowedHost, wanted: ResolvedService | None, services: dict[str, ResolvedService], policy: Policy
) -> None:
    """Make the phase's service the one that serves, verified, and nothing else hold the GPUs."""
    if wanted is not None and b.serving == wanted.name:
        ready = swap.verify(b, wanted)
        b.say(
            "service.ready",
            f"{wanted.name} serves",
            service=wanted.name,
            evidence=[item.model_dump() for item in ready.evidence],
        )
        return
    if b.serving is not None:
        leaving = services[b.serving]
        swap.take_down(b, leaving)
        swap.free_gpus(b, leaving, kill_foreign=policy.kill_foreign)
    if wanted is not None:
        swap.bring_up(b, wanted, attempts=policy.attempts, kill_foreign=policy.kill_foreign)


def _run_one(b: BorrowedHost, phase: PlannedPhase, step: PlannedStep) -> State:
    journal = b.recorder.journal
    b.cancellation.check()
    b.say("step.begun", f"{step.id}: {len(step.cells)} cells", stage=step.stage, cells=[cell.id for cell in step.cells])
    journal.step_state(b.run, b.name, step.ordinal, step.position, State.RUNNING, unit=step.unit)
    if phase.service is None:
        b.holds(step.id, "stage")
    try:
        result = run_step(b, step)
    except OpsctlError as error:
        # Where the link or the lease went, nobody knows how the step ended: its unit may still run.
        state = State.SKIPPED if isinstance(error, Interrupted) else State.INCONCLUSIVE
        result = failed_whole(step, str(error), state)
        journal.step_state(b.run, b.name, step.ordinal, step.position, state, result=result)
        raise
    finally:
        if phase.service is None:
            b.holds(None, "nobody")
    journal.step_state(b.run, b.name, step.ordinal, step.position, State.VERIFYING, result=result)
    if result.environment:
        journal.update_host(b.run, b.name, environment=result.environment)
    journal.step_state(b.run, b.name, step.ordinal, step.position, result.state, result=result)
    verified = sum(cell.state is State.VERIFIED for cell in result.cells)
    b.say(
        "step.ended",
        f"{step.id}: {result.state}, {verified} of {len(result.applying)} cells verified{_because(result)}",
        state=result.state,
        verified=verified,
        cells=len(result.cells),
    )
    if result.state is not State.VERIFIED and phase.service is not None:
        # The step may have failed because its server did: then nothing else under it can be believed.
        swap.verify(b, phase.service)
    return result.state


def _because(result: StepResult) -> str:
    return f": {result.reason}" if result.reason and result.state is not State.VERIFIED else ""


def skip_phases(b: BorrowedHost, phases: Sequence[PlannedPhase], reason: str) -> None:
    """Record that phases were not reached, every step and cell of theirs with the reason."""
    for phase in phases:
        b.phase = phase.name
        _skip_pending(b, phase, reason)
        _close_phase(b, phase, State.SKIPPED, reason)


def _skip_pending(b: BorrowedHost, phase: PlannedPhase, reason: str) -> None:
    """Record each step of a phase that did not begin as skipped."""
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


def _close_phase(b: BorrowedHost, phase: PlannedPhase, state: State, reason: str) -> None:
    b.recorder.journal.phase_state(b.run, b.name, phase.ordinal, state, reason)
    b.say("phase.ended", f"{phase.name}: {state}{': ' + reason if reason else ''}", state=state)


def _worst(states: list[State]) -> State:
    for state in (State.FAILED, State.INCONCLUSIVE, State.SKIPPED):
        if state in states:
            return state
    return State.VERIFIED

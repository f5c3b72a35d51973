"""Carrying one step out: a transient unit on the host, its results tailed, its artifacts fetched, a verdict.

The unit outlives a lost link and a dead controller; whoever comes back re-attaches to it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.artifacts import collect_folder
from opsctl.campaign.borrowed_host import BorrowedHost, Done, seen
from opsctl.campaign.stage_result import Ending, Tail, with_ending
from opsctl.campaign.swap import prove
from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded, Interrupted, OpsctlError, ProductionAppeared, StageError, UnitNotFound
from opsctl.host.protocol import TransientUnit, UnitStatus
from opsctl.payload import build_zipapp
from opsctl.plan.actions import Measure, StopStage
from opsctl.plan.planner import step_slug
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import State, StepResult
from opsctl.serving.doctor.looking import kernel_log
from opsctl.serving.listening import Holding, PortHolder, port_holder
from opsctl.serving.probing import Answer, not_ready, stranger
from opsctl.serving.waits import evidence
from opsctl.stages import STAGES
from opsctl.stages.base import Invocation


def measure(b: BorrowedHost, step: Measure) -> Done:
    """Run a step to its verdict and record it; the service under it is verified again where it was not verified.

    Raises LeaseLost, TransportLost, Interrupted when it had not begun, and NotReady where the service went.
    """
    journal, place = b.recorder.journal, (b.run, b.name, step.phase or 0, step.position)
    alone = step.context.service is None
    names = [cell.id for cell in step.planned]
    _refuse_stranger(b, step)
    b.say("step.begun", f"{step.step}: {len(names)} cells", stage=step.stage, cells=names)
    journal.step_state(*place, State.RUNNING, unit=step.unit)
    if alone:
        b.holds(step.step, "stage")
    try:
        result = run_step(b, step)
    except OpsctlError as error:
        # Where the link or the lease went, it is not known how the step ended: its unit may still run.
        state = State.SKIPPED if isinstance(error, Interrupted) else State.INCONCLUSIVE
        journal.step_state(*place, state, result=failed_whole(step, str(error), state))
        raise
    finally:
        if alone:
            b.holds(None, "nobody")
    journal.step_state(*place, State.VERIFYING, result=result)
    try:
        if (met := _stranger(b, step)) is not None:
            result = failed_whole(step, f"it may have measured a stranger: {met.seen}")
    except OpsctlError as error:
        # What was measured is kept; whose server it was is not known.
        unknown = result.model_copy(update={"state": State.INCONCLUSIVE, "reason": str(error)})
        journal.step_state(*place, State.INCONCLUSIVE, result=unknown)
        raise
    if result.environment:
        journal.update_host(b.run, b.name, environment=result.environment)
    journal.step_state(*place, result.state, result=result)
    verified = sum(cell.state is State.VERIFIED for cell in result.cells)
    reason = result.reason if result.state is not State.VERIFIED else ""
    words = f"{result.state}, {verified} of {len(result.applying)} cells verified{f': {reason}' if reason else ''}"
    words = result.reason if result.apart else words
    b.say("step.ended", f"{step.step}: {words}", state=result.state, verified=verified, cells=len(result.cells))
    if result.state is not State.VERIFIED and isinstance(step.context.service, ResolvedService):
        # The step may have failed because its server did: then nothing else under it can be believed.
        prove(b, step.context.service)
    return Done((evidence(f"the stage's results of {step.step}", words), *result.evidence), result.state, reason)


def _stranger(b: BorrowedHost, step: Measure) -> Answer | None:
    """Return what is seen where somebody else holds the port of the step's service; None for a step without one."""
    service = step.context.service
    if not isinstance(service, ResolvedService):
        return None
    deadline = b.call(f"who listens at {service.url}")

    def look() -> PortHolder:
        group = b.host.systemd().status(service.unit, deadline=deadline).control_group
        return port_holder(b.host, service, group, deadline=deadline)

    held = b.persist(f"who listens at {service.url}", look)
    return stranger(held) if held.holding is Holding.OTHER else None


def _refuse_stranger(b: BorrowedHost, step: Measure) -> None:
    """Raise NotReady before a step would send its requests, and the key, to a stranger."""
    met = _stranger(b, step)
    if met is not None and isinstance(step.context.service, ResolvedService):
        raise not_ready(b.host, step.context.service, met)


def run_step(b: BorrowedHost, step: Measure) -> StepResult:
    """Run a step to its verdict; what it could not do is in the result, cell by cell.

    Cut short by a cancelled run, its own deadline or production, which somebody started, its unit is stopped and what
    it had is collected and judged.
    Raises LeaseLost, TransportLost, and Interrupted when it had not begun.
    """
    stage = STAGES[step.stage]
    try:
        invocation = stage.invocation(step.options, step.context, step.planned)
    except StageError as error:
        return failed_whole(step, "; ".join(error.lines()))
    began = _start(b, step, invocation)
    tail = Tail(f"{step.context.folder}/results.jsonl")
    cut_short: OpsctlError | None = None
    try:
        _follow(b, step, invocation, tail)
        b.watch.check(b, since=began if step.context.service != b.production else None)
    except (Interrupted, DeadlineExceeded, ProductionAppeared) as error:
        cut_short = error
        stop_stage(b, step.unit)
    status = b.persist("end of the stage", lambda: b.host.systemd().status(step.unit, deadline=b.call("status")))
    b.persist("last results", lambda: tail.read(b.host))
    into = b.recorder.journal.run_folder(b.run) / (b.name if len(step.context.peers) > 1 else "")
    collected = b.persist(
        "artifacts",
        lambda: collect_folder(b.host, step.context.folder, into / step_slug(step.step), invocation.collect),
    )
    ending = Ending(step.unit, status, tail.records, collected, into, cut_short)
    if ending.out_of_memory:
        ending = replace(ending, kernel=_kernel_on_memory(b))
    return with_ending(stage.judge(step.options, step.context, step.planned, tail.records), ending)


def _kernel_on_memory(b: BorrowedHost) -> str:
    """Return the kernel's last line about a process that it killed for memory; "" where it cannot be read."""
    try:
        log = kernel_log(b.host, b.call("the kernel's log"), "killed process") or ""
    except OpsctlError:
        return ""
    return next(reversed(log.splitlines()), "")


def failed_whole(step: Measure, reason: str, state: State = State.FAILED) -> StepResult:
    """Return a result in which every planned cell shares one fate."""
    cells = tuple(cell.model_copy(update={"state": state, "reason": reason}) for cell in step.planned)
    return StepResult(stage=step.stage, state=state, reason=reason, cells=cells)


def _start(b: BorrowedHost, step: Measure, invocation: Invocation) -> UnitStatus | None:
    """Start the step's unit, or return it as it is where an earlier controller of the run started it."""
    folder = step.context.folder
    deadline = b.call("start of the stage", limits.TRANSFER)

    def start() -> UnitStatus | None:
        status = b.host.systemd().status(step.unit, deadline=b.call("status"))
        if status.load_state != "not-found" and not status.stopped:
            b.say("step.progress", f"re-attached to {step.unit}, which still runs")
            return status
        if status.load_state != "not-found":
            # It failed while no controller watched: systemd keeps a failed unit's name until it is reset.
            _forget(b, step.unit)
        local = build_zipapp(b.recorder.journal.folder / "payload")
        payload = f"{b.host.state_dir}/payload/{local.name}"
        if b.host.run(["test", "-s", payload], deadline=b.call("payload"), check=False).exit_status != 0:
            b.host.put(local, payload, deadline=deadline)
        b.host.write_file(f"{folder}/spec.json", invocation.spec_json(), deadline=b.call("spec"), mode=0o600)
        with b.change("start stage", step.unit):
            b.systemd().start_transient(
                TransientUnit(
                    name=step.unit,
                    argv=invocation.argv(b.host.entry.python, "-B", payload),
                    description=f"opsctl {b.run}: {step.step}",
                    working_directory=folder,
                    runtime_max=invocation.limit,
                    timeout_stop=15.0,
                    stdout_file=f"{folder}/stdout.log",
                    stderr_file=f"{folder}/stderr.log",
                ),
                deadline=b.call("start of the stage", limits.UNIT_JOB),
            )
        return None

    return b.persist(f"start of {step.step}", start)


def _forget(b: BorrowedHost, unit: str) -> None:
    """Have systemd forget a unit that failed, and wait until it has: a transient unit needs its name free."""
    deadline = b.call(f"systemd to forget {unit}")
    with suppress(UnitNotFound):
        b.systemd().reset_failed(unit, deadline=deadline)
    while b.host.systemd().status(unit, deadline=deadline).load_state != "not-found":
        deadline.check(where=f"{unit} on {b.name}")
        b.cancellation.wait(limits.POLL_STEP)


def _follow(b: BorrowedHost, step: Measure, invocation: Invocation, tail: Tail) -> None:
    deadline = Deadline(invocation.limit + limits.STEP_GRACE, f"{step.step} on {b.name}")
    planned = {cell.id for cell in step.planned}
    ended: dict[str, dict[str, Any]] = {}
    while True:
        b.heartbeat.check()
        b.cancellation.check()
        b.watch.check_now_and_then(b)
        status = b.persist("a look at the stage", lambda: b.host.systemd().status(step.unit, deadline=b.call("status")))
        before = len(ended)
        for record in b.persist("results", lambda: tail.read(b.host)):
            _show(b, record, planned, ended)
        if len(ended) > before:
            b.recorder.journal.step_state(
                b.run, b.name, step.phase or 0, step.position, State.RUNNING, result=so_far(step, ended)
            )
        if status.load_state == "not-found" or status.stopped:
            return
        deadline.check(seen=f"{status.active_state} ({status.sub_state})", where=f"{step.unit} on {b.name}")
        b.cancellation.wait(limits.POLL_STEP)


def so_far(step: Measure, ended: Mapping[str, Mapping[str, Any]]) -> StepResult:
    """Return a step at work: what its stage says of cells that ended, none of it judged yet."""
    cells = []
    for cell in step.planned:
        said = ended.get(cell.id)
        if said is not None:
            state = State.FAILED if said.get("state") == State.FAILED else State.VERIFYING
            cells.append(cell.model_copy(update={"state": state, "reason": str(said.get("reason") or "")}))
        else:
            cells.append(cell)
    return StepResult(stage=step.stage, state=State.RUNNING, cells=tuple(cells))


def _show(b: BorrowedHost, record: dict[str, Any], planned: set[str], ended: dict[str, dict[str, Any]]) -> None:
    kind = record.get("record")
    if kind == "cell" and record.get("id") in planned:
        ended[str(record["id"])] = record
        b.progress(
            "step.cell",
            f"{record['id']}: {record.get('state')}{_why(record)} ({len(ended)} of {len(planned)})",
            cell=record["id"],
            state=record.get("state"),
            done=len(ended),
            of=len(planned),
        )
    elif kind == "progress":
        b.progress("step.progress", str(record.get("text", "")), done=record.get("done"), of=record.get("of"))


def _why(record: dict[str, Any]) -> str:
    return f" ({record['reason']})" if record.get("reason") else ""


def stop_stray(b: BorrowedHost, action: StopStage) -> Done:
    """Stop a stage that the playbook does not want any more."""
    stop_stage(b, action.unit)
    return seen("systemd", f"{action.unit} is stopped")


def stop_stage(b: BorrowedHost, unit: str) -> None:
    """Stop a stage by its unit: also when the run was cancelled, since what it started must not stay."""

    def stop() -> None:
        b.heartbeat.check()
        with b.recorder.journal.mutation(b.run, b.name, "stop stage", unit):
            if not b.host.systemd().status(unit, deadline=b.call("status")).stopped:
                b.systemd().stop(unit, deadline=b.call("stop of the stage", limits.UNIT_JOB))

    b.persist(f"stop of {unit}", stop)

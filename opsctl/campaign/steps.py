"""Carrying one step out: a transient unit on the host, its results tailed, its artifacts fetched, a verdict.

The unit outlives a lost link and a dead controller; whoever comes back re-attaches to it by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.artifacts import collect_folder
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.stage_result import Ending, Tail, with_ending
from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded, Interrupted, OpsctlError, StageError
from opsctl.host.protocol import TransientUnit
from opsctl.payload import build_zipapp
from opsctl.results import Cell, State, StepResult
from opsctl.stages import STAGES
from opsctl.stages.base import Invocation, StageContext


@dataclass(frozen=True)
class PlannedStep:
    """One step of a run on a host: its place in the journal and everything that its stage needs."""

    id: str
    ordinal: int
    position: int
    stage: str
    options: Any
    context: StageContext
    cells: tuple[Cell, ...]
    collect_into: Path
    """The run's folder on the controller."""
    hash: str
    """Of the step as asked for, its service, and the unit on the host: what a resume compares."""

    @property
    def folder(self) -> Path:
        """Where its artifacts go on the controller."""
        return self.collect_into / step_slug(self.id)

    @property
    def unit(self) -> str:
        """The transient unit's name, from which a resumed controller finds it again."""
        return f"opsctl-{self.context.run}-p{self.ordinal}s{self.position}-{self.hash[:6]}.service"


def step_slug(step: str) -> str:
    """Return a step's id as a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", step)


def run_step(b: BorrowedHost, step: PlannedStep) -> StepResult:
    """Run a step to its verdict; what it could not do is in the result, cell by cell.

    Cut short by a cancelled run or its own deadline, its unit is stopped and what it had is collected and judged.
    Raises LeaseLost, TransportLost, and Interrupted when it had not begun.
    """
    stage = STAGES[step.stage]
    try:
        invocation = stage.invocation(step.options, step.context, step.cells)
    except StageError as error:
        return failed_whole(step, "; ".join(error.lines()))
    _start(b, step, invocation)
    tail = Tail(f"{step.context.folder}/results.jsonl")
    cut_short: OpsctlError | None = None
    try:
        _follow(b, step, invocation, tail)
    except (Interrupted, DeadlineExceeded) as error:
        cut_short = error
        stop_stage(b, step.unit)
    status = b.persist("end of the stage", lambda: b.host.systemd().status(step.unit, deadline=b.call("status")))
    b.persist("last results", lambda: tail.read(b.host))
    collected = b.persist(
        "artifacts",
        lambda: collect_folder(b.host, step.context.folder, step.folder, invocation.collect),
    )
    ending = Ending(step.unit, status, tail.records, collected, step.collect_into, cut_short)
    return with_ending(stage.judge(step.options, step.context, step.cells, tail.records), ending)


def failed_whole(step: PlannedStep, reason: str, state: State = State.FAILED) -> StepResult:
    """Return a result in which every planned cell shares one fate."""
    cells = tuple(cell.model_copy(update={"state": state, "reason": reason}) for cell in step.cells)
    return StepResult(stage=step.stage, state=state, reason=reason, cells=cells)


def _start(b: BorrowedHost, step: PlannedStep, invocation: Invocation) -> None:
    folder = step.context.folder
    deadline = b.call("start of the stage", limits.TRANSFER)

    def start() -> None:
        status = b.host.systemd().status(step.unit, deadline=b.call("status"))
        if status.load_state != "not-found" and not status.stopped:
            b.say("step.progress", f"re-attached to {step.unit}, which still runs")
            return
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
                    description=f"opsctl {b.run}: {step.id}",
                    working_directory=folder,
                    runtime_max=invocation.limit,
                    timeout_stop=15.0,
                    stdout_file=f"{folder}/stdout.log",
                    stderr_file=f"{folder}/stderr.log",
                ),
                deadline=b.call("start of the stage", limits.UNIT_JOB),
            )

    b.persist(f"start of {step.id}", start)


def _follow(b: BorrowedHost, step: PlannedStep, invocation: Invocation, tail: Tail) -> None:
    deadline = Deadline(invocation.limit + limits.STEP_GRACE, f"{step.id} on {b.name}")
    planned = {cell.id for cell in step.cells}
    ended: dict[str, dict[str, Any]] = {}
    while True:
        b.heartbeat.check()
        b.cancellation.check()
        status = b.persist("a look at the stage", lambda: b.host.systemd().status(step.unit, deadline=b.call("status")))
        before = len(ended)
        for record in b.persist("results", lambda: tail.read(b.host)):
            _show(b, record, planned, ended)
        if len(ended) > before:
            b.recorder.journal.step_state(
                b.run, b.name, step.ordinal, step.position, State.RUNNING, result=so_far(step, ended)
            )
        if status.load_state == "not-found" or status.stopped:
            return
        deadline.check(seen=f"{status.active_state} ({status.sub_state})", where=f"{step.unit} on {b.name}")
        b.cancellation.wait(limits.POLL_STEP)


def so_far(step: PlannedStep, ended: Mapping[str, Mapping[str, Any]]) -> StepResult:
    """Return a step at work: what its stage says of cells that ended, none of it judged yet."""
    cells = []
    for cell in step.cells:
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


def stop_stage(b: BorrowedHost, unit: str) -> None:
    """Stop a stage by its unit: also when the run was cancelled, since what it started must not stay."""

    def stop() -> None:
        b.heartbeat.check()
        with b.recorder.journal.mutation(b.run, b.name, "stop stage", unit):
            if not b.host.systemd().status(unit, deadline=b.call("status")).stopped:
                b.systemd().stop(unit, deadline=b.call("stop of the stage", limits.UNIT_JOB))

    b.persist(f"stop of {unit}", stop)

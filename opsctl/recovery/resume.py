"""Going on with a run whose controller died, lost its link, or was interrupted.

What counts is what the host says, never what the journal hoped: a mutation that began and did not end is
looked up, a lease that still holds is taken over, a stage that still runs is re-attached to by its name,
and only steps that are verified *and* unchanged are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack

from opsctl.campaign import limits
from opsctl.campaign.definition import RunRequest, read_definition
from opsctl.campaign.runner import Run, arm_all, borrow_all, carry_out_all, conclude, connect_all, finish
from opsctl.deadline import Deadline
from opsctl.errors import ExitCode, JournalError, OpsctlError
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease, LeaseView
from opsctl.host.protocol import Host
from opsctl.plan.facts import Resumed
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import State
from opsctl.runs.events import Recorder, Sink
from opsctl.runs.journal import Journal
from opsctl.runs.reading import LEFT
from opsctl.serving import readiness

_LOOK_EVERY = 1.0


def resume(run: str, journal: Journal, sinks: Sequence[Sink]) -> ExitCode:
    """Go on with a run. Raises JournalError when it has a living controller, or ended verified."""
    row = journal.query("SELECT * FROM runs WHERE run=?", run)[0]
    if row["outcome"] == "verified":
        raise JournalError(f"run {run} ended verified: there is nothing to resume", hint=f"opsctl status {run}")
    journal.lock_run(run)
    recorder = Recorder(run, journal, sinks)
    try:
        definition = read_definition(RunRequest.from_document(json.loads(row["definition"])))
    except OpsctlError as error:
        # The run may have production down: that, and not the file, decides what is said.
        return conclude(recorder, error).code
    journal.reopen_run(run)
    (journal.run_folder(run) / LEFT).unlink(missing_ok=True)
    work = Run(definition, recorder)
    return finish(work, lambda: _go_on(work))


def _go_on(work: Run) -> None:
    with ExitStack() as stack:
        hosts = connect_all(work, stack)
        for host in hosts:
            _resolve_mutations(work, host)
        left = {host.name: _left(work, host) for host in hosts}
        work.cancellation.check()
        borrow_all(work, hosts, left)
        arm_all(work)
        carry_out_all(work)


def _resolve_mutations(work: Run, host: Host) -> None:
    """Settle what began and did not end, by looking at the unit that it was about."""
    for mutation in work.recorder.journal.unfinished(work.id):
        if mutation["host"] != host.name:
            continue
        subject = mutation["subject"]
        outcome = "seen after the crash: the host has no such unit"
        if subject.endswith((".service", ".slice")):
            status = host.systemd().status(subject, deadline=Deadline(limits.CALL, f"status of {subject}"))
            outcome = f"seen after the crash: {subject} is {status.active_state} ({status.sub_state})"
        work.recorder.journal.resolve(mutation["id"], outcome)
        work.recorder.say("run.resolved", f"{mutation['action']} {subject} had begun: {outcome}", host=host.name)


def _left(work: Run, host: Host) -> Resumed:
    """Return what the earlier controller left on a host; a lease that no longer fits is given back first.

    Raises HostHeld where somebody else holds the host.
    """
    journal = work.recorder.journal
    production = work.definition.inventory.only_production(host.name)
    rows = journal.query("SELECT * FROM hosts WHERE run=? AND host=?", work.id, host.name)
    as_found = str(rows[0]["as_found"]) if rows else "unknown"
    view = _await_guard(work, host, production)
    if view is not None and view.live and view.run != work.id:
        raise control.held_error(host.name, view, wanted="go on with the run")
    host.listener = view.listener if view is not None and view.run == work.id else ""
    held = view is not None and view.state == "held"
    if view is not None and view.run == work.id and not held:
        _note_the_guard(work, host, production, view)
    if held and view is not None and not view.unit and _serves(host, production):
        # Armed where production was down and to stay so. It serves now: only a new lease brings it back.
        lease = Lease(view.token, view.run, view.ttl, view.boot_id, view.remaining, view.tick_age)
        with journal.mutation(work.id, host.name, "release", "lease"):
            control.release(host, lease, deadline=Deadline(limits.CALL, f"release on {host.name}"))
        held = False
    return Resumed(
        as_found=as_found,
        token=view.token if held and view is not None else None,
        done=frozenset(_verified_steps(journal, work.id, host.name)),
        stages=_running_stages(work, host),
        dependents=tuple(json.loads(rows[0]["dependents"])) if rows else (),
        triggers=tuple(json.loads(rows[0]["triggers"])) if rows else (),
        engine_version=rows[0]["engine_version"] if rows else None,
    )


def _note_the_guard(work: Run, host: Host, production: ResolvedService, view: LeaseView) -> None:
    """Record what the guard did meanwhile, and that production serves only where it is seen to."""
    journal, recorder = work.recorder.journal, work.recorder
    state = readiness.observe(host, production, deadline=Deadline(limits.CONNECT, f"a look at {production.name}"))
    who = "the lease ended" if view.closed_by not in {"", "guard"} else "the guard acted"
    words = f"{who} meanwhile: {view.describe()}; the phase starts anew"
    if not state.serving:
        recorder.say("run.resolved", f"{words}; production does not serve: {state.seen}", host=host.name)
        return
    (row,) = journal.query("SELECT * FROM hosts WHERE run=? AND host=?", work.id, host.name)
    back = {"back_at": view.closed_at or None} if row["down_since"] and not row["back_at"] else {}
    by = "guard" if view.closed_by == "guard" else row["restored_by"]
    journal.update_host(work.id, host.name, verified=1, evidence=list(state.evidence), restored_by=by, **back)
    recorder.say("production.verified", words, host=host.name, service=production.name)


def _await_guard(work: Run, host: Host, production: ResolvedService) -> LeaseView | None:
    """Return what the guard says, once it is not in the middle of a restore."""
    deadline = Deadline(
        production.stop.limit + production.stop.gpu_limit + production.readiness.limit,
        f"the guard's restore on {host.name}",
    )
    while True:
        view = control.show(host, deadline=Deadline(limits.CALL, f"lease of {host.name}"))
        if view is None or view.state != "restoring" or view.unverified:
            return view
        work.recorder.progress("restore.attempt", view.describe(), host=host.name)
        work.cancellation.check()
        deadline.check(seen=view.describe(), where=host.name, hint=f"opsctl lease show {host.name}")
        work.cancellation.wait(_LOOK_EVERY)


def _serves(host: Host, production: ResolvedService) -> bool:
    deadline = Deadline(limits.CONNECT, f"a look at {production.name}")
    return readiness.observe(host, production, deadline=deadline).serving


def _verified_steps(journal: Journal, run: str, host: str) -> list[tuple[str, str]]:
    rows = journal.query("SELECT id, hash FROM steps WHERE run=? AND host=? AND state=?", run, host, State.VERIFIED)
    return [(row["id"], row["hash"]) for row in rows]


def _running_stages(work: Run, host: Host) -> tuple[str, ...]:
    """Return the units of this run's stages that still run."""
    units = host.systemd().list_units(
        f"opsctl-{work.id}-*.service",
        deadline=Deadline(limits.CALL, f"stages on {host.name}"),
    )
    return tuple(unit.name for unit in units if not unit.stopped)

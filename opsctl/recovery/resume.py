"""Going on with a run whose controller died, lost its link, or was interrupted.

What counts is what the host says, never what the journal hoped: a mutation that began and did not end is
looked up, a lease that still holds is taken over, a stage that still runs is re-attached to by its name,
and only steps that are verified *and* unchanged are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack

from opsctl.campaign import host_run, limits, preflight
from opsctl.campaign.definition import RunRequest, read_definition
from opsctl.campaign.preflight import Prepared
from opsctl.campaign.runner import Run, carry_out_all, connect_all, finish
from opsctl.campaign.step_plan import plan_phases
from opsctl.deadline import Deadline
from opsctl.errors import ExitCode, HostHeld, JournalError
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease, LeaseView
from opsctl.host.protocol import Host
from opsctl.results import State, StepResult
from opsctl.runs.events import Recorder, Sink
from opsctl.runs.journal import Journal
from opsctl.runs.reading import LEFT

_LOOK_EVERY = 1.0


def resume(run: str, journal: Journal, sinks: Sequence[Sink]) -> ExitCode:
    """Go on with a run. Raises JournalError when it has a living controller, or ended verified."""
    row = journal.query("SELECT * FROM runs WHERE run=?", run)[0]
    if row["outcome"] == "verified":
        raise JournalError(f"run {run} ended verified: there is nothing to resume", hint=f"opsctl status {run}")
    journal.lock_run(run)
    definition = read_definition(RunRequest.from_document(json.loads(row["definition"])))
    journal.reopen_run(run)
    (journal.run_folder(run) / LEFT).unlink(missing_ok=True)
    work = Run(definition, Recorder(run, journal, sinks))
    return finish(work, lambda: _go_on(work))


def _go_on(work: Run) -> None:
    with ExitStack() as stack:
        hosts = connect_all(work, stack)
        for host in hosts:
            _resolve_mutations(work, host)
        prepared = [_prepare(work, host) for host in hosts]
        work.cancellation.check()
        armed = []
        for each, lease in prepared:
            if lease is None:
                preflight.refuse_unfit(each, work.definition, work.recorder)
            plan_phases(
                work.definition.playbook.by_host[each.host.name],
                each,
                work.recorder,
                work.definition.peers,
            )
            each.strays = _strays(work, each)
        for each, lease in prepared:
            ttl = work.definition.playbook.by_host[each.host.name].lease.ttl
            armed.append((each, lease or host_run.arm(each, work.recorder, ttl)))
        carry_out_all(work, armed)


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


def _prepare(work: Run, host: Host) -> tuple[Prepared, Lease | None]:
    """Look at a host again. Returns the lease when it still holds; None when the guard has restored production."""
    journal, recorder = work.recorder.journal, work.recorder
    before = journal.query("SELECT * FROM hosts WHERE run=? AND host=?", work.id, host.name)
    view = _await_guard(work, host)
    if view is not None and view.state == "held" and view.run != work.id:
        raise HostHeld(
            f"{host.name} is held by {view.holder}",
            seen=view.describe(),
            where=host.name,
            hint=f"wait (opsctl lease show {host.name}); only where they are gone: opsctl lease break {host.name}",
        )
    held = view is not None and view.state == "held"
    found = dict(before[0]) if before else {}
    prepared = preflight.prepare(work.definition, host, recorder)
    prepared.done = _verified_steps(journal, work.id, host.name)
    if held and view is not None:
        lease = Lease(view.token, view.run, view.ttl, view.boot_id, view.remaining, view.tick_age)
        prepared.dependents = tuple(json.loads(found.get("dependents", "[]")))
        prepared.touched = found.get("down_since") is not None and not found.get("verified")
        prepared.serving = _serving_now(host, prepared)
        prepared.engine_version = found.get("engine_version")
        journal.update_host(
            work.id,
            host.name,
            as_found=found.get("as_found", "unknown"),
            dependents=list(prepared.dependents),
            token=lease.token,
        )
        recorder.say(
            "lease.armed", f"the lease on {host.name} still holds: taken over", host=host.name, token=view.token
        )
        return prepared, lease
    if view is not None and view.run == work.id:
        recorder.say(
            "production.verified",
            f"the guard acted meanwhile: {view.describe()}; the phase starts anew",
            host=host.name,
        )
        if found.get("down_since") and not found.get("back_at"):
            journal.update_host(work.id, host.name, back_at=view.closed_at or None, restored_by="guard", verified=1)
    return prepared, None


def _await_guard(work: Run, host: Host) -> LeaseView | None:
    """Return what the guard says, once it is not in the middle of a restore."""
    production = work.definition.production(host.name)
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


def _verified_steps(journal: Journal, run: str, host: str) -> dict[tuple[str, str], StepResult]:
    rows = journal.query("SELECT * FROM steps WHERE run=? AND host=? AND state=?", run, host, State.VERIFIED)
    return {(row["id"], row["hash"]): StepResult.model_validate_json(row["result"]) for row in rows}


def _serving_now(host: Host, prepared: Prepared) -> str | None:
    """Return the service whose unit runs, whatever it is doing."""
    for service in prepared.services.values():
        if not host.systemd().status(service.unit, deadline=Deadline(limits.CALL, f"status of {service.unit}")).stopped:
            return service.name
    return None


def _strays(work: Run, prepared: Prepared) -> tuple[str, ...]:
    """Return stages of this run that go on although the playbook changed under them."""
    wanted = {step.unit for phase in prepared.phases for step in phase.steps}
    units = prepared.host.systemd().list_units(
        f"opsctl-{work.id}-*.service",
        deadline=Deadline(limits.CALL, f"stages on {prepared.host.name}"),
    )
    return tuple(unit.name for unit in units if unit.name not in wanted and not unit.stopped)

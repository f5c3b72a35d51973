"""A run: every host looked at, all armed or none, each carried out in a thread of its own, one exit code.

The main thread does nothing but listen: to signals, and to the hosts' threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from opsctl import __version__
from opsctl.campaign import execution, host_run, leasing, limits, preflight
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.cancellation import Cancellation, listening_for_signals
from opsctl.campaign.definition import Definition
from opsctl.campaign.executors import EXECUTORS
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import ExitCode, HostHeld, JournalError, OpsctlError, as_defect
from opsctl.host import connect
from opsctl.host.guard import control
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host
from opsctl.plan import Plan, plan
from opsctl.plan.actions import TakeOver
from opsctl.plan.facts import Resumed
from opsctl.runs.events import Recorder, Sink
from opsctl.runs.journal import Journal
from opsctl.runs.reading import LEFT
from opsctl.runs.verdict import Verdict, verdict_of


@dataclass
class Run:
    """One run at work."""

    definition: Definition
    recorder: Recorder
    cancellation: Cancellation = field(default_factory=Cancellation)
    borrowed: list[BorrowedHost] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.recorder.run

    def leaving_notice(self) -> str:
        """Return when the guard acts, for whoever leaves at once."""
        armed = [b for b in self.borrowed if b.armed]
        if not armed:
            return "Nothing was touched."
        return " ".join(
            f"{b.name}: {b.heartbeat.when_the_guard_acts()}; at once: opsctl rollback {b.name}." for b in armed
        )

    def leaving(self, signal: str) -> None:
        """Leave a note in the run's folder: this controller did not die, a person sent it away.

        A file, and not the journal: this is called in a signal handler, which must wait for no lock.
        """
        with suppress(OSError):
            note = f"left at once, at {now()}, by {signal} after a first signal; its guard restores production\n"
            (self.recorder.journal.run_folder(self.id) / LEFT).write_text(note)


def begin(definition: Definition, run: str, journal: Journal, sinks: Sequence[Sink]) -> ExitCode:
    """Carry a new run out, from its first record to its summary, and return the exit code."""
    journal.begin_run(
        run,
        playbook=definition.playbook.name,
        file=str(definition.playbook.path),
        version=__version__,
        # The file itself, not the name by which it was found: a resume may be typed in another folder.
        definition={**definition.request.document(), "playbook": str(definition.playbook.path.resolve())},
    )
    work = Run(definition, Recorder(run, journal, sinks))
    return finish(work, lambda: _from_the_start(work))


def finish(work: Run, body: Callable[[], None]) -> ExitCode:
    """Do the body of a run under the signals' care, and record how it ended."""
    recorder = work.recorder
    error: OpsctlError | None = None
    with listening_for_signals(work.cancellation, work.leaving_notice, work.leaving):
        try:
            recorder.say(
                "run.begun", f"run {work.id} of {work.definition.playbook.name} on {', '.join(work.definition.hosts)}"
            )
            body()
        except Exception as caught:  # noqa: BLE001 - the person is told in words, whatever it is
            error = caught if isinstance(caught, OpsctlError) else as_defect(caught)
    return conclude(recorder, error, interrupted=work.cancellation.by_signal).code


def conclude(recorder: Recorder, error: OpsctlError | None, *, interrupted: bool = False) -> Verdict:
    """Record what ended a run, derive from its journal how it ended, and say so."""
    journal, run = recorder.journal, recorder.run
    # Even when the disk fails, the outcome is printed and the exit code is correct.
    journal.forgive()
    code = int(error.exit_code) if error else None
    journal.run_failure(run, interrupted=interrupted, error=str(error) if error else "", code=code)
    journal.end_holds(run)
    try:
        verdict = verdict_of(journal, run)
    except JournalError as unreadable:
        verdict = Verdict(ExitCode.PRODUCTION_NOT_VERIFIED, str(unreadable))
    journal.end_run(run, outcome=verdict.outcome, exit_code=int(verdict.code), reason=verdict.reason)
    with suppress(JournalError):
        recorder.say(
            "run.ended",
            f"{verdict.outcome}{': ' + verdict.reason if verdict.reason else ''}",
            exit_code=int(verdict.code),
            error=error.lines() if error else [],
        )
    return verdict


def _from_the_start(work: Run) -> None:
    with ExitStack() as stack:
        hosts = connect_all(work, stack)
        borrow_all(work, hosts, {})
        arm_all(work)
        carry_out_all(work)


def connect_all(work: Run, stack: ExitStack) -> list[Host]:
    """Connect to every host of the run, in order. Raises HostError."""
    hosts = []
    for name in work.definition.hosts:
        host = work.cancellation.during(partial(_connect, work.definition, name))
        stack.callback(host.close)
        boot = ride_out(host, partial(host.boot_id, deadline=Deadline(limits.CALL, f"boot_id of {name}")))
        work.recorder.say("host.connected", f"connected to {name}", host=name, boot_id=boot)
        hosts.append(host)
    return hosts


def _connect(definition: Definition, name: str) -> Host:
    return connect(name, definition.inventory.host(name), deadline=Deadline(limits.CONNECT, f"connection to {name}"))


def borrow_all(work: Run, hosts: Sequence[Host], resumed: dict[str, Resumed]) -> None:
    """Look at every host, refuse what is not fit, and plan the run to the last cell. Nothing is touched.

    Raises the first refusal of the first host that has one.
    """
    definition, recorder = work.definition, work.recorder
    seen = {host.name: _look(work, host, resumed.get(host.name)) for host in hosts}
    made = plan(
        definition.playbook.by_host,
        definition.inventory,
        {name: one.facts for name, one in seen.items()},
        run=work.id,
        if_down=definition.request.if_down,
    )
    _refuse_unfit(made, seen)
    for planned in made.hosts:
        b = BorrowedHost(
            host=seen[planned.host].host,
            recorder=recorder,
            cancellation=work.cancellation,
            plan=planned,
            executors=EXECUTORS,
            connect=lambda name=planned.host: _connect(definition, name),  # type: ignore[misc]
            kill_foreign=definition.request.kill_foreign,
        )
        execution.record(b)
        found = seen[planned.host]
        status = found.found.status
        if status is not None and status.active:
            b.holds(found.production.name, str(found.production.role))
        if status is not None and status.stopped:
            b.watch.is_down(status)
        (row,) = recorder.journal.query("SELECT * FROM hosts WHERE run=? AND host=?", work.id, b.name)
        b.touched = not found.found.serving or (row["down_since"] is not None and not row["verified"])
        work.borrowed.append(b)


def _look(work: Run, host: Host, resumed: Resumed | None) -> preflight.Preflight:
    seen = ride_out(
        host,
        partial(
            preflight.look,
            host,
            work.definition.services(host.name),
            work.recorder.journal,
            if_down=work.definition.request.if_down,
            kill_foreign=work.definition.request.kill_foreign,
            resumed=resumed,
        ),
    )
    preflight.say(work.recorder, seen)
    return seen


def _refuse_unfit(made: Plan, seen: dict[str, preflight.Preflight]) -> None:
    for planned in made.hosts:
        for refusal in planned.refusals:
            if isinstance(refusal, HostHeld):
                # A lease that no guard watches would never end: its guard is woken, and says who holds the host.
                host = seen[planned.host].host
                lease = Deadline(limits.CALL, f"the lease on {host.name}")
                control.refuse_held(host, deadline=lease, hint=refusal.hint or "")
            raise refusal


def arm_all(work: Run) -> None:
    """Arm every host in sorted order, all or none."""
    work.cancellation.check()
    try:
        for b in work.borrowed:
            execution.arm(b)
    except OpsctlError as error:
        for b in work.borrowed:
            b.skip(b.plan.actions, f"not reached: {error}")
            b.let_go()
            if b.armed and not any(isinstance(action, TakeOver) for action in b.plan.setup):
                with suppress(OpsctlError):
                    leasing.disarm(b.host, b.run, b.recorder.journal, b.lease)
                    words = f"the lease on {b.name} is released; nothing was touched"
                    b.recorder.say("lease.released", words, host=b.name)
        raise


def carry_out_all(work: Run) -> None:
    """Carry out every host in a thread of its own; one that fails stops the others, and each gives its host back."""
    threads = [
        threading.Thread(target=_carry_out, args=(work, b), name=f"campaign on {b.name}", daemon=True)
        for b in work.borrowed
    ]
    for thread in threads:
        thread.start()
    limit = Deadline(max(p.limit for p in work.definition.playbook.by_host.values()), "all phases together")
    while any(thread.is_alive() for thread in threads):
        next((thread for thread in threads if thread.is_alive()), threads[0]).join(0.2)
        if limit.expired and not work.cancellation.requested:
            work.cancellation.request(f"the phases did not end within {limit.seconds:g} s")


def _carry_out(work: Run, b: BorrowedHost) -> None:
    failure = host_run.carry_out(b)
    if failure is not None:
        work.cancellation.request(f"{b.name} failed: {failure}")

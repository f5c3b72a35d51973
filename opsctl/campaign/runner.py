"""A whole run: every host looked at, all armed or none, each carried out in a thread of its own, one exit code.

The main thread does nothing but listen: to signals, and to the hosts' threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from opsctl import __version__
from opsctl.campaign import host_run, limits, preflight
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.cancellation import Cancellation, listening_for_signals
from opsctl.campaign.definition import Definition
from opsctl.campaign.host_run import HostOutcome
from opsctl.campaign.phases import Policy
from opsctl.campaign.preflight import Prepared
from opsctl.campaign.step_plan import plan_phases
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import ExitCode, HostError, JournalError, OpsctlError, UnfitError, as_defect
from opsctl.host import connect
from opsctl.host.guard.control import Lease
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host
from opsctl.results import State
from opsctl.runs.events import Recorder, Sink
from opsctl.runs.journal import Journal
from opsctl.runs.reading import LEFT

_SEVERITY = (
    ExitCode.PRODUCTION_NOT_VERIFIED,
    ExitCode.INTERRUPTED,
    ExitCode.HELD,
    ExitCode.UNFIT,
    ExitCode.FAILED,
    ExitCode.INCONCLUSIVE,
    ExitCode.VERIFIED,
)
_OUTCOMES = {
    ExitCode.VERIFIED: "verified",
    ExitCode.FAILED: "failed",
    ExitCode.UNFIT: "not fit",
    ExitCode.PRODUCTION_NOT_VERIFIED: "production not verified",
    ExitCode.HELD: "held by someone else",
    ExitCode.INCONCLUSIVE: "inconclusive",
    ExitCode.INTERRUPTED: "interrupted",
}


@dataclass
class Run:
    """One run at work."""

    definition: Definition
    recorder: Recorder
    cancellation: Cancellation = field(default_factory=Cancellation)
    borrowed: list[BorrowedHost] = field(default_factory=list)
    outcomes: dict[str, HostOutcome] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The run's id."""
        return self.recorder.run

    def last_words(self) -> str:
        """Return when the guard acts, for whoever leaves at once."""
        if not self.borrowed:
            return "Nothing was touched."
        return " ".join(f"{b.name}: {b.heartbeat.last_words()}." for b in self.borrowed)

    def leaving(self, signal: str) -> None:
        """Leave a note in the run's folder: this controller did not die, a person sent it away.

        A file, and not the journal: this is called in a signal handler, which must wait for no lock.
        """
        with suppress(OSError):
            note = f"left at once, at {now()}, by {signal} after a first signal; its guard restores production\n"
            (self.recorder.journal.run_folder(self.id) / LEFT).write_text(note)


def begin(definition: Definition, run: str, journal: Journal, sinks: Sequence[Sink]) -> ExitCode:
    """Carry a new run out, from its first record to its last word, and return the exit code."""
    journal.begin_run(
        run,
        playbook=definition.playbook.name,
        file=str(definition.playbook.path),
        version=__version__,
        # The file itself, not the name by which it was found: a resume may be typed in another folder.
        definition={**definition.request.document(), "playbook": str(definition.playbook.path.resolve())},
    )
    recorder = Recorder(run, journal, sinks)
    work = Run(definition, recorder)
    return finish(work, lambda: _from_the_start(work))


def finish(work: Run, body: Callable[[], None]) -> ExitCode:
    """Do the body of a run under the signals' care, and record how it ended."""
    recorder = work.recorder
    error: OpsctlError | None = None
    with listening_for_signals(work.cancellation, work.last_words, work.leaving):
        recorder.say(
            "run.begun", f"run {work.id} of {work.definition.playbook.name} on {', '.join(work.definition.hosts)}"
        )
        try:
            body()
        except Exception as caught:  # noqa: BLE001 - the person is told in words, whatever it is
            error = caught if isinstance(caught, OpsctlError) else as_defect(caught)
    code = _exit_code(work, error)
    reason = _reason(work, error)
    # Whatever the disk says: the person hears how it ended, and the exit code is true.
    with suppress(JournalError):
        recorder.journal.end_holds(work.id)
        recorder.journal.end_run(work.id, outcome=_OUTCOMES[code], exit_code=int(code), reason=reason)
    with suppress(JournalError):
        recorder.say(
            "run.ended",
            f"{_OUTCOMES[code]}{': ' + reason if reason else ''}",
            exit_code=int(code),
            error=error.lines() if error else [],
        )
    return code


def _from_the_start(work: Run) -> None:
    with ExitStack() as stack:
        hosts = connect_all(work, stack)
        prepared = [ride_out(host, partial(preflight.prepare, work.definition, host, work.recorder)) for host in hosts]
        for each in prepared:
            ride_out(each.host, partial(preflight.refuse_unfit, each, work.definition, work.recorder))
            by_host = work.definition.playbook.by_host[each.host.name]
            ride_out(each.host, partial(plan_phases, by_host, each, work.recorder, work.definition.peers))
        work.cancellation.check()
        leases = _arm_all(work, prepared)
        carry_out_all(work, [(each, leases[each.host.name]) for each in prepared])


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


def _arm_all(work: Run, prepared: list[Prepared]) -> dict[str, Lease]:
    """Arm every host in sorted order, all or none."""
    leases: dict[str, Lease] = {}
    try:
        for each in prepared:
            ttl = work.definition.playbook.by_host[each.host.name].lease.ttl
            leases[each.host.name] = ride_out(each.host, partial(host_run.arm, each, work.recorder, ttl))
    except OpsctlError:
        for each in prepared:
            if each.host.name in leases:
                with suppress(HostError):
                    host_run.disarm(each, leases[each.host.name], work.recorder)
        raise
    return leases


def carry_out_all(work: Run, armed: list[tuple[Prepared, Lease]]) -> None:
    """Carry out every host in a thread of its own; one that fails stops the others, and each gives its host back."""
    threads = []
    for prepared, lease in armed:
        playbook = work.definition.playbook.by_host[prepared.host.name]
        policy = Policy(playbook.load.attempts, work.definition.request.kill_foreign)
        b = host_run.borrow(
            prepared,
            lease,
            ttl=playbook.lease.ttl,
            recorder=work.recorder,
            cancellation=work.cancellation,
            connect=lambda name=prepared.host.name: _connect(work.definition, name),  # type: ignore[misc]
        )
        work.borrowed.append(b)
        threads.append(
            threading.Thread(
                target=_carry_out,
                args=(work, b, prepared, policy),
                name=f"campaign on {prepared.host.name}",
                daemon=True,
            )
        )
    for thread in threads:
        thread.start()
    limit = Deadline(max(p.limit for p in work.definition.playbook.by_host.values()), "all phases together")
    while any(thread.is_alive() for thread in threads):
        next((thread for thread in threads if thread.is_alive()), threads[0]).join(0.2)
        if limit.expired and not work.cancellation.requested:
            work.cancellation.request(f"the phases did not end within {limit.seconds:g} s")


def _carry_out(work: Run, b: BorrowedHost, prepared: Prepared, policy: Policy) -> None:
    outcome = host_run.carry_out(b, prepared, policy)
    work.outcomes[b.name] = outcome
    if outcome.error is not None:
        work.cancellation.request(f"{b.name} failed: {outcome.error}")


def _exit_code(work: Run, error: OpsctlError | None) -> ExitCode:
    """Return the worst of all hosts; before anything was armed, the error's own."""
    codes = {outcome.code for outcome in work.outcomes.values()}
    for b in work.borrowed:
        if b.name not in work.outcomes:
            # Its thread died of something that is no OpsctlError: a defect, and production is not verified.
            codes.add(ExitCode.PRODUCTION_NOT_VERIFIED)
    if error is not None:
        codes.add(ExitCode.UNFIT if isinstance(error, UnfitError) else error.exit_code)
    # Where this process has no outcome of its own: production that went down and was not verified since is not
    # verified. Where it has one, that counts: a journal on a full disk may lack what was seen.
    rows = work.recorder.journal.query(
        "SELECT host FROM hosts WHERE run=? AND down_since IS NOT NULL AND verified=0",
        work.id,
    )
    if {row["host"] for row in rows} - work.outcomes.keys():
        codes.add(ExitCode.PRODUCTION_NOT_VERIFIED)
    return next((code for code in _SEVERITY if code in codes), ExitCode.FAILED)


def _reason(work: Run, error: OpsctlError | None) -> str:
    """Return in words why a run did not end verified; "" when it did."""
    words = [f"{outcome.host}: {outcome.error}" for outcome in work.outcomes.values() if outcome.error]
    words += [f"{b.name}: its thread died: a defect of opsctl" for b in work.borrowed if b.name not in work.outcomes]
    words += [str(error)] if error else []
    if not words:
        rows = work.recorder.journal.query(
            "SELECT host, id, state FROM steps WHERE run=? AND state<>? ORDER BY host, ordinal, position",
            work.id,
            State.VERIFIED,
        )
        words = [f"{row['host']}: {row['id']} {row['state']}" for row in rows]
    return "; ".join(words)

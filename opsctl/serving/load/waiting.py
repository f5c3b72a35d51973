"""The wait for a load: watches unit, journal and HTTP side by side until the server serves or never will."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self, TypeVar

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.engines.phases import LoadPhase
from opsctl.errors import CommandFailed, DeadlineExceeded, LoadFailed, LoadStalled, TransportLost
from opsctl.host.outage import reconnect, ride_out
from opsctl.host.protocol import Host, JournalBatch, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration, format_size
from opsctl.results import Evidence
from opsctl.serving.listening import PortHolder
from opsctl.serving.load.background import Background, BackgroundProbe, Every
from opsctl.serving.load.progress import LoadParser, LoadProgress
from opsctl.serving.load.stalls import StallLimits
from opsctl.serving.load.unit_failure import Death, death_of, fatal_line
from opsctl.serving.load.vitals import STEP, Vitals, read_vitals
from opsctl.serving.probing import Answer, ProbeOutcome, not_ready
from opsctl.serving.unitstate import describe_unit
from opsctl.serving.waits import CALL_LIMIT, TICK, check_cancelled, evidence, pause

Reading = TypeVar("Reading")
Reading_co = TypeVar("Reading_co", covariant=True)


class Collectable(Protocol[Reading_co]):
    """Something that is read in the background."""

    def collect(self, every: float) -> Reading_co | None:
        """Return what was read, if a reading has ended."""
        ...


EAGER_FOR = 30.0
"""Seconds after the start in which everything is looked at often: small models are up by then."""
COUNT_EVERY = 15.0
"""Seconds between two readings of what the unit's processes have done; less once a line suggests their end."""
GRACE = 60.0
"""Seconds without any sign of life after a line that suggests an end: then it is believed."""
_UNVERIFIABLE = {
    ProbeOutcome.UNAUTHORIZED,
    ProbeOutcome.UNTRUSTED,
    ProbeOutcome.FOREIGN,
    ProbeOutcome.OTHER_MODEL,
}
WRONG_FOR = 2.0
"""Seconds that a wrong answer must last before it counts: routes appear one after the other."""


class Load:
    """One load, from its start to its first tokens. Use as a context manager; ``run`` waits."""

    def __init__(
        self,
        host: Host,
        service: ResolvedService,
        *,
        deadline: Deadline,
        started: UnitStatus | None,
        on_progress: Callable[[LoadProgress], None],
        cancelled: Callable[[], bool],
        journal_after: str | None,
        stalls: StallLimits,
    ) -> None:
        self._host, self._service, self._deadline = host, service, deadline
        self._on_progress, self._cancelled, self._stalls = on_progress, cancelled, stalls
        self._cursor = journal_after
        self._prober = BackgroundProbe(host, service, deadline=deadline)
        self._began = time.monotonic()
        self._what = f"the load of {service.name} on {host.name}"
        self._journal = Background(self._read_journal, "journal")
        self._counts = Background(self._read_counts, "counts")
        self._vitals: tuple[float, Vitals] | None = None
        self._alive = 0.0
        self._unit_due, self._report_due = Every(), Every()
        self._journal_readable = True
        self._wrong_since: float | None = None
        self._last_answer = "not asked yet"
        self._stranger: Answer | None = None
        self.status = started or self._read_status()
        self._first = self.status
        self._skew = self._read_skew()
        self._parser = LoadParser(self._started_at(), ENGINES[service.engine])
        self._reported: LoadProgress | None = None
        self.evidence: tuple[Evidence, ...] = ()
        self.version: str | None = None
        self.held: PortHolder | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._prober.close()
        self._journal.close()
        self._counts.close()

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase."""
        return dict(self._parser.state.seconds_by_phase)

    def run(self) -> None:
        """Wait until the server serves. Raises as ``await_ready`` says."""
        while not self._look():
            self._check_stall()
            self._report()
            self._check_deadline()
            self._prober.pause(TICK)
        self._parser.finish(self._now())
        self.seconds = max(0.0, self._now() - self._parser.started)
        asked = ride_out(self._host, self._prober.version, deadline=self._deadline, back=self._prober.renew)
        self.version = asked or self._parser.state.version
        self._on_progress(self._parser.state)

    def _look(self) -> bool:
        """Look at everything once; return whether the server is proven to serve."""
        check_cancelled(self._cancelled, self._what)
        try:
            self._watch_unit()
            self._watch_journal()
            self._watch_counts()
            self._watch_end()
            return self._watch_http() and self._proven()
        except DeadlineExceeded:
            # A reading that the end of the wait cut short: what the wait has seen says more.
            if self._deadline.remaining() < 1.0:
                pause(1.0, deadline=self._deadline, cancelled=self._cancelled, what=self._what)
                self._check_deadline()
            raise

    def _check_deadline(self) -> None:
        self._deadline.check(
            seen=f"{self._parser.state.text}; unit {describe_unit(self.status)}; last answer: {self._last_answer}",
            where=f"host {self._host.name}, {self._service.unit}",
            hint=f"raise readiness.limit of {self._service.name} if the load was merely slow",
        )

    # --- the unit

    def _watch_unit(self) -> None:
        if not self._unit_due.due(0.3 if self._eager else 1.0):
            return
        self.status = ride_out(self._host, self._read_status, deadline=self._deadline)
        death = death_of(self._first, self.status)
        if death is None:
            return
        self._drain_journal()
        raise self._died(death)

    def _died(self, death: Death) -> LoadFailed:
        """Return the error for a unit that died; where somebody else holds its port, that is said first."""
        error = death.error(self._host, self._service, self._parser)
        if self._stranger is not None:
            wanted = not_ready(self._host, self._service, self._stranger)
            error.seen, error.hint = f"{wanted.message}: {wanted.seen}; {error.seen}", wanted.hint
        return error

    def _read_status(self) -> UnitStatus:
        limit = self._deadline.within(CALL_LIMIT, f"reading {self._service.unit}")
        return self._host.systemd().status(self._service.unit, deadline=limit)

    # --- the journal

    def _watch_journal(self) -> None:
        batch = self._collect(self._journal, 0.4 if self._eager else 1.0) if self._journal_readable else None
        self._parser.tick(self._now())
        if batch is not None:
            self._feed(batch)

    def _read_journal(self) -> JournalBatch | None:
        """Return what is new; None where the journal cannot be read, which is done without then."""
        limit = self._deadline.within(CALL_LIMIT, f"the journal of {self._service.unit}")
        try:
            return self._host.journal(self._service.unit, after=self._cursor, deadline=limit)
        except CommandFailed:
            self._journal_readable = False
            return None

    def _feed(self, batch: JournalBatch) -> bool:
        """Take a batch; return whether there was anything in it."""
        self._cursor = batch.cursor
        for line in batch.lines:
            self._parser.feed(line)
        return bool(batch.lines)

    def _drain_journal(self) -> None:
        """Read what a dying server still says, so that the first cause is quoted and not the last echo."""
        until = self._deadline.within(2.0, "the last lines of the journal")
        quiet = 0
        while self._journal_readable and quiet < 2 and not until.expired:
            batch = ride_out(self._host, self._journal.now, deadline=self._deadline)
            quiet = 0 if batch is not None and self._feed(batch) else quiet + 1
            time.sleep(0.1)

    # --- signs of life

    def _watch_counts(self) -> None:
        """Take bytes that were read as movement, up to the end of the weights: the log may be silent about them."""
        suspected = self._parser.judge.suggestion is not None
        if not suspected and (not self._logs_known or self._parser.state.phase.rank > LoadPhase.WEIGHTS.rank):
            return
        vitals = self._collect(self._counts, 2.0 if suspected else COUNT_EVERY)
        if vitals is None:
            return
        now, (since, before) = self._now(), self._vitals or (self._now(), Vitals(read=0))
        if vitals.read is not None and vitals.read >= (before.read or 0) + STEP:
            self._parser.touch(now, f"{format_size(vitals.read)} read")
        elif before.read is not None and vitals.read is not None and not suspected:
            vitals = replace(vitals, read=before.read)  # small reads add up
        if self._vitals is not None and vitals.moved_since(before, now - since):
            self._alive = now
        self._vitals = (now, vitals)

    def _read_counts(self) -> Vitals:
        suspected = self._parser.judge.suggestion is not None
        return read_vitals(self._host, self.status.control_group, gpu=suspected, deadline=self._deadline)

    def _watch_end(self) -> None:
        """Believe a line that suggests an end once a process or silence confirms it. Raises LoadFailed.

        Production is never judged by a line: whoever gives it back waits for systemd, tokens or the limit.
        """
        fatal = self._parser.judge.suggestion
        if fatal is None or not self._service.is_variant:
            return
        alive = max(fatal.when, self._parser.heard, self._parser.state.moved or 0.0, self._alive)
        still = self._now() - alive
        if still < GRACE:
            return
        self._drain_journal()
        proof = f"after it nothing moved for {format_duration(still)}: log, bytes read, CPU time, GPU memory"
        raise fatal_line(self._host, self._service, self._parser, proof)

    # --- HTTP

    def _watch_http(self) -> bool:
        """Look for an answer; return whether completions came often enough in a row."""
        answer = self._collect(self._prober, self._patience)
        if self._prober.listed is not None:
            self._parser.reached(LoadPhase.FIRST_TOKENS, self._now(), "the model is listed")
        if tokens := len(self._prober.tokens):
            self._parser.touch(self._now(), f"completion {tokens} of {self._service.readiness.completions}")
        if answer is None:
            return False
        self._last_answer = answer.seen
        self._judge_wrong(answer)
        return answer.good and len(self._prober.tokens) >= self._service.readiness.completions

    def _collect(self, source: Collectable[Reading], every: float) -> Reading | None:
        """Return what a background reading gave, if it has ended; a lost link is made anew."""
        try:
            return source.collect(every)
        except TransportLost:
            reconnect(self._host, deadline=self._deadline)
            self._prober.renew()
            return None

    def _judge_wrong(self, answer: Answer) -> None:
        """Raise NotReady for an answer that waiting does not mend, once it lasted.

        A stranger on its port ends the load of a variant alone: production is waited for, until it dies of that.
        """
        self._stranger = answer if answer.outcome is ProbeOutcome.STRANGER else None
        wrong = answer.outcome in _UNVERIFIABLE or (self._stranger is not None and self._service.is_variant)
        if not wrong:
            self._wrong_since = None
            return
        now = time.monotonic()
        self._wrong_since = self._wrong_since or now
        if now - self._wrong_since >= WRONG_FOR:
            raise not_ready(self._host, self._service, answer)

    def _proven(self) -> bool:
        """Return whether the unit, read after the completions, is settled and the one that was started."""
        self.status = ride_out(self._host, self._read_status, deadline=self._deadline)
        death = death_of(self._first, self.status)
        if death is not None:
            self._drain_journal()
            raise self._died(death)
        entered = self.status.properties.get("ActiveEnterTimestamp")
        age = self._now() - entered / 1e6 if isinstance(entered, int) else time.monotonic() - self._began
        if age < self._service.readiness.settle:
            return False
        unit = evidence(f"systemd: state of {self._service.unit}", describe_unit(self.status))
        self.held = self._prober.held
        holder = [evidence(f"who listens at {self._service.url}", self.held.seen)] if self.held else []
        listed = [self._prober.listed] if self._prober.listed else []
        self.evidence = (unit, *listed, *self._prober.tokens, *holder)
        return True

    # --- the clock

    @property
    def _eager(self) -> bool:
        """Whether the end may be near, so that it is looked for often; else the host is left in peace."""
        state = self._parser.state
        near = state.phase.rank >= LoadPhase.HTTP_UP.rank or state.last_mark in {"engine ready", "graphs captured"}
        return near or time.monotonic() - self._began < EAGER_FOR

    @property
    def _patience(self) -> float:
        """Seconds between two connection attempts. sshd logs each refused one: few while the server's log suffices."""
        if self._eager:
            return 0.1
        return 2.0 if self._logs_known else 0.4

    @property
    def _logs_known(self) -> bool:
        """Whether the server logs lines that are known: without any, unit and HTTP alone are waited for."""
        return bool(self._parser.state.last_mark)

    def _check_stall(self) -> None:
        state = self._parser.state
        if self._stranger is not None:
            return  # it waits for its port
        if not (self._logs_known or self._stalls.explicit):
            return
        limit = self._stalls.seconds[state.phase]
        still = self._now() - (state.moved or self._parser.started)
        if still <= limit:
            return
        finding = self._parser.judge.finding()
        raise LoadStalled(
            f"{self._what} stands still: nothing moved for {format_duration(still)} in phase {state.phase.value}",
            wanted=f"movement within {format_duration(limit)} ({self._stalls.source})",
            seen=f"{state.text}; last answer: {self._last_answer}"
            + (f"; the log says: {finding.line[:200]}" if finding else ""),
            where=f"host {self._host.name}, {self._service.unit}",
            hint=finding.advice
            if finding
            else "look at the ranks with `py-spy dump --pid PID`; readiness.stall sets this limit",
        )

    def _report(self) -> None:
        self._parser.tick(self._now())
        state = self._parser.state
        if self._stranger is not None:
            state = replace(state, last_mark=f"{self._stranger.outcome.value}: {self._stranger.seen}")
        moved = self._reported is None or state.last_mark != self._reported.last_mark
        if moved or self._report_due.due(1.0):
            self._reported = state
            self._on_progress(state)

    def _now(self) -> float:
        """Return the host's time, from a clock of ours that no wall-clock step moves."""
        return time.monotonic() + self._skew

    def _read_skew(self) -> float:
        limit = self._deadline.within(CALL_LIMIT, "the host's clock")
        said = ride_out(
            self._host,
            lambda: self._host.run(["date", "+%s.%N"], deadline=limit, become=False),
            deadline=self._deadline,
        )
        return float(said.text) - time.monotonic()

    def _started_at(self) -> float:
        """Return the host's time at which the process started, else of now."""
        stamp = self._first.properties.get("ExecMainStartTimestamp")
        started = stamp / 1e6 if isinstance(stamp, int) and stamp > 0 else self._now()
        return min(started, self._now())

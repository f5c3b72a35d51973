"""One host, borrowed from its production by one run: the link, the lease, the fence, and who serves now.

Everything that changes the host goes through ``change``: it looks first whether the run was cancelled and
whether the lease still holds, and stands in the journal before and after. The fence (a bus bridge that dies
with the token) is what makes this safe; that check alone would not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from opsctl.campaign import limits
from opsctl.campaign.cancellation import Cancellation
from opsctl.campaign.heartbeat import Heartbeat
from opsctl.campaign.production_watch import ProductionWatch
from opsctl.deadline import Deadline
from opsctl.errors import Defect, HostRebooted, LeaseError, LeaseLost, ProductionAppeared, TransportLost
from opsctl.host.guard.control import Lease
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host, Systemd, UnitStatus
from opsctl.plan.actions import Action
from opsctl.plan.hostplan import HostPlan
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence, State
from opsctl.runs.events import Recorder
from opsctl.serving.launch.line_edit import Intended
from opsctl.serving.launch.processes import Process
from opsctl.serving.waits import evidence

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """How an action ended, and the evidence for it."""

    evidence: tuple[Evidence, ...]
    state: State = State.VERIFIED
    reason: str = ""

    def proven(self, action: str) -> Done:
        """Return this, unless it has no evidence: that is a defect."""
        if not self.evidence:
            raise Defect(f"{action} ended without evidence")
        return self


@dataclass(frozen=True)
class Loading:
    """A load between its start and its end: what the wait for it must know."""

    id: int
    """In the journal."""
    mark: str | None
    """The host's journal before the start."""
    started: UnitStatus
    began: float
    """On the monotonic clock."""
    fresh: bool = True
    """Whether the unit was started for it: one that ran already says nothing of how long a load takes."""


@dataclass
class BorrowedHost:
    """What a campaign knows and holds of one host.

    ``touched`` is true from the first change of production on: from then on only a verified restore ends the run
    well. ``executors`` carry actions out, by their type.
    """

    host: Host
    recorder: Recorder
    cancellation: Cancellation
    plan: HostPlan
    executors: Mapping[type[Action], Executor]
    connect: Callable[[], Host]
    ttl: float = 300.0
    kill_foreign: bool = False
    touched: bool = False
    restoring: bool = False
    silent: bool = False
    """Whether the last wait for a load saw nothing move, or no end, for as long as that may take."""
    loading: Loading | None = None
    attempt: int = 1
    """Of the load at work."""
    intended: dict[str, Intended] = field(default_factory=dict)
    """What each variant's process must show, by service name."""
    ran: tuple[Process, ...] = ()
    """Production's engine as it ran before the first stop; empty where that could not be read."""
    watch: ProductionWatch = field(default_factory=ProductionWatch)
    phase: str = ""
    step: str = ""
    evidence: tuple[Evidence, ...] = ()
    """That production serves, from the last time it was proven."""
    _lease: Lease | None = None
    _heartbeat: Heartbeat | None = None
    _number: int = 0
    """Of the plan in the journal."""
    _ended: set[str] = field(default_factory=set)
    """Ids of actions that ended once."""

    @property
    def production(self) -> ResolvedService:
        """The service that the run takes down and brings back."""
        return self.plan.production

    @property
    def armed(self) -> bool:
        """Whether this controller holds a lease."""
        return self._lease is not None

    @property
    def lease(self) -> Lease:
        """The lease. Raises LeaseLost where none was armed."""
        if self._lease is None:
            raise LeaseLost(f"no lease is held on {self.name}", where=self.name)
        return self._lease

    @property
    def heartbeat(self) -> Heartbeat:
        """What renews the lease. Raises LeaseLost where none was armed."""
        if self._heartbeat is None:
            raise LeaseLost(f"no lease is held on {self.name}", where=self.name)
        return self._heartbeat

    def hold(self, lease: Lease) -> None:
        """Take a lease, and begin to renew it."""
        self._lease = lease
        self.host.listener = lease.listener
        self._heartbeat = Heartbeat(self.connect, lease, ttl=self.ttl, on_renewed=self._renewed)
        self._heartbeat.start()

    def let_go(self) -> None:
        """End renewing; the lease itself is left as it is."""
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _renewed(self, seconds: float) -> None:
        words = f"lease held for {seconds:.0f} s more"
        self.recorder.progress("lease.renewed", words, host=self.name, remaining=seconds)

    # -- actions

    def record_plan(self) -> None:
        """Write every action of the plan into the journal, pending."""
        self._number = self.recorder.journal.plan(self.run, self.name, self.plan.actions)

    def perform(self, action: Action) -> Done:
        """Carry an action out, in the journal before and after.

        Raises what its executor raises, and ProductionAppeared where somebody started production meanwhile.
        """
        self.watch.check(self)
        self._move(action, State.RUNNING)
        try:
            done = self._watched(action)
        except (LeaseError, TransportLost) as error:
            self._move(action, State.INCONCLUSIVE, reason=str(error))
            raise
        except Exception as error:
            self._move(action, State.FAILED, reason=str(error))
            raise
        self._move(action, done.state, reason=done.reason, evidence=done.evidence)
        return done

    def _watched(self, action: Action) -> Done:
        try:
            return self.executors[type(action)](self, action).proven(action.id)
        except (LeaseError, TransportLost, ProductionAppeared):
            raise
        except Exception as error:
            self.watch.check_after(self, error)
            raise

    def skip(self, actions: Iterable[Action], reason: str) -> None:
        """Record actions that did not begin as skipped."""
        for action in actions:
            if action.id not in self._ended:
                self._move(action, State.SKIPPED, reason=reason)

    def _move(self, action: Action, state: State, *, reason: str = "", evidence: tuple[Evidence, ...] = ()) -> None:
        ordinal = next(number for number, one in enumerate(self.plan.actions) if one.id == action.id)
        self.recorder.journal.action_state(
            self.run, self.name, self._number, ordinal, state, reason=reason, evidence=evidence,
            again=action.id in self._ended,
        )  # fmt: skip
        if state.final:
            self._ended.add(action.id)

    # -- the link and the lease

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return self.host.name

    @property
    def run(self) -> str:
        """The run's id."""
        return self.recorder.run

    def say(self, event: str, message: str, **data: Any) -> None:
        """Record an event of this host, in the phase and step at work."""
        self.recorder.say(event, message, host=self.name, phase=self.phase, step=self.step, **data)

    def progress(self, event: str, message: str, **data: Any) -> None:
        """Show a ephemeral event of this host."""
        self.recorder.progress(event, message, host=self.name, phase=self.phase, step=self.step, **data)

    def call(self, what: str, seconds: float = limits.CALL) -> Deadline:
        """Return the deadline of one remote call."""
        return Deadline(seconds, f"{what} on {self.name}")

    def systemd(self) -> Systemd:
        """Return the fenced bridge: what changes the host goes through it. Raises LeaseLost."""
        return self.host.fenced_systemd(self.lease.token)

    @contextmanager
    def change(self, action: str, subject: str) -> Iterator[dict[str, Any]]:
        """Frame one change of the host.

        Raises Interrupted when the run was cancelled (not while restoring), LeaseLost when the token is gone.
        """
        if not self.restoring:
            self.cancellation.check()
        self.heartbeat.check()
        with self.recorder.journal.mutation(self.run, self.name, action, subject) as detail:
            yield detail

    def persist(self, what: str, action: Callable[[], T]) -> T:
        """Do something that may be done twice, through losses of the link for as long as the lease can hold.

        That time counts from the loss, once for all that is tried until the link is back. Raises LeaseLost when
        the link came back and the token is gone, or the host was rebooted; TransportLost when it did not come back.
        """
        self.host.outage.budget = self.ttl + limits.LOST_LINK_GRACE
        try:
            return ride_out(self.host, action, lost=lambda error: self._note_loss(what, error), back=self._link_back)
        except HostRebooted as error:
            raise LeaseLost(
                f"{self.name} was rebooted: the lease on it is over",
                seen=str(error),
                where=self.name,
                hint=f"the guard restores production at boot; opsctl status {self.run}",
            ) from error

    def _note_loss(self, what: str, error: TransportLost) -> None:
        self.say("host.lost", f"the link to {self.name} is lost: {error}; trying again", what=what)

    def _link_back(self) -> None:
        self.heartbeat.check()
        self.say("host.back", f"the link to {self.name} is back")

    def holds(self, holder: str | None, role: str) -> None:
        """Record who has the GPUs from now on."""
        self.recorder.journal.hold(self.run, self.name, holder or "", role)


Executor = Callable[[BorrowedHost, Any], Done]
"""Carries out actions of one type, and says what was observed."""


def seen(asked: str, observed: str, *more: Evidence) -> Done:
    """Return an action that ended verified by an observation of now, and what else proves it."""
    return Done((evidence(asked, observed), *more))

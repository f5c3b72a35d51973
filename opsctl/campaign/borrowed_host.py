"""One host, borrowed from its production by one run: the link, the lease, the fence, and who serves now.

Everything that changes the host goes through ``change``: it looks first whether the run was cancelled and
whether the lease still holds, and stands in the journal before and after. The fence (a bus bridge that dies
with the token) is what makes this safe; the look is what makes it polite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from opsctl.campaign import limits
from opsctl.campaign.cancellation import Cancellation
from opsctl.campaign.heartbeat import Heartbeat
from opsctl.deadline import Deadline
from opsctl.errors import HostRebooted, LeaseLost, TransportLost
from opsctl.host.guard.control import Lease
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host, Systemd
from opsctl.playbook.resolved import ResolvedService
from opsctl.runs.events import Recorder

T = TypeVar("T")


@dataclass
class BorrowedHost:
    """What a campaign knows and holds of one host.

    ``serving`` is the service that holds the GPUs, by name; None while nothing does. ``touched`` is true
    from the first change of production on: from then on only a verified restore ends the run well.
    """

    host: Host
    recorder: Recorder
    cancellation: Cancellation
    production: ResolvedService
    lease: Lease
    heartbeat: Heartbeat
    ttl: float
    dependents: tuple[str, ...] = ()
    serving: str | None = None
    touched: bool = False
    restoring: bool = False
    restore_wanted: bool = True
    """False where production was found down and is to stay so (`--if-down leave`)."""
    installed: dict[str, str] = field(default_factory=dict)
    """Variants that this run put on the host: service name -> unit."""
    phase: str = ""
    step: str = ""

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

"""Keeping a lease alive: a thread with a connection of its own, which no other call can block.

The lease counts as held for one ttl from the moment at which the last good renewal was *sent*, on a clock that goes
on while this machine sleeps. So a controller that was suspended or stopped finds, before it does anything else, that
its lease has run out, and asks the host who restored what.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from opsctl.campaign import limits
from opsctl.clock import boot_clock
from opsctl.deadline import Deadline
from opsctl.errors import GuardSilent, LeaseLost, OpsctlError
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from opsctl.host.protocol import Host
from opsctl.quantities import format_duration

CALLS_A_TTL = 10
"""A renewal that takes longer than a tenth of the ttl is given up and tried again."""


class Heartbeat:
    """Renews one lease until stopped or lost. ``connect`` opens the connection that is its own.

    ``on_renewed`` is called in the heartbeat's thread with the seconds that the lease then holds.
    """

    def __init__(
        self,
        connect: Callable[[], Host],
        lease: Lease,
        *,
        ttl: float,
        on_renewed: Callable[[float], object] | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._connect = connect
        self._lease = lease
        self._ttl = ttl
        self._on_renewed = on_renewed
        self._clock = clock
        self._call_limit = min(limits.CALL, max(1.0, ttl / CALLS_A_TTL))
        # ``remaining`` is whole seconds, cut off by the host, and some time has passed since: never too long.
        self._valid_until = clock() + min(ttl, lease.remaining)
        self._changed = threading.Condition()
        self._stopping = False
        self._urgent = False
        self._attempts = 0
        self._lost: LeaseLost | None = None
        self._silent: GuardSilent | None = None
        self._trouble = ""
        self._host: Host | None = None
        self._thread = threading.Thread(target=self._beat, name=f"opsctl-heartbeat-{lease.token}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End renewing; the lease itself is left as it is. A thread that is stuck in a dead link ends by itself."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._call_limit + 1)

    @property
    def lost(self) -> bool:
        """Whether the lease is gone, or has run out as far as we can tell. Never blocks."""
        return self._lost is not None or self._clock() >= self._valid_until

    @property
    def remaining(self) -> float:
        """Seconds for which the lease surely holds."""
        return 0.0 if self._lost else max(0.0, self._valid_until - self._clock())

    def check(self) -> None:
        """Return while the lease surely holds.

        Raises LeaseLost with who restored what and when; where the host cannot be asked, with what is known. Raises
        GuardSilent once when the guard has stopped looking: the campaign ends there, the restore may go on.
        """
        if self.lost:
            self._await_verdict()
        if self._lost is not None:
            raise self._lost
        silent, self._silent = self._silent, None
        if silent is not None:
            raise silent

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; return early, and True, when the lease is lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None or self._stopping, seconds)
        return self.lost

    def when_the_guard_acts(self) -> str:
        """Say what the guard does without us. Never blocks."""
        if self._lost is not None:
            return str(self._lost)
        if self.remaining > 0:
            return f"the guard on the host restores production in {format_duration(self.remaining)}"
        return "the lease has run out: the guard on the host restores production now"

    def _await_verdict(self) -> None:
        """The lease has run out on our clock: let the thread ask the host once, within one call's limit."""
        with self._changed:
            self._urgent = True
            before = self._attempts
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._lost is not None or self._attempts > before or self._stopping,
                self._call_limit + 1,
            )
            if self._lost is None and self._clock() >= self._valid_until:
                self._lost = LeaseLost(
                    "the lease has run out, and the host could not be asked what its guard did",
                    seen=self._trouble or "no answer to the last renewal",
                    hint="nothing more is touched from here; look again when the host can be reached: opsctl status",
                )
                self._changed.notify_all()

    def _beat(self) -> None:
        try:
            while True:
                pause = limits.RENEW_EVERY * self._ttl if not self._trouble else min(1.0, self._call_limit)
                with self._changed:
                    self._changed.wait_for(lambda: self._stopping or self._urgent or self._lost is not None, pause)
                    if self._stopping or self._lost is not None:
                        return
                    self._urgent = False
                self._renew()
        finally:
            self._drop()

    def _renew(self) -> None:
        sent = self._clock()
        lost: LeaseLost | None = None
        try:
            if self._host is None:
                self._host = self._connect()
            lease = control.renew(self._host, self._lease, deadline=Deadline(self._call_limit, "renewal of the lease"))
        except LeaseLost as error:
            lost = error
        except Exception as error:  # noqa: BLE001 - whatever it is, the next renewal may do: a dead heartbeat loses the lease
            self._trouble = str(error) or type(error).__name__
            self._drop()
        else:
            self._trouble = ""
            self._lease = lease
            self._valid_until = sent + self._ttl
            self._judge_silence(lease)
            if self._on_renewed is not None:
                self._on_renewed(self.remaining)
        with self._changed:
            self._lost = self._lost or lost
            self._attempts += 1
            self._changed.notify_all()

    def _judge_silence(self, lease: Lease) -> None:
        if not lease.silent:
            return
        self._silent = GuardSilent(
            "the guard on the host has stopped looking: production would not be restored if this controller died",
            seen=f"its last look was {lease.tick_age:.0f} s ago",
            hint="the campaign ends here and production is restored; see: systemctl status opsctl-guard",
        )

    def _drop(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            with contextlib.suppress(OpsctlError, OSError):
                host.close()

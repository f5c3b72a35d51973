"""One simulated host: units, jobs, sessions, lease slots and a clock; faults strike at counted operations."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import cast

from tests.simulation.shell import GuardShell

PRODUCTION, SLICE = "production.service", "opsctl.slice"
TTL = 60
STOP, LOAD = 2.0, 6.0
_TICK = 1.0
_PATIENCE = 3 * 3600.0
"""Seconds for which the guard is watched after the controller's end."""


class Violation(BaseException):
    """An invariant does not hold: not an Exception, so that no handler of the controller swallows it."""


class Killed(BaseException):
    """The controller is no more: not an Exception, so that nothing of it handles it."""


@dataclass(frozen=True)
class Fault:
    """What is done at the ``at``-th operation of an actor (``controller`` or ``guard``)."""

    actor: str
    at: int
    kind: str
    seconds: float = 0.0


@dataclass
class Server:
    """A unit: active from its start on, answering after its load, gone a while after its stop was asked for."""

    active: bool = False
    started_at: float = 0.0
    answers_at: float = 0.0
    gone_at: float | None = None
    failed: bool = False
    starts_to_fail: int = 0


@dataclass
class World:
    """The host, and who acts on it when. ``t`` is the controller's clock; the host's counts from its boot."""

    guard: GuardShell
    commands: GuardShell
    faults: tuple[Fault, ...]
    broken: str = ""
    t: float = 1000.0
    booted: float = 0.0
    boot: int = 1
    units: dict[str, Server] = field(default_factory=lambda: {PRODUCTION: Server(active=True), SLICE: Server()})
    disk: dict[str, str] = field(default_factory=dict)
    mirror: dict[str, str] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    enabled: bool = True
    alerted: bool = False
    locked: str = ""
    link_back_at: float = 0.0
    rebooted: bool = False
    controller_alive: bool = True
    answered_at: float = -1.0
    """When the controller last saw a completion."""
    silent_at: float = -1.0
    """When production was last asked and gave no answer."""
    restoring: bool = False
    """Whether the controller gives the host back."""
    lose: str = ""
    trace: list[str] = field(default_factory=list)
    on_time: Callable[[], None] = lambda: None
    _counts: dict[str, int] = field(default_factory=lambda: {"controller": 0, "guard": 0})
    _tick: Generator[str, str, None] | None = None
    _op: str = ""
    _tick_due: float = 1000.0
    _held_until: float = 0.0
    _dead_tick: bool = False
    _busy: bool = False
    _jobs: dict[int, tuple[str, float]] = field(default_factory=dict)

    # -- the lease

    def lease(self) -> dict[str, str]:
        """Return the newest slot."""
        return max((self.disk, self.mirror), key=lambda slot: int(slot.get("seq", "-1")))

    @property
    def uptime(self) -> int:
        """Seconds of the boot clock."""
        return int(self.t - self.booted)

    def arm(self, terms: str) -> None:
        """Put a held lease of token 1 in place, as ``opsctl-guard arm`` leaves it."""
        words = "seq=1 slot=a state=held token=1 armed=1 run=r1 holder=simulation since=wall scope=system uid=0"
        lease = dict(word.partition("=")[::2] for word in words.split())
        lease |= {
            "boot": f"boot-{self.boot}",
            "ttl": str(TTL),
            "deadline": str(self.uptime + TTL + 1),
            "unit": PRODUCTION,
        }
        self.disk, self.mirror = dict(lease), dict(lease)
        for shell in (self.guard, self.commands):
            for place in ("disk", "run"):
                (shell.folder / place / "terms.1").write_text(terms)

    # -- time

    def advance(self, seconds: float) -> None:
        """Let time pass: the guard ticks, held ticks go on, the heartbeat beats."""
        until = self.t + seconds
        while not self._busy:
            due = self._held_until if self._tick is not None else self._tick_due
            if due > until:
                break
            self.t = max(self.t, due)
            self._busy = True
            try:
                self._go_on_guard()
            finally:
                self._busy = False
        self.t = max(self.t, until)
        if self.controller_alive:
            self.on_time()

    def controller_op(self, what: str) -> None:
        """Count an operation of the controller and do what is to be done to it there. Raises Killed."""
        if not self.controller_alive:
            raise Killed
        self.lose = ""
        for fault in self._struck("controller", what):
            if fault.kind == "kill":
                self.controller_alive = False
                raise Killed
            if fault.kind == "pause":
                beat, self.on_time = self.on_time, lambda: None
                self.advance(fault.seconds)
                self.on_time = beat
            elif fault.kind == "link":
                self.link_back_at = self.t + fault.seconds
            elif fault.kind == "reboot":
                self.reboot()
            elif fault.kind in {"request lost", "reply lost"}:
                self.lose = fault.kind
        self.advance(0.02)

    def _struck(self, actor: str, what: str) -> list[Fault]:
        self._counts[actor] += 1
        number = self._counts[actor]
        struck = [fault for fault in self.faults if fault.actor == actor and fault.at == number]
        self.trace.append(f"{self.t:9.2f} {actor} {number}: {what}" + "".join(f"  <- {one.kind}" for one in struck))
        return struck

    def reboot(self) -> None:
        """Cut the power: processes, sessions and /run are gone; only the guard comes up on a lent host."""
        self._end_tick()
        self.boot += 1
        self.booted = self.t
        self.mirror, self.sessions, self.rebooted = {}, set(), True
        fails = self.units[PRODUCTION].starts_to_fail
        self.units = {PRODUCTION: Server(starts_to_fail=fails), SLICE: Server()}
        if self.lease().get("state") == "closed":  # nobody's loan: the unit is enabled, and the boot brings it up
            self.units[PRODUCTION] = Server(active=True, answers_at=self.t + LOAD)
        self.link_back_at = self.t + 3
        self._tick_due, self.locked = self.t + 3, ""
        self._jobs.clear()

    def finish(self) -> None:
        """Let the guard work alone until the lease is closed or its patience is over, then judge the end."""
        self.controller_alive = False
        end = self.t + _PATIENCE
        while self.lease().get("state") != "closed" and self.t < end and self.enabled:
            lease = self.lease()
            wait = _TICK
            if self._tick is None:  # nothing can happen before the next instant that the lease names
                at = lease["deadline"] if lease["state"] == "held" else lease.get("next", "0")
                wait = max(_TICK, int(at or 0) - self.uptime)
                self._tick_due = max(self._tick_due, self.t + wait - _TICK)
            self.advance(wait)
        self.advance(30)
        self._end_tick()  # one that a pause still holds: the shell serves the next schedule
        serves = self.answering(PRODUCTION)
        lease = self.lease()
        trying = lease.get("state") in {"held", "restoring"} and self.enabled
        if not serves and not (trying and self.alerted):
            raise Violation(f"production is lost: {lease}")

    # -- units

    def settle(self, unit: str) -> Server:
        """Return a unit as it is now."""
        server = self.units.setdefault(unit, Server())
        if server.gone_at is not None and self.t >= server.gone_at:
            server.active, server.gone_at = False, None
        return server

    def state_of(self, unit: str) -> str:
        """Return its ActiveState."""
        server = self.settle(unit)
        if server.gone_at is not None:
            return "deactivating"
        return "active" if server.active else "failed" if server.failed else "inactive"

    def answering(self, unit: str) -> bool:
        """Whether completions come."""
        return self.state_of(unit) == "active" and self.t >= self.units[unit].answers_at

    def start(self, unit: str) -> None:
        """Start a unit. Raises Violation where another server holds the GPUs."""
        server = self.settle(unit)
        if server.active and server.gone_at is None:
            return
        server.gone_at, server.failed = None, False
        if server.starts_to_fail > 0:
            server.starts_to_fail -= 1
            server.active, server.failed = False, True
            return
        server.active, server.started_at, server.answers_at = True, self.t, self.t + LOAD
        if self.settle(PRODUCTION).active and self.settle(SLICE).active:
            raise Violation("two servers are started")

    def stop(self, unit: str, *, by_restore: bool) -> None:
        """Begin to stop a unit.

        Raises Violation where a restore stops a production that answers, and has not asked it since it does.
        """
        server = self.settle(unit)
        if by_restore and unit == PRODUCTION and self.answering(unit) and self.silent_at < server.started_at:
            raise Violation("a restore stops a production that answers")
        if server.active and server.gone_at is None:
            server.gone_at = self.t + STOP

    def check_fence(self, token: int) -> None:
        """Raise Violation where a session acts after the guard has put its fence up."""
        lease = self.lease()
        held = lease.get("state") == "held" and int(lease["token"]) == token
        if not held and not (lease.get("state") == "restoring" and lease.get("phase") == "fence"):
            raise Violation(f"a fenced session of token {token} changes the host: {lease}")

    # -- the guard

    def _go_on_guard(self) -> None:
        if self._tick is None:
            self._tick_due = self.t + _TICK
            lease = self.lease()
            idle = lease.get("state") == "held" and lease["boot"] == f"boot-{self.boot}"
            if not self.enabled or (idle and self.uptime < int(lease["deadline"])):
                # A tick of a lease that holds changes nothing but the time of the last look.
                for shell in (self.guard, self.commands):
                    (shell.folder / "run" / "tick").write_text(f"{lease.get('token')} {self.uptime} x\n")
                return
            self._tick, self._dead_tick = cast("Generator[str, str, None]", self.guard.run("tick")), False
            self._op = next(self._tick, "")
            self._held_until = self.t
        while self._op:
            for fault in self._struck("guard", self._op) if not self._dead_tick else ():
                if fault.kind == "kill":
                    self._end_tick()
                    return
                if fault.kind == "pause":
                    self._held_until = self.t + fault.seconds
                    return
            if self._op == "lock" and self.locked:
                self._held_until = self.t + 0.1
                return
            self._send(self._answer(self.guard, self._op, "guard"))
        self._tick = None
        self._tick_due = self.t + (0.01 if self.guard.status == 10 else _TICK)
        if self.guard.status == 77:
            self.enabled = False

    def _send(self, answer: str) -> None:
        assert self._tick is not None
        try:
            self._op = self._tick.send(answer)
        except StopIteration:
            self._op = ""
            self.locked = "" if self.locked == "guard" else self.locked

    def _end_tick(self) -> None:
        """SIGKILL: what the tick still asks has no effect, and systemd starts the guard again."""
        if self._tick is not None:
            while self._op:
                self._send("1")
            self._tick = None
        self._tick_due = self.t + _TICK

    def ask(self, command: str) -> int:
        """Run a command of the guard for the controller, in one go once it has the lock; return its exit status."""
        running = cast("Generator[str, str, None]", self.commands.run(command))
        line = next(running, "")
        while line:
            waited = 0.0
            while line == "lock" and self.locked == "guard" and waited < 20:
                waited += 0.1
                self.advance(0.1)
            answer = "busy" if waited >= 20 else self._answer(self.commands, line, "controller")
            try:
                line = running.send(answer)
            except StopIteration:
                break
        self.locked = "" if self.locked == "controller" else self.locked
        return self.commands.status

    def _answer(self, shell: GuardShell, op: str, who: str) -> str:
        word, _, rest = op.partition(" ")
        if word == "clock":
            return str(self.uptime)
        if word == "boot":
            return f"boot-{self.boot}"
        if word == "lock":
            self.locked = who
        elif word == "unlock":
            self.locked = ""
        elif word == "load":
            (shell.folder / "lease.in").write_text("".join(f"{key}={value}\n" for key, value in self.lease().items()))
        elif word == "save":
            lines = (shell.folder / "lease.out").read_text().splitlines()
            self.mirror = dict(line.partition("=")[::2] for line in lines)
            if rest == "disk":
                self.disk = dict(self.mirror)
        elif word == "switch":
            self.enabled = rest == "on" or (self.enabled and self.lease().get("state") != "closed")
        elif word == "begin":
            return self._begin(rest)
        elif word == "outcome":
            return self._outcome(rest)
        elif word == "sctl":
            return self._systemctl(rest.split())
        return "ok"

    def _begin(self, name: str) -> str:
        if name == "alert":
            self.alerted = True
        pid = 100 + len(self._jobs)
        self._jobs[pid] = (name, self.t + 0.3)
        return str(pid)

    def _outcome(self, rest: str) -> str:
        name, _, pid = rest.partition(" ")
        found = self._jobs.get(int(pid or 0))
        if found is None or found[0] != name:
            return "gone"
        if self.t < found[1]:
            return "running"
        if name != "verify":
            return "ok"
        server = self.units[PRODUCTION]  # what the probe saw when it ended, however late its outcome is read
        if server.active and server.gone_at is None and server.answers_at <= found[1]:
            return "ok"
        self.silent_at = found[1]
        return "no"

    def _systemctl(self, words: list[str]) -> str:
        verb = next(word for word in words if not word.startswith("-"))
        unit = words[-1]
        if verb == "show":
            return f"0ActiveState={self.state_of(unit)}|SubState=x|Result=success|Job="
        if verb == "list-units":
            return "0" + "|".join(sorted(self.sessions))
        if verb == "kill" and "session" in unit:
            if self.broken != "fence":
                self.sessions.clear()
        elif verb == "start" and unit in self.units:
            self.start(unit)
        elif verb == "start":
            self.enabled = True
        elif verb == "stop":
            self.stop(unit, by_restore=True)
        elif verb == "kill":
            self.units[unit].active = False
        return "0"

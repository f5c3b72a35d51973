"""The controller's own code on a simulated host: swap, restore, heartbeat and fence. Link, bus and journal are ours.

What is not simulated: the side-by-side readings of a load (``serving/load``), which are threads; a load here is
watched by asking the same verification again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import httpx

from opsctl.campaign import restore
from opsctl.campaign.borrowed_host import BorrowedHost
from opsctl.campaign.cancellation import Cancellation
from opsctl.campaign.executors import EXECUTORS
from opsctl.campaign.heartbeat import Heartbeat
from opsctl.deadline import Deadline
from opsctl.errors import (
    HostRebooted,
    HostUnreachable,
    JobFailed,
    LeaseLost,
    LoadFailed,
    NotReady,
    OpsctlError,
    TransportLost,
)
from opsctl.host.guard.control import Lease
from opsctl.host.guard.terms import LeaseTerms
from opsctl.host.outage import Outage
from opsctl.host.protocol import Completed, Host, JobOutcome, JournalBatch, Systemd, UnitStatus
from opsctl.plan.actions import Action, AwaitReady, Branch, Clear, Gate, Release, Start, Stop, Verify
from opsctl.plan.hostplan import HostPlan
from opsctl.playbook.models import HostEntry, Readiness, Role, Stopping
from opsctl.playbook.resolved import ResolvedService
from opsctl.runs.events import Recorder
from opsctl.runs.journal import Journal
from opsctl.serving import readiness
from opsctl.serving.readiness import Ready
from opsctl.serving.waits import pause
from tests.simulation.world import LOAD, PRODUCTION, SLICE, TTL, Violation, World

SERVICE = ResolvedService(
    name="production", host="host", unit=PRODUCTION, role=Role.PRODUCTION, model="m", url="http://127.0.0.1:1",
    readiness=Readiness(limit=60.0, completions=1, settle=0.0, request_limit=5.0),
    stop=Stopping(limit=10.0, gpu_limit=5.0),
)  # fmt: skip
TERMS = LeaseTerms(run="r1", holder="simulation", ttl=TTL, service=SERVICE, alert=("page",)).encode("v").decode()
_ENTRY = HostEntry.model_validate({"address": "host"})


class SimulatedBus:
    """The protocol's ``Systemd``: for reading, or in the session of a token."""

    def __init__(self, host: SimulatedHost, token: int | None, scope: str) -> None:
        self._host, self._world, self._token, self._scope = host, host.world, token, scope

    def status(self, unit: str, *, deadline: Deadline) -> UnitStatus:
        self._ask(f"status {unit}")
        state = self._world.state_of(unit)
        self._host.reply()
        pid = 0 if state in {"inactive", "failed"} else 7
        return UnitStatus(unit, "loaded", state, "x", result="success", main_pid=pid)

    def start(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        self._change(f"start {unit}")
        self._world.start(unit)
        self._host.reply()
        if self._world.state_of(unit) == "failed":
            raise JobFailed(f"start of {unit} failed", result="failed")
        return JobOutcome(unit, "start", "done", 0.0)

    def stop(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        self._change(f"stop {unit}")
        self._world.stop(unit, by_restore=self._world.restoring)
        self._host.reply()
        while self._world.state_of(unit) == "deactivating":
            self._ask(f"wait for the stop of {unit}")
            deadline.check()
            self._world.advance(0.5)
        return JobOutcome(unit, "stop", "done", 0.0)

    def kill(self, unit: str, signal: int, *, deadline: Deadline) -> None:
        self._change(f"kill {unit}")
        self._world.units[unit].active = False
        self._host.reply()

    def reset_failed(self, unit: str, *, deadline: Deadline) -> None:
        self._change(f"reset-failed {unit}")
        self._host.reply()

    def processes(self, unit: str, *, deadline: Deadline) -> tuple[tuple[int, str], ...]:
        return ()

    def close(self) -> None:
        return

    def _ask(self, what: str) -> None:
        self._host.reach(what)
        if self._token is not None and self._scope not in self._world.sessions:
            raise LeaseLost(f"the session of token {self._token} is gone")

    def _change(self, what: str) -> None:
        self._ask(what)
        if self._token is None:
            raise Violation(f"{what} outside the fence")
        self._world.check_fence(self._token)


class SimulatedHost:
    """The protocol's ``Host`` for what a swap and a restore ask of it."""

    name = "host"
    entry = _ENTRY

    def __init__(self, world: World) -> None:
        self.world = world
        self.outage = Outage()
        self.listener = ""
        self._boot = world.boot
        self._fenced: dict[int, SimulatedBus] = {}
        self._sessions = 0

    def reach(self, what: str) -> None:
        """One request over the link. Raises TransportLost, Killed."""
        self.world.controller_op(what)
        if self.world.t < self.world.link_back_at or self._boot != self.world.boot:
            self.world.advance(2.0)
            raise TransportLost(f"no answer to {what}")
        if self.world.lose == "request lost":
            raise TransportLost(f"{what} was not delivered")

    def reply(self) -> None:
        """The answer's way back. Raises TransportLost where it is lost."""
        if self.world.lose == "reply lost":
            raise TransportLost("the answer was lost")

    def run(
        self, argv: Sequence[str], *, deadline: Deadline, stdin: bytes = b"", env: Mapping[str, str] | None = None,
        check: bool = True, become: bool | None = None,
    ) -> Completed:  # fmt: skip
        if tuple(argv[:2]) == ("sh", "-s"):
            self.reach("who listens")
            held = b"ours\tunit\tseen" if self.world.answering(PRODUCTION) else b"nobody\tnone\tseen"
            self.reply()
            return Completed(tuple(argv), 0, held, b"", 0.0)
        guard = next((index for index, word in enumerate(argv) if word.endswith("opsctl-guard")), None)
        if guard is None:  # nvidia-smi: there is none
            self.reach(f"run {argv[0]}")
            return Completed(tuple(argv), 127, b"", b"", 0.0)
        command = " ".join(argv[guard + 1 :])
        self.reach(f"guard {command}")
        status = self.world.ask(command)
        out, err = self.world.commands.said
        self.reply()
        return Completed(tuple(argv), status, out, err, 0.0)

    def journal(self, unit: str, *, after: str | None, deadline: Deadline, limit: int = 2000) -> JournalBatch:
        self.reach("journal")
        return JournalBatch((), "cursor")

    def http(self, base_url: str, **_: object) -> httpx.Client:
        return httpx.Client(base_url=base_url, transport=httpx.MockTransport(self._serve), trust_env=False)

    def _serve(self, request: httpx.Request) -> httpx.Response:
        self.reach(f"http {request.url.path}")
        if not self.world.answering(PRODUCTION):
            self.world.silent_at = self.world.t
            raise httpx.ConnectError("refused")
        self.reply()
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path == "/v1/completions":
            self.world.answered_at = self.world.t
            return httpx.Response(200, json={"choices": [{"text": "x"}], "usage": {"completion_tokens": 2}})
        return httpx.Response(200, json={"version": "1"})

    def systemd(self) -> Systemd:
        return cast("Systemd", SimulatedBus(self, None, ""))

    def fenced_systemd(self, token: int) -> Systemd:
        if token not in self._fenced:
            self.reach(f"session {token}")
            if self.world.ask(f"holds {token}") != 0:
                raise LeaseLost(f"token {token} does not hold")
            self._sessions += 1
            scope = f"opsctl-session-{token}-{self._sessions}.scope"
            self.world.sessions.add(scope)
            # The guard looks again from inside the scope: a fence put up in between has the last word.
            self.world.controller_op(f"inside the session of {token}")
            if self.world.ask(f"holds {token}") != 0:
                self.world.sessions.discard(scope)
                raise LeaseLost(f"token {token} does not hold")
            self._fenced[token] = SimulatedBus(self, token, scope)
        return cast("Systemd", self._fenced[token])

    def reconnect(self, *, deadline: Deadline) -> None:
        self._fenced.clear()
        connected(self.world, deadline)
        if self._boot != self.world.boot:
            self._boot = self.world.boot
            raise HostRebooted("rebooted")

    def close(self) -> None:
        return


def connected(world: World, deadline: Deadline | None = None) -> SimulatedHost:
    """Return a host over a new link. Raises HostUnreachable."""
    world.controller_op("connect")
    if world.t < world.link_back_at:
        world.advance(min(5.0, deadline.remaining() if deadline else 5.0))
        raise HostUnreachable("no answer")
    return SimulatedHost(world)


class SimulatedHeartbeat(Heartbeat):
    """The heartbeat without its thread: it beats when the virtual clock says so, at any operation of the controller."""

    def __init__(self, world: World, lease: Lease) -> None:
        super().__init__(lambda: cast("Host", connected(world)), lease, ttl=lease.ttl, clock=lambda: world.t)
        self._world = world
        self._due = world.t
        self._beating = False

    def start(self) -> None:
        self._world.on_time = self.beat

    def stop(self) -> None:
        self._world.on_time = lambda: None

    def beat(self, *, urgent: bool = False) -> None:
        """Renew, when that is due."""
        if self._beating or self._lost is not None or not (urgent or self._world.t >= self._due):
            return
        self._beating = True
        try:
            self._renew()
        finally:
            self._beating = False
        self._due = self._world.t + (1.0 if self._trouble else 0.2 * self._ttl)

    def wait(self, seconds: float) -> bool:
        self._world.advance(seconds)
        return self.lost

    def _await_verdict(self) -> None:
        self.beat(urgent=True)
        if self._lost is None and self._clock() >= self._valid_until:
            self._lost = LeaseLost("the lease has run out, and the host could not be asked")


class SimulatedJournal:
    """Takes the record, and holds its claims against what was observed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._claimable_from = 0.0

    @contextlib.contextmanager
    def mutation(self, run: str, host: str, action: str, subject: str) -> Iterator[dict[str, Any]]:
        self._world.controller_op(f"journal {action} {subject}")
        if action == "stop" and subject == PRODUCTION:
            self._claimable_from = self._world.t
        yield {}

    def update_host(self, run: str, host: str, **changes: object) -> None:
        self._world.controller_op("journal host")
        if changes.get("verified") == 1:
            self._check("verified")

    def event(self, run: str, time: str, event: str, **about: object) -> None:
        self._world.controller_op(f"journal {event}")
        if event == "production.verified":
            self._check(event)

    def begin_load(self, run: str, host: str, **about: object) -> int:
        self._claimable_from = self._world.t
        return 1

    def end_load(self, load: int, **about: object) -> None:
        if about.get("outcome") == "ready":
            self._check("a load that is ready")

    def hold(self, run: str, host: str, holder: str, role: str) -> None:
        return

    def action_state(self, *_: object, **about: object) -> None:
        self._world.controller_op("journal action")

    def query(self, sql: str, *values: object) -> list[object]:
        return []  # no load before this one

    def _check(self, claim: str) -> None:
        if self._world.answered_at < self._claimable_from or self._world.answered_at < 0:
            raise Violation(f"the journal claims {claim}, and no completion was seen since")


def _await_ready(
    host: Host, service: ResolvedService, *, deadline: Deadline, cancelled: Callable[[], bool], **_: object
) -> Ready:
    """Stand in for the wait for a load: the same verification, again and again."""
    while True:
        deadline.check()
        if host.systemd().status(service.unit, deadline=deadline).stopped:
            raise LoadFailed(f"{service.unit} died", transient=True)
        try:
            return readiness.verify_serving(host, service, deadline=deadline, cancelled=cancelled)
        except NotReady:
            pause(1.0, deadline=deadline, cancelled=cancelled, what="a load")


setattr(readiness, "await_ready", _await_ready)  # noqa: B010 - swap looks it up there


def _bring_back(branch: Branch) -> tuple[Action, ...]:
    """Return a restore, as the planner writes it."""
    ids = f"{branch}/"
    return (
        Clear(id=f"{ids}clear", branch=branch, service=SERVICE, limit=SERVICE.stop.limit),
        Gate(id=f"{ids}gate", branch=branch, limit=SERVICE.stop.gpu_limit),
        Start(id=f"{ids}start", branch=branch, service=SERVICE),
        AwaitReady(id=f"{ids}await-ready", branch=branch, service=SERVICE, limit=SERVICE.readiness.limit),
    )


STOP = Stop(id="stop", service=SERVICE)
GATE = Gate(id="gate", limit=SERVICE.stop.gpu_limit)
PLAN = HostPlan(
    host="host", production=SERVICE, restores=True, setup=(STOP, GATE), phases=(), give_back=_bring_back(Branch.MAIN),
    restore=(
        Verify(id="restore/verify", branch=Branch.RESTORE, service=SERVICE, limit=15.0), *_bring_back(Branch.RESTORE)
    ),
    closing=(Release(id="release"),),
)  # fmt: skip


def campaign(world: World) -> None:
    """Borrow the host, run something on its GPUs, and give it back, as a campaign does. Raises Killed, Violation."""
    host = cast("Host", SimulatedHost(world))
    recorder = Recorder("r1", cast("Journal", SimulatedJournal(world)), ())
    b = BorrowedHost(host, recorder, Cancellation(), PLAN, EXECUTORS, lambda: cast("Host", connected(world)), TTL)
    b._lease = Lease(1, "r1", TTL, f"boot-{world.boot}", TTL)
    b._heartbeat = SimulatedHeartbeat(world, b._lease)
    b._heartbeat.start()
    try:
        failed = not _phase(b, world)
        world.restoring = True
        restore.give_back(b, failed=failed)
    except OpsctlError as error:
        world.trace.append(f"{world.t:9.2f} controller ends: {error}")
    finally:
        b.let_go()


def _phase(b: BorrowedHost, world: World) -> bool:
    """Take production down and run something; return whether that went well. Raises LeaseLost, Killed, Violation."""

    def start() -> None:
        with b.change("start", SLICE):
            b.systemd().start(SLICE, deadline=b.call("start"))

    try:
        b.perform(STOP)
        b.perform(GATE)
        b.persist("start", start)
    except LeaseLost:
        raise
    except OpsctlError as error:
        world.trace.append(f"{world.t:9.2f} controller's phase failed: {error}")
        return False
    world.advance(LOAD)
    return True

"""The actions in the journal of a run are the printed plan, in order: nothing more and nothing less.

The real runner carries real plans out against a host on which every action succeeds, fails or is cut short as drawn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.campaign import execution, host_run, limits
from opsctl.campaign.borrowed_host import BorrowedHost, Done, Loading, seen
from opsctl.campaign.cancellation import Cancellation
from opsctl.campaign.heartbeat import Heartbeat
from opsctl.campaign.runner import conclude
from opsctl.errors import Interrupted, LoadFailed, NotReady, OpsctlError, TransportLost
from opsctl.host.guard import control
from opsctl.host.guard.control import Lease
from opsctl.host.outage import Outage
from opsctl.host.protocol import UnitStatus
from opsctl.plan import HostFacts, HostPlan, Seen, document, plan
from opsctl.plan.actions import Action, Arm, AwaitReady, Branch, Clear, Measure, Release, Start, Stop, Verify
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import LoadedPlaybook, load_playbooks
from opsctl.record import ActionRecord
from opsctl.results import Evidence, State
from opsctl.runs.events import Recorder
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.runs.verdict import Verdict

ROOT = Path(__file__).parents[2]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
CONFIG = {"hidden_size": 7168, "model_type": "kimi_k2"}


PRODUCTION = "prod.service"


class QuietHeartbeat(Heartbeat):
    """A heartbeat of a lease that always holds: no thread, no host."""

    def __init__(self) -> None:
        lease = Lease(1, "r", 1e9, "boot", 1e9)
        super().__init__(lambda: pytest.fail("no host is asked"), lease, ttl=1e9)

    def wait(self, seconds: float) -> bool:  # noqa: ARG002
        """Wait not at all."""
        return False


@dataclass
class Simulated:
    """A host on which actions do what they say, unless ``fate`` raises for one; it keeps what serves by it."""

    name: str
    fate: Callable[[Action, int], None]
    running: str | None = None
    outage: Outage = field(default_factory=Outage)
    down_ever: bool = False
    tried: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    appeared: bool = False
    """Whether somebody else started production while it was down."""

    def systemd(self) -> Simulated:
        return self

    def status(self, unit: str, **_: Any) -> UnitStatus:
        up = unit == self.running or (self.appeared and unit == PRODUCTION)
        return UnitStatus(unit, "loaded", "active" if up else "inactive", "")

    def execute(self, b: BorrowedHost, action: Action) -> Done:
        self.order.append(action.id)
        self.tried[action.id] = self.tried.get(action.id, 0) + 1
        self.fate(action, self.tried[action.id])
        production = b.production.unit
        match action:
            case Arm():
                b.recorder.journal.update_host(b.run, b.name, token=1, verified=0)
                b._lease, b._heartbeat = Lease(1, "r", 1e9, "boot", 1e9), QuietHeartbeat()
            case Stop():
                assert not (self.appeared and action.unit == production), "what somebody else started is not stopped"
                self.running = None
                b.touched = b.touched or action.unit == production
                if action.unit == production:
                    b.watch.is_down(self.status(production))
            case Clear():
                self.running = self.running if self.running == production and not action.leave_down else None
                self.running = production if self.appeared else self.running
            case Start():
                assert self.running in {None, action.unit}, "two servers want the same GPUs"
                self.running = action.unit
                if action.unit == production:
                    b.watch.is_wanted()
                b.loading = Loading(1, None, self.status(action.unit), 0.0)
            case AwaitReady() | Verify():
                if self.running != action.unit:
                    raise NotReady(f"{action.unit} is not active")
                b.evidence = (Evidence(asked="completion", observed="tokens", time="t"),)
            case Measure():
                state = State.VERIFIED
                place = (b.run, b.name, action.phase or 0, action.position)
                b.recorder.journal.step_state(*place, State.RUNNING)
                b.recorder.journal.step_state(*place, state)
            case Release():
                assert b.plan.restores is (self.running == production)
        with b.recorder.journal.mutation(b.run, b.name, action.kind, action.id):
            return seen("the simulated host", "done")


@dataclass
class Ran:
    """A run that ended: what was printed, what the journal holds."""

    planned: HostPlan
    printed: list[dict[str, Any]]
    kept: tuple[ActionRecord, ...]
    verdict: Verdict
    host: Simulated

    @property
    def path(self) -> list[str]:
        """The ids of actions that were begun, each once, in order."""
        return list(dict.fromkeys(self.host.order))


def run_simulated(
    found: LoadedPlaybook,
    inventory: LoadedInventory,
    fate: Callable[[Action, int], None],
    *,
    interrupted: bool = False,
    made_host: Callable[[Simulated], object] = lambda _host: None,
) -> Ran:
    name = found.hosts[0]
    production = inventory.only_production(name)
    facts = HostFacts(
        name,
        services={production.name: Seen.SERVING},
        units={production.name: "active"},
        dependents=("router.service",),
        triggers=("prod.socket", "prod.timer"),
        model_config=CONFIG,
    )
    made = plan(found.by_host, inventory, {name: facts}, run="r", cells_of=lambda _step, _context: ())
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, Journal(Path(folder)) as journal:
        journal.begin_run("r", playbook="p", file="p.yml", version="0", definition={})
        journal.host("r", name, production=production.name, unit=production.unit)
        host = Simulated(name, fate, running=production.unit)
        made_host(host)
        b = BorrowedHost(
            host=cast("Any", host),
            recorder=Recorder("r", journal, []),
            cancellation=Cancellation(),
            plan=made.hosts[0],
            executors={type(action): host.execute for action in made.hosts[0].actions},
            connect=lambda: pytest.fail("no host is asked"),
        )
        execution.record(b)
        execution.arm(b)
        host_run.carry_out(b)
        verdict = conclude(b.recorder, None, interrupted=interrupted)
        record = load_run(journal, "r")
        return Ran(made.hosts[0], document(made)["hosts"][0]["actions"], record.actions, verdict, host)


def check_equal(ran: Ran) -> None:
    """The journal has the printed actions in the printed order, and what was executed is a path through them."""
    assert [(one.id, one.kind, one.branch, one.sentence) for one in ran.kept] == [
        (one["id"], one["action"], one["branch"], one["does"]) for one in ran.printed
    ]
    begun = {one.id for one in ran.kept if one.started}
    assert begun == set(ran.path)
    for branch in (Branch.MAIN, Branch.RETRY):
        printed = [one["id"] for one in ran.printed if one["branch"] == branch and one["id"] in begun]
        assert [id_ for id_ in ran.path if id_ in printed] == printed, "in the order of the plan"
    assert all(one.state.final for one in ran.kept)
    assert all(bool(one.evidence) for one in ran.kept if one.state is State.VERIFIED)
    assert all(one.reason for one in ran.kept if one.state is not State.VERIFIED)


def well(_action: Action, _attempt: int) -> None:
    """Let every action succeed."""


def check_whole(ran: Ran) -> None:
    main = [action.id for action in ran.planned.main]
    assert ran.host.order == main
    assert [one.id for one in ran.kept if one.state is State.VERIFIED] == main
    assert {one.state for one in ran.kept if one.branch != "main"} <= {State.SKIPPED}
    assert ran.verdict.code == 0
    check_equal(ran)


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_of_the_repository_runs_as_printed(path: Path) -> None:
    inventory = load_inventory(ROOT / "inventory.yml")
    check_whole(run_simulated(load_playbooks(path, inventory), inventory, well))


INVENTORY = """
hosts: {g1: {}}
services:
  prod: {url: "http://127.0.0.1:8000", model: kimi, TRAFFIC}
  v: {of: prod, profiler: torch}
  w: {of: prod}
"""
STEP = {"command": {"argv": ["/bin/true"]}}
PHASE = st.fixed_dictionaries(
    {
        "serve": st.sampled_from(["prod", "nothing", "v", "w"]),
        "steps": st.lists(st.just(STEP), min_size=1, max_size=2),
        "optional": st.booleans(),
    }
)
PLAYBOOKS = st.fixed_dictionaries(
    {
        "phases": st.lists(PHASE, min_size=1, max_size=4),
        "rounds": st.integers(1, 2),
        "attempts": st.integers(1, 3),
        "traffic": st.booleans(),
    }
)


@contextmanager
def loaded(drawn: dict[str, Any]) -> Iterator[tuple[LoadedPlaybook, LoadedInventory]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        traffic = "traffic: {out: [lb, out], in: [lb, in]}" if drawn["traffic"] else "stop: {limit: 1m}"
        (folder / "inventory.yml").write_text(INVENTORY.replace("TRAFFIC", traffic))
        phases = [{"name": f"p{number}", **phase} for number, phase in enumerate(drawn["phases"])]
        playbook = {
            "name": "drawn", "hosts": "g1", "phases": phases, "rounds": {"count": drawn["rounds"]},
            "load": {"attempts": drawn["attempts"]},
        }  # fmt: skip
        (folder / "p.yml").write_text(yaml.safe_dump(playbook))
        inventory = load_inventory(folder / "inventory.yml")
        yield load_playbooks(folder / "p.yml", inventory), inventory


@settings(max_examples=60)
@given(PLAYBOOKS)
def test_generated_playbooks_run_as_printed(drawn: dict[str, Any]) -> None:
    with loaded(drawn) as (found, inventory):
        check_whole(run_simulated(found, inventory, well))


FAILURES: dict[str, Callable[[], OpsctlError]] = {
    "fatal": lambda: LoadFailed("it died"),
    "transient": lambda: LoadFailed("it died", transient=True),
    "not ready": lambda: NotReady("no tokens"),
    "interrupted": lambda: Interrupted("SIGINT received"),
    "link lost": lambda: TransportLost("no answer"),
}


@settings(max_examples=150)
@given(PLAYBOOKS, st.integers(2, 40), st.sampled_from(sorted(FAILURES)), st.integers(1, 3))
def test_a_run_in_which_an_action_fails_is_a_path_through_the_plan(
    drawn: dict[str, Any], place: int, how: str, times: int
) -> None:
    with loaded(drawn) as (found, inventory), pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RESTORE_PAUSE", 0.0)
        made = plan(found.by_host, inventory, {}, cells_of=lambda _step, _context: ())
        closing = len(made.hosts[0].closing)
        struck = made.hosts[0].main[min(place, len(made.hosts[0].main) - closing - 1)]

        def fate(action: Action, attempt: int) -> None:
            if action.id == struck.id and attempt <= times:
                error = FAILURES[how]()
                raise error

        ran = run_simulated(found, inventory, fate)
    check_equal(ran)
    # A link that stays away in the give-back leaves production to the guard.
    lost = how == "link lost" and struck.id in {action.id for action in ran.planned.give_back}
    serving = ran.host.running == ran.planned.production.unit
    assert (ran.verdict.code == 3) is (lost or not serving), (ran.verdict, ran.path)
    assert ran.verdict.code in {0, 1, 3}


@settings(max_examples=100)
@given(PLAYBOOKS, st.integers(0, 40))
def test_production_that_somebody_starts_ends_the_campaign_and_is_never_stopped(
    drawn: dict[str, Any], place: int
) -> None:
    """At any action: while production is down it is noticed before the next one, and what runs then is left alone."""
    with loaded(drawn) as (found, inventory), pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RESTORE_PAUSE", 0.0)
        patch.setattr(control, "renew", lambda _host, lease, **_: lease)
        made = plan(found.by_host, inventory, {}, cells_of=lambda _step, _context: ())
        phases = [action for phase in made.hosts[0].phases for action in phase.actions]
        struck = phases[min(place, len(phases) - 1)]
        hosts: list[Simulated] = []
        down: list[bool] = []

        def fate(action: Action, _attempt: int) -> None:
            (host,) = hosts
            ours = isinstance(action, Start | AwaitReady) and action.unit == PRODUCTION
            if action.id == struck.id and not host.appeared and host.running != PRODUCTION and not ours:
                host.appeared = True
                down.append(True)

        ran = run_simulated(found, inventory, fate, made_host=hosts.append)
    check_equal(ran)
    assert ran.host.running == PRODUCTION
    assert ran.verdict.code == (1 if down else 0), (ran.verdict, ran.path)
    if down:
        after = ran.path[ran.path.index(struck.id) + 1 :]
        assert not [id_ for id_ in after if id_ in {action.id for action in phases}][1:], "the campaign ends there"
        assert "mid-campaign" in ran.verdict.reason

"""The actions of a campaign: what is printed by ``opsctl plan``, executed and journalled by a run. Data only.

An action says what it needs, what it does in one sentence, how long that may take, and what evidence makes it done.
Its ``id`` is stable: the same playbook and host give the same ids, in a resumed run too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from opsctl.errors import OpsctlError
from opsctl.plan.facts import Estimate
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration
from opsctl.results import Cell
from opsctl.stages.base import StageContext


class Branch(StrEnum):
    """When an action is executed."""

    MAIN = "main"
    """Always, in order, as long as nothing fails."""
    RETRY = "retry"
    """When a load died of something transient; repeated up to the playbook's ``load.attempts``."""
    RESTORE = "restore"
    """When anything failed, in place of the give-back of the main branch; repeated until production serves."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One thing that a run does on a host. ``limit`` in seconds, 0 where no limit of its own applies."""

    kind: ClassVar[str] = ""
    needs: ClassVar[str] = "the lease"
    """What must hold before it begins."""
    proof: ClassVar[str] = ""
    """What must be observed for it to count as verified."""
    id: str
    branch: Branch = Branch.MAIN
    phase: int | None = None
    """The phase's place in ``HostPlan.phases``; None for what belongs to no phase."""
    limit: float = 0.0
    forecast: Estimate | None = None
    """How long it took before on this host."""

    def describe(self) -> str:
        """Return in one sentence what it does."""
        return self._says()

    def _says(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OnService(Action):
    """An action on one service."""

    service: ResolvedService

    @property
    def unit(self) -> str:
        """The service's unit."""
        return self.service.unit


@dataclass(frozen=True, kw_only=True)
class InstallGuard(Action):
    """Put the guard on the host."""

    kind = "install-guard"
    needs = "a host that passed the preflight"
    proof = "the host's guard has this opsctl's version"

    def _says(self) -> str:
        return "Install the guard and its unit; production is not touched."


@dataclass(frozen=True, kw_only=True)
class Arm(Action):
    """Write the lease and see the guard tick; nothing is touched before."""

    kind = "arm"
    needs = "the guard on the host, and nobody else's lease"
    proof = "the guard was seen to watch the lease"
    ttl: float
    restores: tuple[str, ...]
    """Units that the guard brings back; empty where production is to stay down."""
    dependents: tuple[str, ...] = ()
    """Units that it starts after them."""

    def _says(self) -> str:
        restored = f"restores {', '.join(self.restores)}" if self.restores else "ends what this run started"
        return f"Arm a lease of {format_duration(self.ttl)}, renewed while the run lives; its guard {restored}."


@dataclass(frozen=True, kw_only=True)
class TakeOver(Action):
    """Go on under the lease of an earlier controller of this run."""

    kind = "take-over"
    needs = "a lease of this run that still holds"
    proof = "the guard renewed the lease"
    token: int

    def _says(self) -> str:
        return f"Take over lease {self.token} of this run, which still holds."


@dataclass(frozen=True, kw_only=True)
class StopStage(Action):
    """Stop a stage of an earlier controller that the playbook does not want any more."""

    kind = "stop-stage"
    proof = "the stage's unit is inactive"
    unit: str

    def _says(self) -> str:
        return f"Stop {self.unit}, which an earlier controller of this run started and the playbook no longer has."


@dataclass(frozen=True, kw_only=True)
class InstallVariant(OnService):
    """Derive a variant's unit from what production runs now, and write it to /run."""

    kind = "install-variant"
    proof = "systemd loaded the command line that was derived"
    trace_dir: str = ""
    engine_version: str | None = None

    def _says(self) -> str:
        return f"Derive {self.unit} from {self.service.of} as it runs now, and write it to /run, gone at a reboot."


@dataclass(frozen=True, kw_only=True)
class TrafficOut(OnService):
    """Take production out of the load balancer."""

    kind = "traffic-out"
    proof = "the command, and `traffic: check`, ended with status 0"

    def _says(self) -> str:
        return f"Take {self.service.name} out of the load balancer: {shlex.join(self.service.traffic.out)}."


@dataclass(frozen=True, kw_only=True)
class Stop(OnService):
    """Stop a unit and see it inactive."""

    kind = "stop"
    proof = "systemd says that the unit is inactive"

    def _says(self) -> str:
        return f"Stop {self.unit} and wait until it is inactive."


@dataclass(frozen=True, kw_only=True)
class Gate(Action):
    """Wait until no process holds the GPUs and their memory is free, stable over samples."""

    kind = "gate"
    needs = "nothing of ours on the GPUs"
    proof = "no process on the GPUs and their memory free, in several samples; unknown is recorded as unknown"

    def _says(self) -> str:
        return "Wait until the GPUs are free, stable over samples."


@dataclass(frozen=True, kw_only=True)
class Start(OnService):
    """Start a unit: from here its weights load."""

    kind = "start"
    needs = "the lease and free GPUs"
    proof = "systemd ran the unit's command"

    def _says(self) -> str:
        return f"Start {self.unit}."


@dataclass(frozen=True, kw_only=True)
class AwaitReady(OnService):
    """Wait until a service serves: completions with tokens, in a row."""

    kind = "await-ready"
    needs = "the unit started"
    proof = "the unit settled, the model listed, completions with tokens in a row"
    attempts: int = 1

    def _says(self) -> str:
        wanted = counted(self.service.readiness.completions, "completion")
        return f"Wait until {self.service.name} serves: {wanted} with tokens, in a row."


@dataclass(frozen=True, kw_only=True)
class Verify(OnService):
    """Verify by completions that a service which runs serves."""

    kind = "verify"
    needs = "the unit active"
    proof = "the same process before and after, the model listed, completions with tokens in a row"

    def _says(self) -> str:
        return f"Verify that {self.service.name} serves: {counted(self.service.readiness.completions, 'completion')}."


@dataclass(frozen=True, kw_only=True)
class Measure(Action):
    """Run one measuring step as a unit on the host, and judge what it wrote."""

    kind = "measure"
    proof = "every planned cell has a result, and the stage's unit ended with an end record"
    step: str
    stage: str
    name: str
    position: int
    """Its place among the steps of its phase."""
    options: Any
    context: StageContext
    hash: str
    """Of the step as asked for, its service, and production's unit files: what a resume compares."""
    cells: tuple[Cell, ...] | None
    """None: they cannot be known yet, and ``unknown_because`` says why."""
    unknown_because: str = ""

    @property
    def unit(self) -> str:
        """The transient unit's name, from which a resumed controller finds it again."""
        return f"opsctl-{self.context.run}-p{self.phase}s{self.position}-{self.hash[:6]}.service"

    @property
    def planned(self) -> tuple[Cell, ...]:
        """The cells; none where they are unknown."""
        return self.cells or ()

    def _says(self) -> str:
        if self.cells is None:
            return f"Measure {self.step}: cells unknown: {self.unknown_because}."
        return f"Measure {self.step}: {counted(len(self.cells), 'cell')}{_extent(self.cells)}."


@dataclass(frozen=True, kw_only=True)
class Clear(OnService):
    """End everything that the run started, so that production can start. The service is production.

    Production itself is stopped only where it is dead, or loads in silence past its limit; where it is to stay down,
    always.
    """

    kind = "clear"
    proof = "opsctl.slice is inactive, and production's state was read"
    leave_down: bool = False
    ends: str = ""
    """The unit that serves until then; "" where none does."""

    def _says(self) -> str:
        if self.leave_down:
            return f"Stop everything that this run started, by opsctl.slice, and {self.unit}."
        return f"Stop everything that this run started, by opsctl.slice; {self.unit} only where it is dead."


@dataclass(frozen=True, kw_only=True)
class StartDependent(Action):
    """Start a unit that systemd stopped with production."""

    kind = "start-dependent"
    needs = "production verified"
    proof = "systemd says that the unit is active"
    unit: str

    def _says(self) -> str:
        return f"Start {self.unit}, which stops with production."


@dataclass(frozen=True, kw_only=True)
class LeaveDown(OnService):
    """Leave production down, as it was found and as ``--if-down leave`` asks."""

    kind = "leave-down"
    proof = "systemd says that production's unit is inactive, as it was found"

    def _says(self) -> str:
        return f"Leave {self.service.name} down: it was found so, and --if-down leave asks for it."


@dataclass(frozen=True, kw_only=True)
class TrafficIn(OnService):
    """Put production back into the load balancer."""

    kind = "traffic-in"
    needs = "production verified"
    proof = "the command, and `traffic: check`, ended with status 0"

    def _says(self) -> str:
        return f"Put {self.service.name} back into the load balancer: {shlex.join(self.service.traffic.in_)}."


@dataclass(frozen=True, kw_only=True)
class RemoveVariant(OnService):
    """Remove the unit of a variant that this run installed."""

    kind = "remove-variant"
    proof = "the unit file is gone, or will be at the next boot"

    def _says(self) -> str:
        return f"Remove {self.unit}."


@dataclass(frozen=True, kw_only=True)
class Release(Action):
    """Close the lease."""

    kind = "release"
    needs = "production verified, or left down as asked"
    proof = "the guard closed the lease"

    def _says(self) -> str:
        return "Release the lease."


@dataclass(frozen=True)
class Downtime:
    """How long production does not serve.

    ``measured`` is the sum of the parts that were measured before (its spread the root of the summed
    squares, its samples those of the part that has fewest), ``unknown`` names the others. ``most`` is the
    sum of the limits in seconds, by which the restore has begun and its first load has ended.
    """

    measured: Estimate
    unknown: tuple[str, ...]
    most: float

    @property
    def expected(self) -> Estimate | None:
        """The whole, or None where a part was never measured."""
        return None if self.unknown else self.measured


@dataclass(frozen=True)
class PhasePlan:
    """One phase of one round: what must serve, and its actions, those of a retry behind the load they repeat."""

    ordinal: int
    name: str
    round: int
    serve: str
    service: ResolvedService | None
    optional: bool
    actions: tuple[Action, ...]
    steps: tuple[Measure, ...]
    """Every step of the phase; those that an earlier controller verified have no action any more."""
    done: frozenset[str] = frozenset()
    """Ids of steps that an earlier controller of this run verified, and that are unchanged."""


@dataclass(frozen=True)
class HostPlan:
    """What a run does on one host, in the order in which it is printed, executed and journalled."""

    host: str
    production: ResolvedService
    restores: bool
    """False where production was found down and is to stay so."""
    setup: tuple[Action, ...]
    """Guard, lease and variants: production still serves."""
    phases: tuple[PhasePlan, ...]
    give_back: tuple[Action, ...]
    """Production made to serve, or left down, after a campaign in which nothing failed."""
    restore: tuple[Action, ...]
    """The same after a failure, or where the give-back failed."""
    closing: tuple[Action, ...]
    """Dependents, traffic, variants, the lease: once production is verified."""
    downtime: Downtime | None = None
    """None: production serves all the time."""
    found: tuple[str, ...] = ()
    """What the probes saw, a line each."""
    notices: tuple[str, ...] = ()
    """What production's users notice."""
    refusals: tuple[OpsctlError, ...] = ()
    """Why a run would be refused now (exit 2 or 4); a run raises the first."""
    unknown: tuple[str, ...] = ()
    """What could not be found out."""

    @property
    def actions(self) -> tuple[Action, ...]:
        """Every action, the branches too."""
        return tuple(self._all())

    def _all(self) -> Iterator[Action]:
        yield from self.setup
        for phase in self.phases:
            yield from phase.actions
        yield from self.give_back
        yield from self.restore
        yield from self.closing

    @property
    def main(self) -> tuple[Action, ...]:
        """What is executed when nothing fails."""
        return tuple(action for action in self.actions if action.branch is Branch.MAIN)

    @property
    def loads(self) -> int:
        """How many times weights are loaded when nothing fails."""
        return sum(isinstance(action, Start) for action in self.main)

    @property
    def steps(self) -> tuple[Measure, ...]:
        """The measuring steps that are still to be done, in order."""
        return tuple(action for action in self.main if isinstance(action, Measure))


@dataclass(frozen=True)
class Saving:
    """Another order of the same phases that needs fewer loads on each host."""

    loads: int
    instead_of: int
    order: tuple[str, ...]
    because_of_rounds: bool = False


@dataclass(frozen=True)
class Plan:
    """A playbook on its hosts. Hosts are sorted: that is the order in which they are armed, all or none."""

    playbook: str
    description: str
    hosts: tuple[HostPlan, ...]
    saving: Saving | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def loads(self) -> int:
        """Weight loads on all hosts together."""
        return sum(host.loads for host in self.hosts)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _extent(cells: tuple[Cell, ...]) -> str:
    if not cells:
        return ""
    return f" ({cells[0].id})" if len(cells) == 1 else f" ({cells[0].id} … {cells[-1].id})"

"""What a plan is made of: actions in order, what they cost, and what production's users notice. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from opsctl.plan.facts import Estimate
from opsctl.results import Cell


@dataclass(frozen=True)
class Action:
    """One thing that a run does on a host. ``phase`` is "" for what belongs to no phase."""

    kind: ClassVar[str] = ""
    phase: str = ""
    round: int = 1


@dataclass(frozen=True)
class Arm(Action):
    """Write the lease and see the guard tick; nothing is touched before."""

    kind: ClassVar[str] = "arm"
    ttl: float = 0.0
    restores: tuple[str, ...] = ()
    """Units that the guard brings back."""


@dataclass(frozen=True)
class TakeOut(Action):
    """Take production out of the load balancer."""

    kind: ClassVar[str] = "take-out"
    service: str = ""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stop(Action):
    """Stop a unit and see it inactive."""

    kind: ClassVar[str] = "stop"
    service: str = ""
    unit: str = ""
    production: bool = False
    limit: float = 0.0
    expected: Estimate | None = None


@dataclass(frozen=True)
class Gate(Action):
    """Wait until no process holds the GPUs and their memory is free, stable over samples."""

    kind: ClassVar[str] = "gate"
    limit: float = 0.0


@dataclass(frozen=True)
class InstallVariant(Action):
    """Derive a variant's unit from what production runs now, and write it to /run."""

    kind: ClassVar[str] = "install-variant"
    service: str = ""
    unit: str = ""
    of: str = ""


@dataclass(frozen=True)
class Start(Action):
    """Start a unit: from here its weights load."""

    kind: ClassVar[str] = "start"
    service: str = ""
    unit: str = ""


@dataclass(frozen=True)
class AwaitReady(Action):
    """Wait until a service serves: completions with tokens, in a row."""

    kind: ClassVar[str] = "await-ready"
    service: str = ""
    completions: int = 1
    limit: float = 0.0
    attempts: int = 1
    expected: Estimate | None = None


@dataclass(frozen=True)
class RunStep(Action):
    """Measure."""

    kind: ClassVar[str] = "run-step"
    step: str = ""
    stage: str = ""
    name: str = ""
    cells: tuple[Cell, ...] | None = None
    """None: they cannot be known yet, and ``unknown_because`` says why."""
    unknown_because: str = ""
    limit: float = 0.0
    expected: Estimate | None = None


@dataclass(frozen=True)
class Restore(Action):
    """Start production, and its dependents, and wait until it serves; tried until it does."""

    kind: ClassVar[str] = "restore"
    service: str = ""
    unit: str = ""
    dependents: tuple[str, ...] | None = None
    """None: unknown."""
    limit: float = 0.0
    expected: Estimate | None = None


@dataclass(frozen=True)
class LeaveDown(Action):
    """Leave production down, as it was found and as ``--if-down leave`` asks."""

    kind: ClassVar[str] = "leave-down"
    service: str = ""


@dataclass(frozen=True)
class Verify(Action):
    """Verify production by completions."""

    kind: ClassVar[str] = "verify"
    service: str = ""
    completions: int = 1


@dataclass(frozen=True)
class PutIn(Action):
    """Put production back into the load balancer."""

    kind: ClassVar[str] = "put-in"
    service: str = ""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class RemoveVariant(Action):
    """Remove the unit of a variant that this run installed."""

    kind: ClassVar[str] = "remove-variant"
    service: str = ""
    unit: str = ""


@dataclass(frozen=True)
class Release(Action):
    """Close the lease."""

    kind: ClassVar[str] = "release"


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
class HostPlan:
    """What a run does on one host, in order."""

    host: str
    actions: tuple[Action, ...]
    downtime: Downtime | None
    """None: production serves all the time."""
    found: tuple[str, ...] = ()
    """What the probes saw, a line each."""
    notices: tuple[str, ...] = ()
    """What production's users notice."""
    stops: tuple[str, ...] = ()
    """Why a run would be refused now (exit 2 or 4)."""
    unknown: tuple[str, ...] = ()
    """What could not be found out."""

    @property
    def loads(self) -> int:
        """How many times weights are loaded."""
        return sum(isinstance(action, Start | Restore) for action in self.actions)

    @property
    def steps(self) -> tuple[RunStep, ...]:
        """The measuring steps, in order."""
        return tuple(action for action in self.actions if isinstance(action, RunStep))


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

"""Actions in order: the plan of a phase, of a host, of a run; what it costs, and why it would be refused. Data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from opsctl.errors import OpsctlError
from opsctl.plan.actions import Action, Branch, Measure, Start
from opsctl.plan.facts import Estimate
from opsctl.playbook.resolved import ResolvedService


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
        """The sum, or None where a part was never measured."""
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

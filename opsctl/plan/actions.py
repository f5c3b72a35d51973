"""The actions of a campaign: what is printed by ``opsctl plan``, executed and journalled by a run. Data only.

An action says what it needs, what it does in one sentence, how long that may take, and what evidence makes it done.
Its ``id`` is stable: the same playbook and host give the same ids, in a resumed run too.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from opsctl.plan.facts import Estimate
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import counted, format_duration
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
class Action(ABC):
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

    @abstractmethod
    def _says(self) -> str: ...


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
    triggers: tuple[str, ...] = ()
    """Units that start production by themselves, stopped by the run: it starts them again, too."""
    rehearse: bool = False
    """Whether production serves now: the guard's own probe must verify it first."""

    def _says(self) -> str:
        restored = f"restores {', '.join(self.restores)}" if self.restores else "ends what this run started"
        restored += f" and starts {', '.join(self.triggers)} again" if self.triggers else ""
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
class StopTrigger(Action):
    """Stop a unit that would start production in the middle of the campaign: a timer, socket, path, or keeper."""

    kind = "stop-trigger"
    proof = "systemd says that the unit is inactive"
    unit: str

    def _says(self) -> str:
        return f"Stop {self.unit}, which would start production in mid-campaign."


@dataclass(frozen=True, kw_only=True)
class Stop(OnService):
    """Stop a unit and see it inactive."""

    kind = "stop"
    proof = "systemd says that the unit is inactive"

    def _says(self) -> str:
        leftovers = ", and end what it leaves behind" if self.service.ends_leftovers else ""
        return f"Stop {self.unit} and wait until it is inactive{leftovers}."


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
        leftovers = "; end what it left behind" if self.service.ends_leftovers else ""
        if self.leave_down:
            return f"Stop everything that this run started, by opsctl.slice, and {self.unit}{leftovers}."
        return f"Stop everything that this run started, by opsctl.slice; {self.unit} only where it is dead{leftovers}."


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
class StartTrigger(Action):
    """Start a unit that starts production, which the run stopped. systemd starts no socket whose service runs."""

    kind = "start-trigger"
    proof = "systemd says that the unit is active"
    unit: str

    def _says(self) -> str:
        return f"Start {self.unit}, which starts production."


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


def _extent(cells: tuple[Cell, ...]) -> str:
    if not cells:
        return ""
    return f" ({cells[0].id})" if len(cells) == 1 else f" ({cells[0].id} … {cells[-1].id})"

"""From a playbook, an inventory and what the preflight saw, to the actions of a run. Pure: the same in, the same out.

The order of phases is the playbook's own. A phase whose service serves already needs no swap, so the number
of weight loads is the least that the order allows; ``saving.py`` says what another order would save.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from opsctl.errors import OpsctlError, StageError
from opsctl.plan.actions import (
    Action,
    Arm,
    AwaitReady,
    Branch,
    Clear,
    Gate,
    InstallGuard,
    InstallVariant,
    LeaveDown,
    Measure,
    Release,
    RemoveVariant,
    Start,
    StartDependent,
    StartTrigger,
    Stop,
    StopStage,
    StopTrigger,
    TakeOver,
    TrafficIn,
    TrafficOut,
    Verify,
)
from opsctl.plan.costs import downtime_of, found_lines, notices_of, unknown_lines
from opsctl.plan.facts import HostFacts, IfDown, Resumed, Seen
from opsctl.plan.hostplan import HostPlan, PhasePlan, Plan
from opsctl.plan.saving import saving_of
from opsctl.playbook.hashing import content_hash
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.models import NOTHING
from opsctl.playbook.playbook_checks import slug
from opsctl.playbook.resolved import ResolvedService
from opsctl.playbook.steps import Phase, Playbook, Step
from opsctl.results import Cell
from opsctl.stages import STAGES
from opsctl.stages.base import StageContext

CellsOf = Callable[[Step, StageContext], tuple[Cell, ...]]


def cells_by_stage(step: Step, context: StageContext) -> tuple[Cell, ...]:
    """Return the cells of a step as its stage enumerates them. Raises StageError."""
    return STAGES[step.stage].cells(step.options, context)


def step_slug(step: str) -> str:
    """Return a step's id as a folder name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", step)


def plan(
    playbooks: Mapping[str, Playbook],
    inventory: LoadedInventory,
    seen: Mapping[str, HostFacts],
    *,
    run: str = "RUN",
    if_down: IfDown = "refuse",
    cells_of: CellsOf = cells_by_stage,
) -> Plan:
    """Return what a run does. ``playbooks`` is by host, as ``load_playbooks`` gives it.

    A host that is missing in ``seen`` is planned with everything unknown. ``if_down`` is what a run does where
    production was found down: refuse, restore it at the end, or leave it down. Raises UnfitError where a host has
    not exactly one production.
    """
    names = sorted(playbooks)
    peers = tuple((name, inventory.host(name).address) for name in names)
    hosts = tuple(
        _Planner(playbooks[name], inventory, seen.get(name) or HostFacts(name), run, peers, if_down, cells_of).planned()
        for name in names
    )
    first = playbooks[names[0]]
    return Plan(first.name, first.description, hosts, saving_of(first, {hosts[0].production.name}))


@dataclass
class _Planner:
    """One host while it is planned: what serves at this point of the plan, and what went before."""

    playbook: Playbook
    inventory: LoadedInventory
    facts: HostFacts
    run: str
    peers: tuple[tuple[str, str], ...]
    if_down: IfDown
    cells_of: CellsOf
    production: ResolvedService = field(init=False)
    serving: ResolvedService | None = field(init=False, default=None)
    """What holds the GPUs."""
    answers: bool = field(init=False, default=True)
    """Whether it serves, or is only there."""
    free: bool = field(init=False, default=True)
    """Whether the GPUs are known to be free when nothing serves."""
    taken_out: bool = field(init=False, default=False)
    waiting: set[str] = field(init=False, default_factory=set)
    """Triggers of production that run at this point of the plan."""
    errors: list[OpsctlError] = field(init=False, default_factory=list)

    def planned(self) -> HostPlan:
        """Return the plan of the host."""
        host, facts = self.facts.host, self.facts
        self.production = self.inventory.only_production(host)
        self._look()
        self.waiting = set(facts.triggers)
        already_down = self.serving != self.production or not self.answers
        restores = self._restores()
        variants = self._variants()
        setup = self._setup(restores, variants)
        phases = self._phases()
        give_back = self._give_back(restores)
        made = HostPlan(
            host=host,
            production=self.production,
            restores=restores,
            setup=setup,
            phases=phases,
            give_back=give_back,
            restore=self._after_failure(restores),
            closing=self._closing(restores, variants),
            found=found_lines(facts, self.production),
            refusals=(*facts.refusals, *(self.errors if facts.units else ())),
            unknown=unknown_lines(facts, self.production),
        )
        downtime = downtime_of(made.main, self.production, self.playbook.limit, already_down=already_down)
        return replace(made, downtime=downtime, notices=notices_of(made.main, self.production, downtime, facts))

    # -- what is there

    def _look(self) -> None:
        """Take in what holds the GPUs now. A host that was not looked at is planned as one whose production serves."""
        services = [self.production, *(service for service in self._wanted() if service != self.production)]
        if all(self.facts.running(service.name) is None for service in services):
            down = self.facts.services.get(self.production.name) is Seen.DOWN
            self.serving = None if down else self.production
            return
        self.serving = next((service for service in services if self.facts.running(service.name)), None)
        if self.serving is not None:
            self.answers = self.facts.services.get(self.serving.name) in {Seen.SERVING, None}
        elif self.facts.resumed is not None:
            # An earlier controller may have died between a stop and its gate.
            self.free = bool(self.facts.resumed.stages)

    def _restores(self) -> bool:
        """Whether production is to serve at the end: it did before, does now, or is asked for."""
        was = self.facts.resumed.as_found if self.facts.resumed else ""
        now = self.facts.services.get(self.production.name)
        return self.if_down != "leave" or "serving" in {was, now} or (was == "" and now is None)

    def _wanted(self) -> list[ResolvedService]:
        """Return every service that a phase wants to serve, in order."""
        names = dict.fromkeys(phase.serve for phase in self.playbook.phases if phase.serve != NOTHING)
        return [self.inventory.service_on(name, self.facts.host) for name in names]

    def _variants(self) -> list[ResolvedService]:
        return [service for service in self._wanted() if service.is_variant]

    # -- before the first phase

    def _setup(self, restores: bool, variants: list[ResolvedService]) -> tuple[Action, ...]:  # noqa: FBT001
        resumed = self.facts.resumed or Resumed()
        actions: list[Action] = []
        if resumed.token is not None:
            actions.append(TakeOver(id="take-over", token=resumed.token))
        else:
            units = (self.production.unit,) if restores else ()
            arm = Arm(
                id="arm",
                ttl=self.playbook.lease.ttl,
                restores=units,
                dependents=(self.facts.dependents or ()) if restores else (),
                triggers=self.facts.triggers,
                rehearse=self.facts.services.get(self.production.name) is Seen.SERVING,
            )
            actions += [InstallGuard(id="install-guard"), arm]
        wanted = {step.unit for phase in self._enumerated() for step in phase.steps} if resumed.stages else set()
        actions += [
            StopStage(id=f"stop-stage/{unit}", unit=unit) for unit in sorted(resumed.stages) if unit not in wanted
        ]
        actions += [
            InstallVariant(
                id=f"install-variant/{service.name}",
                service=service,
                trace_dir=self._trace_dir(service),
                engine_version=self.facts.engine_version,
            )
            for service in variants
        ]
        return tuple(actions)

    def _trace_dir(self, service: ResolvedService) -> str:
        return f"{self.facts.state_dir}/runs/{self.run}/traces/{service.name}"

    # -- phases

    def _enumerated(self) -> list[PhasePlan]:
        """Return every phase of every round with its steps, and no actions yet."""
        phases: list[PhasePlan] = []
        for number in range(1, self.playbook.rounds.count + 1):
            for phase in self.playbook.phases:
                phases.append(self._enumerate(phase, number, len(phases)))
        return phases

    def _enumerate(self, phase: Phase, number: int, ordinal: int) -> PhasePlan:
        service = None if phase.serve == NOTHING else self.inventory.service_on(phase.serve, self.facts.host)
        steps = tuple(self._measure(step, service, ordinal, place, number) for place, step in enumerate(phase.steps))
        before = self.facts.resumed.done if self.facts.resumed else frozenset()
        done = frozenset(step.step for step in steps if (step.step, step.hash) in before)
        return PhasePlan(ordinal, phase.name, number, phase.serve, service, phase.optional, (), steps, done)

    def _phases(self) -> tuple[PhasePlan, ...]:
        phases = self._enumerated()
        for index, phase in enumerate(phases):
            todo = [step for step in phase.steps if step.step not in phase.done]
            if todo or not phase.steps:
                running = self.facts.resumed is not None and any(
                    step.unit in self.facts.resumed.stages for step in todo
                )
                swap = () if phase.service is None and running else self._swap(phase)
                phases[index] = replace(phase, actions=(*swap, *todo))
        return tuple(phases)

    def _swap(self, phase: PhasePlan) -> tuple[Action, ...]:
        """Return what makes the phase's service serve, and nothing else hold the GPUs."""
        at = _Place(phase, self.playbook.rounds.count > 1)
        wanted = phase.service
        if wanted is not None and self.serving == wanted:
            if self.answers:
                return (Verify(**at("verify"), service=wanted, limit=3 * wanted.readiness.request_limit),)
            return self._load(at, wanted) if self.facts.services.get(wanted.name) is Seen.LOADING else (
                *self._take_down(at), *self._load(at, wanted))  # fmt: skip
        quiet = () if wanted == self.production else self._stop_triggers(at, sockets=self.serving != self.production)
        actions = self._take_down(at)
        if not actions and not self.free:
            actions = (Gate(**at("gate"), limit=self.production.stop.gpu_limit),)
        self.serving, self.free = None, True
        return (*quiet, *actions, *(() if wanted is None else self._load(at, wanted)))

    def _stop_triggers(self, at: _Place, *, sockets: bool) -> tuple[Action, ...]:
        """Stop what would start production in mid-campaign, once.

        Sockets are stopped last, right before production (``_stop_and_gate``): what else starts production would start
        a socket that it requires again, and production takes connections from its socket until it stops.
        """
        waiting = [one for one in self.facts.triggers if one in self.waiting]
        stops = sorted((one for one in waiting if sockets or not _is_socket(one)), key=_is_socket)
        self.waiting -= set(stops)
        limit = self.production.stop.limit
        return tuple(StopTrigger(**at(f"stop-trigger/{unit}"), unit=unit, limit=limit) for unit in stops)

    def _take_down(self, at: _Place) -> tuple[Action, ...]:
        """Stop what holds the GPUs, production out of the load balancer first, and see the GPUs free."""
        leaving = self.serving
        if leaving is None:
            return ()
        actions: list[Action] = []
        if leaving == self.production and leaving.traffic.out and self.answers and not self.taken_out:
            actions.append(TrafficOut(**at("traffic-out"), service=leaving, limit=leaving.traffic.limit))
            self.taken_out = True
        return (*actions, *self._stop_and_gate(at, leaving))

    def _stop_and_gate(self, at: _Place, leaving: ResolvedService) -> tuple[Action, ...]:
        limit, before = leaving.stop.drain + leaving.stop.limit, self.facts.stops.get(leaving.name)
        sockets = {one for one in self.waiting if _is_socket(one)} if leaving == self.production else set()
        self.waiting -= sockets
        return (
            *(StopTrigger(**at(f"stop-trigger/{one}"), unit=one, limit=leaving.stop.limit) for one in sorted(sockets)),
            Stop(**at("stop"), service=leaving, limit=limit, forecast=before),
            Gate(**at("gate"), limit=leaving.stop.gpu_limit),
        )

    def _load(self, at: _Place, wanted: ResolvedService) -> tuple[Action, ...]:
        """Return the start of a service and the wait for it, and the same again behind its stop as a retry."""
        self.serving, self.answers = wanted, True
        attempts = self.playbook.load.attempts
        actions = self._start(at, wanted, attempts)
        if attempts > 1:
            retry = at.retried()
            actions += (*self._stop_and_gate(retry, wanted), *self._start(retry, wanted, attempts))
        return actions

    def _start(self, at: _Place, wanted: ResolvedService, attempts: int) -> tuple[Action, ...]:
        limit, before = wanted.readiness.limit, self.facts.loads.get(wanted.name)
        # systemd refuses to start a socket whose service runs.
        sockets = [one for one in self.facts.triggers if _is_socket(one)] if wanted == self.production else []
        self.waiting |= set(sockets)
        return (
            *(StartTrigger(**at(f"start-socket/{unit}"), unit=unit) for unit in sockets),
            Start(**at("start"), service=wanted),
            AwaitReady(**at("await-ready"), service=wanted, limit=limit, forecast=before, attempts=attempts),
        )

    def _measure(
        self, step: Step, service: ResolvedService | None, ordinal: int, position: int, number: int
    ) -> Measure:
        id_ = step.id if self.playbook.rounds.count == 1 else f"round-{number}/{step.id}"
        context = StageContext(
            run=self.run,
            step=id_,
            host_name=self.facts.host,
            host=self.inventory.host(self.facts.host),
            gpus=self.facts.gpus,
            folder=f"{self.facts.state_dir}/runs/{self.run}/{step_slug(id_)}",
            service_name=service.name if service else None,
            service=service,
            production=self.production,
            trace_dir=self._trace_dir(service) if service and service.profiler else None,
            model_config=self.facts.model_config,
            engine_version=self.facts.engine_version,
            peers=self.peers,
        )
        cells: tuple[Cell, ...] | None = None
        unknown = ""
        try:
            cells = self.cells_of(step, context)
        except StageError as error:
            unknown = error.message
            self.errors += [error] if error.message not in {known.message for known in self.errors} else []
        parts = (content_hash(step), content_hash(service) if service else NOTHING, self.facts.unit_hash)
        return Measure(
            id=id_,
            phase=ordinal,
            limit=step.options.limit,
            forecast=self.facts.steps.get(content_hash(step.options)),
            step=id_,
            stage=step.stage,
            name=step.name,
            position=position,
            options=step.options,
            context=context,
            hash=hashlib.sha256("/".join(parts).encode()).hexdigest()[:32],
            cells=cells,
            unknown_because=unknown,
        )

    # -- after the last phase

    def _give_back(self, restores: bool) -> tuple[Action, ...]:  # noqa: FBT001
        at = _Place(None)
        if restores and self.serving == self.production and self.answers:
            return (self._verify(at),)
        return self._bring_back(at, restores)

    def _after_failure(self, restores: bool) -> tuple[Action, ...]:  # noqa: FBT001
        at = _Place(None, branch=Branch.RESTORE)
        again = self._bring_back(at, restores)
        return (self._verify(at), *again) if restores else again

    def _verify(self, at: _Place) -> Verify:
        return Verify(**at("verify"), service=self.production, limit=3 * self.production.readiness.request_limit)

    def _bring_back(self, at: _Place, restores: bool) -> tuple[Action, ...]:  # noqa: FBT001
        production = self.production
        before = self.facts.stops.get(self.serving.name) if self.serving else None
        actions: tuple[Action, ...] = (
            Clear(
                **at("clear"),
                service=production,
                limit=production.stop.limit,
                forecast=before,
                ends=self.serving.unit if self.serving and at.branch is Branch.MAIN else "",
                leave_down=not restores,
            ),
            Gate(**at("gate"), limit=production.stop.gpu_limit),
        )
        if not restores:
            return (*actions, LeaveDown(**at("leave-down"), service=production))
        return (*actions, *self._start(at, production, 1))

    def _closing(self, restores: bool, variants: list[ResolvedService]) -> tuple[Action, ...]:  # noqa: FBT001
        production, at = self.production, _Place(None)
        actions: list[Action] = []
        if restores:
            actions += [
                StartDependent(**at(f"start-dependent/{unit}"), unit=unit) for unit in self.facts.dependents or ()
            ]
        # Where production is left down its sockets may wait for it, as they did before.
        actions += [StartTrigger(**at(f"start-trigger/{unit}"), unit=unit) for unit in self.facts.triggers]
        if restores and production.traffic.in_ and (self.taken_out or self.facts.resumed is not None):
            actions.append(TrafficIn(**at("traffic-in"), service=production, limit=production.traffic.limit))
        actions += [RemoveVariant(**at(f"remove-variant/{one.name}"), service=one) for one in variants]
        return (*actions, Release(**at("release")))


def _is_socket(unit: str) -> bool:
    return unit.endswith(".socket")


@dataclass(frozen=True)
class _Place:
    """Where in the plan an action stands: what its id begins with."""

    phase: PhasePlan | None
    rounds: bool = False
    branch: Branch = Branch.MAIN

    def retried(self) -> _Place:
        """Return the same place in the branch of a retry."""
        return replace(self, branch=Branch.RETRY)

    def __call__(self, what: str) -> dict[str, Any]:
        """Return id, phase and branch of an action here."""
        if self.phase is None:
            first = "give-back" if self.branch is Branch.MAIN else "restore"
            return {"id": f"{first}/{what}", "branch": self.branch, "phase": None}
        round_ = f"round-{self.phase.round}/" if self.rounds else ""
        retry = "retry/" if self.branch is Branch.RETRY else ""
        return {
            "id": f"{round_}{slug(self.phase.name)}/{retry}{what}",
            "branch": self.branch,
            "phase": self.phase.ordinal,
        }

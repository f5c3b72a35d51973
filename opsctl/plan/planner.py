"""From a playbook, an inventory and what probes saw, to ordered actions. Pure: the same in, the same out.

The order of phases is the playbook's own. A phase whose service serves already needs no swap, so the number
of weight loads is the least that the order allows; ``saving.py`` says what another order would save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opsctl.errors import StageError
from opsctl.plan.actions import (
    Action,
    Arm,
    AwaitReady,
    Gate,
    HostPlan,
    InstallVariant,
    LeaveDown,
    Plan,
    PutIn,
    Release,
    RemoveVariant,
    Restore,
    RunStep,
    Start,
    Stop,
    TakeOut,
    Verify,
)
from opsctl.plan.costs import downtime_of, found_lines, notices_of, stops_of, unknown_lines
from opsctl.plan.facts import HostFacts, IfDown, Seen
from opsctl.plan.saving import saving_of
from opsctl.playbook.hashing import content_hash
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.models import NOTHING
from opsctl.playbook.resolved import ResolvedService
from opsctl.playbook.steps import Phase, Playbook, Step
from opsctl.results import Cell
from opsctl.stages import STAGES
from opsctl.stages.base import StageContext

CellsOf = Callable[[Step, StageContext], tuple[Cell, ...]]


def cells_by_stage(step: Step, context: StageContext) -> tuple[Cell, ...]:
    """Return the cells of a step as its stage enumerates them. Raises StageError."""
    return STAGES[step.stage].cells(step.options, context)


def plan(
    playbooks: Mapping[str, Playbook],
    inventory: LoadedInventory,
    seen: Mapping[str, HostFacts],
    *,
    if_down: IfDown = "refuse",
    cells_of: CellsOf = cells_by_stage,
) -> Plan:
    """Return what a run would do. ``playbooks`` is by host, as ``load_playbooks`` gives it.

    A host that is missing in ``seen`` is planned with everything unknown. ``if_down`` is what a run does where
    production was found down: refuse, restore it at the end, or leave it down.
    """
    hosts = tuple(
        _plan_host(
            playbooks[name],
            _Board(
                name, inventory, seen.get(name) or HostFacts(name), if_down, cells_of, playbooks[name].load.attempts
            ),
        )
        for name in sorted(playbooks)
    )
    first = next(iter(sorted(playbooks)))
    playbook = playbooks[first]
    productions = {service.name for service in inventory.production_of(first)}
    return Plan(playbook.name, playbook.description, hosts, saving_of(playbook, productions))


@dataclass
class _Board:
    """One host while it is planned: what serves now, and the actions so far."""

    host: str
    inventory: LoadedInventory
    facts: HostFacts
    if_down: IfDown
    cells_of: CellsOf
    attempts: int
    actions: list[Action] = field(default_factory=list)
    serving: tuple[ResolvedService, ...] = ()
    installed: list[ResolvedService] = field(default_factory=list)
    taken_out: bool = False
    phase: str = ""
    round: int = 1

    @property
    def production(self) -> tuple[ResolvedService, ...]:
        return self.inventory.production_of(self.host)

    def add(self, action: Action) -> None:
        self.actions.append(action)


def _plan_host(playbook: Playbook, board: _Board) -> HostPlan:
    down = {service.name for service in board.production if board.facts.services.get(service.name) is Seen.DOWN}
    board.serving = tuple(service for service in board.production if service.name not in down)
    board.add(Arm(ttl=playbook.lease.ttl, restores=tuple(service.unit for service in board.production)))
    for number in range(1, playbook.rounds.count + 1):
        for phase in playbook.phases:
            board.phase, board.round = phase.name, number
            _plan_phase(board, playbook, phase)
    board.phase, board.round = "", 1
    _give_back(board, down if board.if_down == "leave" else set())
    actions = tuple(board.actions)
    downtime = downtime_of(actions, playbook.limit, already_down=down)
    return HostPlan(
        board.host,
        actions,
        downtime,
        found=found_lines(board.facts, board.production),
        notices=notices_of(actions, board.production, downtime, board.facts),
        stops=stops_of(board.facts, board.production, _wanted(board, playbook), board.if_down),
        unknown=unknown_lines(board.facts, board.production),
    )


def _wanted(board: _Board, playbook: Playbook) -> tuple[ResolvedService, ...]:
    names = dict.fromkeys(phase.serve for phase in playbook.phases if phase.serve != NOTHING)
    return tuple(board.inventory.service_on(name, board.host) for name in names)


def _plan_phase(board: _Board, playbook: Playbook, phase: Phase) -> None:
    service = None if phase.serve == NOTHING else board.inventory.service_on(phase.serve, board.host)
    if service is None:
        _stop_all(board)
    elif service.name not in {one.name for one in board.serving}:
        _stop_all(board)
        _bring_up(board, service)
    for step in phase.steps:
        _plan_step(board, playbook, step, service)


def _stop_all(board: _Board) -> None:
    """Stop whatever serves, production out of the load balancer first, and see the GPUs free."""
    for service in board.serving:
        production = not service.is_variant
        if production and not board.taken_out and service.traffic.out:
            board.add(TakeOut(board.phase, board.round, service.name, service.traffic.out))
        board.taken_out = board.taken_out or production
        board.add(
            Stop(
                board.phase,
                board.round,
                service.name,
                service.unit,
                production=production,
                limit=service.stop.drain + service.stop.limit,
                expected=board.facts.stops.get(service.name),
            )
        )
    if board.serving:
        board.add(Gate(board.phase, board.round, max(service.stop.gpu_limit for service in board.serving)))
    board.serving = ()


def _bring_up(board: _Board, service: ResolvedService) -> None:
    if service.is_variant and service.name not in {one.name for one in board.installed}:
        board.add(InstallVariant(board.phase, board.round, service.name, service.unit, service.of or ""))
        board.installed.append(service)
    board.add(Start(board.phase, board.round, service.name, service.unit))
    board.add(
        AwaitReady(
            board.phase,
            board.round,
            service.name,
            service.readiness.completions,
            service.readiness.limit,
            board.attempts,
            board.facts.loads.get(service.name),
        )
    )
    board.serving = (service,)


def _plan_step(board: _Board, playbook: Playbook, step: Step, service: ResolvedService | None) -> None:
    id_ = step.id if playbook.rounds.count == 1 else f"round-{board.round}/{step.id}"
    folder = f"{board.facts.state_dir}/runs/RUN"
    config_of = service.of or service.name if service else next((one.name for one in board.production), "")
    context = StageContext(
        run="RUN",
        step=id_,
        host_name=board.host,
        host=board.inventory.host(board.host),
        folder=f"{folder}/{id_.replace('/', '-')}",
        service_name=service.name if service else None,
        service=service,
        production=board.production[0] if len(board.production) == 1 else None,
        trace_dir=f"{folder}/traces/{service.name}" if service and service.profiler else None,
        model_config=board.facts.model_config.get(config_of),
        engine_version=board.facts.engine_versions.get(config_of),
    )
    cells: tuple[Cell, ...] | None = None
    unknown = ""
    try:
        cells = board.cells_of(step, context)
    except StageError as error:
        unknown = error.message
    board.add(
        RunStep(
            board.phase,
            board.round,
            id_,
            step.stage,
            step.name,
            cells,
            unknown,
            step.options.limit,
            board.facts.steps.get(content_hash(step.options)),
        )
    )


def _give_back(board: _Board, left_down: set[str]) -> None:
    """Restore what does not serve, verify production, put it back, remove variants, close the lease."""
    wanted = {service.name for service in board.production} - left_down
    if any(service.name not in wanted for service in board.serving):
        _stop_all(board)
    serving = {service.name for service in board.serving}
    for service in board.production:
        if service.name in left_down:
            board.add(LeaveDown(service=service.name))
        elif service.name not in serving:
            board.add(
                Restore(
                    service=service.name,
                    unit=service.unit,
                    dependents=board.facts.dependents.get(service.name),
                    limit=service.readiness.limit,
                    expected=board.facts.loads.get(service.name),
                )
            )
    for service in board.production:
        if service.name not in left_down:
            board.add(Verify(service=service.name, completions=service.readiness.completions))
            if board.taken_out and service.traffic.in_:
                board.add(PutIn(service=service.name, argv=service.traffic.in_))
    for service in board.installed:
        board.add(RemoveVariant(service=service.name, unit=service.unit))
    board.add(Release())

"""A host's part of a run, enumerated to the last cell before anything is touched, and written down as pending."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.model_config import read_model_config
from opsctl.campaign.phases import PlannedPhase
from opsctl.campaign.preflight import Prepared
from opsctl.campaign.steps import PlannedStep, step_slug
from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.playbook.hashing import content_hash
from opsctl.playbook.models import NOTHING
from opsctl.playbook.resolved import ResolvedService
from opsctl.playbook.steps import Playbook, Step
from opsctl.results import State, StepResult
from opsctl.runs.events import Recorder
from opsctl.stages import STAGES
from opsctl.stages.base import StageContext


def plan_phases(playbook: Playbook, prepared: Prepared, recorder: Recorder, peers: tuple[tuple[str, str], ...]) -> None:
    """Give a prepared host its phases, each step with its cells, and write them into the journal.

    ``peers`` are (name, address) of every host of the run, in one order for all. Raises StageError where a
    stage's options cannot be met, HostError.
    """
    planner = _Planner(
        playbook=playbook,
        prepared=prepared,
        recorder=recorder,
        peers=peers,
        model_config=read_model_config(prepared.host, prepared.production),
        unit_hash=_unit_hash(prepared.host, prepared.production),
    )
    prepared.phases = tuple(planner.phases())


@dataclass(frozen=True)
class _Planner:
    playbook: Playbook
    prepared: Prepared
    recorder: Recorder
    peers: tuple[tuple[str, str], ...]
    model_config: dict[str, Any] | None
    unit_hash: str

    def phases(self) -> list[PlannedPhase]:
        """Return every phase of every round, in order."""
        planned: list[PlannedPhase] = []
        for round_ in range(1, self.playbook.rounds.count + 1):
            for phase in self.playbook.phases:
                ordinal = len(planned)
                self.recorder.journal.phase(
                    self.recorder.run,
                    self.prepared.host.name,
                    ordinal,
                    round_=round_,
                    name=phase.name,
                    serve=phase.serve,
                )
                service = None if phase.serve == NOTHING else self.prepared.services[phase.serve]
                steps = tuple(
                    self._step(step, service, ordinal, position, round_) for position, step in enumerate(phase.steps)
                )
                before = self.prepared.done
                done = {step.id: before[step.id, step.hash] for step in steps if (step.id, step.hash) in before}
                planned.append(PlannedPhase(ordinal, phase.name, service, steps, phase.optional, done))
        return planned

    def _step(
        self, step: Step, service: ResolvedService | None, ordinal: int, position: int, round_: int
    ) -> PlannedStep:
        run, host = self.recorder.run, self.prepared.host
        id_ = step.id if self.playbook.rounds.count == 1 else f"round-{round_}/{step.id}"
        profiled = service is not None and service.profiler is not None
        context = StageContext(
            run=run,
            step=id_,
            host_name=host.name,
            host=host.entry,
            folder=f"{host.state_dir}/runs/{run}/{step_slug(id_)}",
            service_name=service.name if service else None,
            service=service,
            production=self.prepared.production,
            trace_dir=f"{self.prepared.trace_dir}/{service.name}" if service and profiled else None,
            model_config=self.model_config,
            engine_version=self.prepared.engine_version,
            peers=self.peers,
        )
        cells = STAGES[step.stage].cells(step.options, context)
        planned = PlannedStep(
            id=id_,
            ordinal=ordinal,
            position=position,
            stage=step.stage,
            options=step.options,
            context=context,
            cells=cells,
            collect_into=self.recorder.journal.run_folder(run) / (host.name if len(self.peers) > 1 else ""),
            hash=self._hash(step, service),
        )
        self.recorder.journal.step(
            run,
            host.name,
            ordinal,
            position,
            id_=id_,
            stage=step.stage,
            name=step.name,
            options=step.options,
            hash_=planned.hash,
            planned=StepResult(stage=step.stage, state=State.PENDING, cells=cells),
        )
        return planned

    def _hash(self, step: Step, service: ResolvedService | None) -> str:
        parts = (content_hash(step), content_hash(service) if service else NOTHING, self.unit_hash)
        return hashlib.sha256("/".join(parts).encode()).hexdigest()[:32]


def _unit_hash(host: Host, service: ResolvedService) -> str:
    """Return a hash of the unit's files as they are on the host: a resume skips only what is unchanged."""
    deadline = Deadline(limits.CALL, f"files of {service.unit}")
    status = host.systemd().status(service.unit, deadline=deadline)
    digest = hashlib.sha256()
    for path in (status.fragment_path, *status.drop_in_paths):
        if path:
            digest.update(path.encode() + b"\0" + host.read_file(path, deadline=deadline))
    return digest.hexdigest()

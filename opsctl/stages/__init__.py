"""The measuring stages, by the name that playbooks use."""

from __future__ import annotations

from typing import Final

from opsctl.stages.base import Invocation, Stage, StageContext
from opsctl.stages.collectives import CollectivesStage
from opsctl.stages.command import CommandStage
from opsctl.stages.gemm import GemmStage
from opsctl.stages.profile import ProfileStage
from opsctl.stages.serving_benchmark import ServingBenchmarkStage

STAGE_BY_NAME: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (ServingBenchmarkStage(), ProfileStage(), GemmStage(), CollectivesStage(), CommandStage())
}

__all__ = ["STAGE_BY_NAME", "Invocation", "Stage", "StageContext"]

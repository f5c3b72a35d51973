"""The measuring stages, by the name that playbooks use: the one registry. A file each, and a payload each.

Above: playbooks, plan, history, reports. Below: only what the zipapp carries (opsctl.payload) and the foundations.
Nothing here may import a host.
"""

from __future__ import annotations

from typing import Final

from opsctl.stages.base import Stage
from opsctl.stages.collectives import CollectivesStage
from opsctl.stages.command import CommandStage
from opsctl.stages.gemm import GemmStage
from opsctl.stages.gpu_check import GpuCheckStage
from opsctl.stages.profile import ProfileStage
from opsctl.stages.rendering import FigureKind
from opsctl.stages.serving_benchmark import ServingBenchmarkStage

#: In the order in which reports show them.
STAGES: Final[dict[str, Stage]] = {
    stage.name: stage
    for stage in (
        ServingBenchmarkStage(),
        ProfileStage(),
        GemmStage(),
        CollectivesStage(),
        GpuCheckStage(),
        CommandStage(),
    )
}


def figure_kind(stage: str, figure: str) -> FigureKind | None:
    """Return what is known of a figure; None where it is none of the history's.

    A stage that this version does not have (an older run's) keeps its figures, of which no more is known.
    """
    kinds = STAGES[stage].figures if stage in STAGES else (FigureKind("*"),)
    return next((kind for kind in kinds if kind.fits(figure)), None)

"""What every stage keeps to, so that adding one is its own file, its payload's file and one line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from opsctl.payload.main import stage_module
from opsctl.payload.records import Spec
from opsctl.stages import STAGES, figure_kind
from opsctl.stages.base import Stage

EVERY = list(STAGES.values())


def by_name(stages: Sequence[Stage]) -> list[str]:
    return [stage.name for stage in stages]


@pytest.mark.parametrize("stage", EVERY, ids=by_name(EVERY))
def test_its_payload_is_the_module_of_its_name(stage: Stage) -> None:
    assert issubclass(stage_module(stage.name).Spec, Spec)


@pytest.mark.parametrize("name", ["records", "no-such-stage", "gemm.worker"])
def test_what_is_no_stage_is_no_payload(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        stage_module(name)


@pytest.mark.parametrize("stage", EVERY, ids=by_name(EVERY))
def test_its_options_have_a_limit_and_those_it_names(stage: Stage) -> None:
    keys = {info.alias for info in stage.options.model_fields.values()}
    assert "limit" in keys
    assert set(stage.incidental) <= keys
    assert set(stage.rendering.told if stage.rendering else ()) <= keys


@pytest.mark.parametrize("stage", EVERY, ids=by_name(EVERY))
def test_what_it_shows_enters_the_history_unless_it_is_profiled(stage: Stage) -> None:
    shown = [column.figure for column in stage.rendering.columns if column.figure] if stage.rendering else []
    assert all(figure_kind(stage.name, name) for name in shown)
    assert not (stage.profiled and stage.figures)


def test_which_way_is_worse() -> None:
    def worse(stage: str, name: str) -> bool | None:
        kind = figure_kind(stage, name)
        return kind.worse(0.1) if kind else None

    assert worse("serving-benchmark", "tpot.p50") is True
    assert worse("serving-benchmark", "steady.output_throughput") is False
    assert worse("serving-benchmark", "achieved_concurrency") is None
    assert (worse("gemm", "gemm.time"), worse("gemm", "gemm.bandwidth")) == (True, False)
    assert (worse("collectives", "collective.time.p99"), worse("collectives", "collective.busbw")) == (True, False)
    assert figure_kind("profile", "tpot.profiled") is None
    assert worse("a stage of an older opsctl", "x") is None
    assert figure_kind("a stage of an older opsctl", "x") is not None

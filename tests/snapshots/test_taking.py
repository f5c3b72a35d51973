from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.record import RunRecord
from opsctl.results import State
from opsctl.snapshots import snapshot_of
from tests.report import samples


@pytest.fixture
def kimi(tmp_path: Path) -> RunRecord:
    return samples.kimi_campaign(tmp_path)


def test_profiled_phases_never_enter(kimi: RunRecord) -> None:
    snapshots = snapshot_of(kimi)
    assert [snapshot.service for snapshot in snapshots] == [samples.BASE, "nothing"]
    assert not any("profile" in metric.key.stage for snapshot in snapshots for metric in snapshot.metrics)


def test_an_armed_profiler_is_enough_to_keep_a_phase_out(kimi: RunRecord) -> None:
    armed = kimi.phases[2].model_copy(update={"steps": kimi.phases[2].steps[:1]})
    without_profile_step = kimi.model_copy(update={"phases": (kimi.phases[0], armed)})
    assert [snapshot.service for snapshot in snapshot_of(without_profile_step)] == [samples.BASE]
    plain = without_profile_step.model_copy(update={"variants": {}})
    assert len(snapshot_of(plain)) == 2


def test_only_verified_cells_enter(kimi: RunRecord) -> None:
    cells = {metric.key.cell for metric in snapshot_of(kimi)[0].metrics}
    assert cells == {f"concurrency={count}" for count in (1, 2, 4, 8, 16, 32)}
    step = kimi.phases[0].steps[0]
    assert step.result is not None
    assert any(cell.state is State.FAILED for cell in step.result.cells)


def test_rounds_become_one_figure_with_their_own_spread(kimi: RunRecord) -> None:
    first = kimi.phases[0]
    twice = kimi.model_copy(update={"phases": (first, _scaled(first, 1.1))})
    (snapshot,) = snapshot_of(twice)
    figure = next(metric for metric in snapshot.metrics if str(metric.key).endswith("concurrency=1/tpot.mean"))
    assert figure.samples == 2
    assert figure.value == pytest.approx(12.02 * 1.05)
    assert figure.spread == pytest.approx(12.02 * 0.1 / 2**0.5)


def _scaled(phase: object, factor: float) -> object:
    step = phase.steps[0]  # type: ignore[attr-defined]
    cells = tuple(
        cell.model_copy(
            update={
                "figures": tuple(figure.model_copy(update={"value": figure.value * factor}) for figure in cell.figures)
            }
        )
        for cell in step.result.cells
    )
    result = step.result.model_copy(update={"cells": cells})
    return phase.model_copy(  # type: ignore[attr-defined]
        update={"round": 2, "steps": (step.model_copy(update={"result": result}),)}
    )


def test_the_fingerprint_holds_what_must_be_equal_and_nothing_that_flickers(kimi: RunRecord) -> None:
    before = {"gpus": [{"index": "0", "name": "H200", "temperature.gpu": "31", "power.limit": "700", "uuid": "GPU-1"}]}
    facts = {"driver": "580", "versions": {"vllm": "0.31"}, "before": before, "after": before, "host": "node-7"}
    (base, _) = snapshot_of(kimi.model_copy(update={"environment": {"kimi": facts}}))
    assert base.fingerprint["driver"] == "580"
    assert base.fingerprint["versions.vllm"] == "0.31"
    assert base.fingerprint["gpus.name"] == "1 × H200"
    assert base.fingerprint["gpus.power.limit"] == "1 × 700"
    assert base.fingerprint["engine version"] == "0.16.0rc2.dev344"
    assert base.fingerprint["serving-benchmark.input-tokens"] == "1024"
    assert not any(
        word in key for key in base.fingerprint for word in ("temperature", "uuid", "after", "index", "host")
    )

    hotter = {"gpus": [{**before["gpus"][0], "temperature.gpu": "78", "index": "3"}]}
    during = [{"samples": 8, "power.draw": 122.865, "clocks.sm": 1980.0, "utilization.gpu": 0.0, "throttle": {}}]
    read = {"during": during, "findings": ["GPU 0 drew 122.9 W of 700 W"]}
    warm = {**facts, "before": hotter, "after": hotter, "host": "node-8", **read}
    assert snapshot_of(kimi.model_copy(update={"environment": {"kimi": warm}}))[0].identity == base.identity
    capped = {"gpus": [{**before["gpus"][0], "power.limit": "500"}]}
    changed = kimi.model_copy(update={"environment": {"kimi": {**facts, "before": capped}}})
    assert snapshot_of(changed)[0].identity != base.identity


def test_a_longer_list_of_cells_stays_comparable(kimi: RunRecord) -> None:
    step = kimi.phases[0].steps[0]

    def with_options(**options: object) -> str:
        changed = step.model_copy(update={"options": {**step.options, **options}})
        phase = kimi.phases[0].model_copy(update={"steps": (changed,)})
        return snapshot_of(kimi.model_copy(update={"phases": (phase,)}))[0].identity

    assert with_options(concurrency=[1, 2]) == with_options(concurrency=[1, 2, 4])
    assert with_options(limit=60.0) == with_options(limit=90.0)
    assert with_options(**{"output-tokens": 128}) != with_options(**{"output-tokens": 256})


def test_a_run_that_measured_nothing_has_no_snapshot(tmp_path: Path) -> None:
    assert snapshot_of(RunRecord(run="r", playbook="p", started=samples.at(0), folder=str(tmp_path))) == ()

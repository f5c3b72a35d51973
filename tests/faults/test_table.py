"""Every state of a campaign × every fault, each for real. ``script/test-faults`` runs them all."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from opsctl.lab.hosts import LabHost
from tests.faults.bench import Bench, small_disk
from tests.faults.cell import keep, run_cell
from tests.faults.table import FAULTS, SENSELESS, STATES, Fault, StateOf

CELLS = [(state, fault) for state in STATES for fault in FAULTS if (state.name, fault.name) not in SENSELESS]
# What script/test runs too: one fault of the controller, one of the link, one of the host, where it hurts most.
SLICE = {
    ("stopped", "controller SIGKILL"),
    ("loading the variant", "SIGINT once"),
    ("stage on free GPUs (command)", "host power cut and boot"),
    ("stopping production", "controller SIGSTOP past the lease, CONT"),
}


def cells() -> list[object]:
    return [
        pytest.param(
            state, fault, id=f"{state.name} / {fault.name}",
            marks=[pytest.mark.lab, pytest.mark.faults]
            + ([pytest.mark.slice] if (state.name, fault.name) in SLICE else []),
        )
        for state, fault in CELLS
    ]  # fmt: skip


@pytest.mark.timeout(420)
@pytest.mark.parametrize(("state", "fault"), cells())
def test_production_comes_back(fresh_lab_host: LabHost, tmp_path: Path, state: StateOf, fault: Fault) -> None:
    bench = Bench.build(fresh_lab_host, tmp_path)
    with small_disk(bench.state) if fault.small_disk else nullcontext():
        keep(run_cell(bench, state, fault))

"""A slice of the simulation: schedules hold, and a dead fence is found and shrunk to the pause past the lease."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def simulate(*options: str) -> dict[str, Any]:
    """Run the simulation in a process of its own: its clock is virtual from the first import on."""
    argv = [sys.executable, "-m", "tests.simulation", "--jobs", "1", "--json", *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout, done.stderr[-2000:]
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.timeout(240)
def test_forty_schedules_hold() -> None:
    document = simulate("--schedules", "40", "--seed", "1")
    assert document["violations"] == []
    assert document["operations"] > 4000


@pytest.mark.timeout(240)
def test_a_dead_fence_is_found_and_shrunk_the_same_way_every_time() -> None:
    dead = ("--schedules", "1", "--seed", "12", "--break", "fence")
    first, second = simulate(*dead)["violations"], simulate(*dead)["violations"]
    assert [one["violation"].partition(":")[0] for one in first] == ["a fenced session of token 1 changes the host"]
    assert first == second
    assert any(fault["kind"] == "pause" and fault["seconds"] > 60 for fault in first[0]["faults"])
    assert len(first[0]["faults"]) <= 2

"""What several tests of this room need."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="session")
def startup_log() -> list[str]:
    """Return the lines of the real log up to the moment when the server answers."""
    lines = (DATA / "logs" / "vllm-0.32-cpu-tp2-startup.log").read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if "Application startup complete" in line)
    return lines[: end + 1]

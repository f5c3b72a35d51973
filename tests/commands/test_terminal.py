from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.runs.journal import Journal


@pytest.mark.parametrize("arguments", [["runs"], ["status"], ["runs", "--json"], ["--help"]])
def test_a_reader_that_goes_is_no_failure(arguments: list[str], tmp_path: Path) -> None:
    """As in ``opsctl runs | head -1``: nobody reads any more."""
    with Journal(tmp_path / "opsctl") as journal:
        journal.begin_run("20261201-0245", playbook="p", file="f", version="0", definition={})
        journal.end_run("20261201-0245", outcome="verified", exit_code=0, reason="")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
            check=False,
            timeout=30,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr.decode()) == (0, "")

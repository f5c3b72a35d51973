"""One bounded run of the coverage-guided fuzzer: no crash, no hang, no memory, on whatever it makes of our seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("atheris", reason="atheris has wheels for Linux alone")
FUZZER = Path(__file__).with_name("fuzz_reading.py")


@pytest.mark.timeout(180)
def test_the_reader_survives_the_fuzzer(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(FUZZER.parents[2])}
    done = subprocess.run(
        [sys.executable, str(FUZZER), "-max_total_time=15", f"-artifact_prefix={tmp_path}/"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    runs = next(line for line in done.stderr.splitlines() if line.startswith("Done "))
    assert int(runs.split()[1]) > 100, f"it hardly ran: {runs}"

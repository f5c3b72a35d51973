"""serving-benchmark beside ``vllm bench serve``, on a real vLLM: see benchmarks/agreement.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "agreement.py"

pytestmark = pytest.mark.vllm


@pytest.mark.timeout(1200)
def test_it_agrees_with_vllm_bench_serve() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", "--pairs", "6"],
        capture_output=True,
        text=True,
        check=False,
        timeout=1100,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["missed"] == [], found["rows"]

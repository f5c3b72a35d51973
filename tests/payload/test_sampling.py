import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.payload.sampling import Sampler, findings, summarise

LINE = "0, GPU-1, RTX PRO 6000, 0:1, 580.1, 97887, 90000, 99, 140.2, 600.00, 2400, 13365, 2430, 0x4, 50, 5, 16, Enabled"
FAKE = f"""#!/bin/sh
case "$*" in
  *--query-gpu*) echo "{LINE}";;
  *) exit 1;;
esac
"""


def gpu(**changes: Any) -> dict[str, Any]:
    seen = {"index": "0", "power.draw": "140.2", "power.limit": "600.00", "utilization.gpu": "99", "clocks.sm": "2400"}
    return {**seen, "temperature.gpu": "50", "throttle": [], **changes}


def test_busy_at_low_power_is_a_finding() -> None:
    (finding,) = findings(summarise([[gpu()]] * 5))
    assert finding.startswith("GPU 0: 99 % utilisation at 140 W of 600 W")


@pytest.mark.parametrize(
    "changes",
    [{"power.draw": "400.0"}, {"utilization.gpu": "20"}, {"power.draw": "[N/A]"}, {"power.limit": "[N/A]"}],
)
def test_what_is_fine_or_unknown_is_none(changes: dict[str, Any]) -> None:
    assert findings(summarise([[gpu(**changes)]] * 5)) == []


def test_two_looks_prove_nothing() -> None:
    assert findings(summarise([[gpu()]] * 2)) == []


def test_throttling_is_a_finding_when_it_lasts() -> None:
    hot = gpu(**{"power.draw": "500", "throttle": ["hardware thermal", "idle"]})
    cool = gpu(**{"power.draw": "500"})
    assert findings(summarise([[hot], [hot], [cool]])) == [
        "GPU 0: clocks were held down by hardware thermal in 2 of 3 looks"
    ]
    assert findings(summarise([[hot], [cool], [cool]])) == []


def test_each_gpu_has_its_own_median() -> None:
    documents = summarise([[gpu(), gpu(index="1", **{"clocks.sm": str(clock)})] for clock in (100, 300, 200)])
    assert [each["index"] for each in documents] == ["0", "1"]
    assert documents[1]["clocks.sm"] == 200


@pytest.fixture
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(FAKE)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


@pytest.mark.usefixtures("fake_gpu")
def test_it_looks_while_the_block_runs() -> None:
    with Sampler(period=0.05) as sampler:
        end = time.monotonic() + 20
        while len(sampler._samples) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
    record = sampler.environment()
    assert record["during"][0]["power.draw"] == 140.2
    assert "power cap" in record["during"][0]["throttle"]
    assert record["findings"]


@pytest.mark.usefixtures("fake_gpu")
def test_the_stages_record_says_what_stood_out(tmp_path: Path) -> None:
    program = (
        "import sys; from opsctl.payload import main, sampling; "
        "main.Sampler = lambda: sampling.Sampler(period=0.05); sys.exit(main.main(sys.argv[1:]))"
    )
    (tmp_path / "spec.json").write_text(json.dumps({"argv": ["sleep", "3"], "limit": 30.0}))
    argv = [sys.executable, "-c", program, "command", "--spec", "spec.json", "--out", "r.jsonl"]
    subprocess.run(argv, cwd=tmp_path, check=False, timeout=60)
    records = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    last = [record["environment"] for record in records if record["record"] == "environment"][-1]
    assert last["after"]["gpus"][0]["name"] == "RTX PRO 6000"
    assert last["findings"][0].startswith("GPU 0: 99 % utilisation at 140 W")

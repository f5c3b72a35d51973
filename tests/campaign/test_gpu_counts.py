"""Collectives by the GPUs that a host has: one, or fewer than the ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.inventory import inventory
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import ENVIRONMENT, Standin, install
from tests.campaign.conftest import Desk, answers, invocation

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"
# What the payload asks of torch on a host with one GPU.
TORCH = """
int32 = "int32"
def arange(*_, **__): return None
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
"""


def collectives(desk: Desk, world: int) -> None:
    step = {"collectives": {"sizes": ["4KiB"], "world-size": world}}
    desk.playbook["phases"] = [{"name": "alone", "serve": "nothing", "steps": [step]}]


def test_on_one_gpu_they_are_skipped_with_the_reason(
    fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk]
) -> None:
    one = Standin(tensor_parallel=1)
    install(fresh_lab_host, one, gpus=GpuConfig(count=1))
    packages = f"{ENVIRONMENT}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    fresh_lab_host.write_file(f"{packages}/torch.py", TORCH)
    desk = make_desk([fresh_lab_host])
    desk.inventory = inventory([fresh_lab_host], one, gpus=1)
    collectives(desk, 8)
    done = desk.run()
    assert done.code == 0, done.out[-3000:] + done.err
    record = desk.status()
    [phase] = record["phases"]
    [step] = phase["steps"]
    why = "one GPU: there is nothing to exchange"
    assert (record["outcome"], phase["state"], step["state"]) == ("verified", "verified", "verified")
    assert step["result"]["reason"] == f"does not apply here (8 cells): {why}"
    assert {(cell["state"], cell["reason"]) for cell in step["result"]["cells"]} == {("skipped", why)}
    assert done.named("step.ended")[0]["message"].endswith(step["result"]["reason"])
    assert why in desk.opsctl("status").out
    shown = desk.opsctl("report").out
    assert shown.startswith(f"No finding: what was planned does not apply here (8 cells): {why}.")
    report = (Path(record["folder"]) / "report.md").read_text()
    assert f"| 8 cells | skipped | {why} |" in report.replace("*", "").replace("`", ""), report
    assert answers(fresh_lab_host, one)


def test_more_ranks_than_gpus_are_refused_alike_by_plan_doctor_and_run(desk: Desk, serving_host: LabHost) -> None:
    before = invocation(serving_host, PRODUCTION)
    collectives(desk, 8)
    for words in (["plan", "small.yml"], ["doctor", serving_host.name, "-p", "small.yml"], ["run", "small.yml"]):
        done = desk.opsctl(*words)
        assert done.code == 2, done.out + done.err
        assert "found 8 ranks and 2 GPUs" in " ".join((done.out + done.err).split())
    assert desk.opsctl("doctor", serving_host.name).code == 0
    assert invocation(serving_host, PRODUCTION) == before

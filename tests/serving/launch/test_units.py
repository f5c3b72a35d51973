"""The units in units/: read by a real systemd, judged by the doctor, and the variant derived again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import environment_files
from opsctl.playbook.models import Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.doctor import Verdict
from opsctl.serving.doctor.unit import UnitFacts, judge_unit
from opsctl.serving.launch import variants
from tests.serving.conftest import limit

pytestmark = pytest.mark.lab

UNITS = Path(__file__).parents[3] / "units"
NAME = "vllm-kimi-k25-int4"
SERVICE = ResolvedService(
    name=NAME, host="kimi", unit=f"{NAME}.service", url="http://127.0.0.1:8000", model="kimi-k2.5", tensor_parallel=8
)
VARIANT = SERVICE.model_copy(
    update={"name": f"{NAME}-profiler", "unit": f"{NAME}-profiler.service", "role": Role.VARIANT, "profiler": "torch"}
)
HEAD = """\
# What opsctl derives from vllm-kimi-k25-int4.service for `profiler: torch`, as an example: vLLM 0.32, run "example",
# fencing token 1. Do not install it: a run derives and writes its own, and takes it away again. A test compares this
# file with what is derived today; `OPSCTL_WRITE_UNITS=1 pytest tests/serving/launch/test_units.py` writes it anew.

"""


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    fresh_lab_host.write_files(environment_files())
    fresh_lab_host.write_file(f"/etc/systemd/system/{NAME}.service", (UNITS / f"{NAME}.service").read_text())
    fresh_lab_host.systemctl("daemon-reload")
    return reach(fresh_lab_host)


def test_systemd_finds_nothing_wrong_with_production(fresh_lab_host: LabHost, host: Host) -> None:
    done = fresh_lab_host.exec("systemd-analyze", "verify", f"/etc/systemd/system/{NAME}.service", check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_doctor_finds_nothing_wrong_with_production(fresh_lab_host: LabHost, host: Host) -> None:
    fresh_lab_host.systemctl("enable", f"{NAME}.service")
    status = host.systemd().status(f"{NAME}.service", deadline=limit())
    # Nothing runs here: what needs a process cannot be told.
    judged = [check for check in judge_unit(SERVICE, UnitFacts(status)) if check.verdict is not Verdict.UNKNOWN]
    assert len(judged) >= 4
    assert {check.verdict for check in judged} == {Verdict.OK}, judged


def test_the_profiler_variant_is_what_is_derived_today(fresh_lab_host: LabHost, host: Host) -> None:
    production = host.systemd().status(f"{NAME}.service", deadline=limit())
    variant = variants.derive(
        host,
        VARIANT,
        production,
        token=1,
        run="example",
        trace_dir=f"/var/lib/opsctl/runs/example/traces/{NAME}-profiler",
        version="0.32.0",
    )
    path = UNITS / f"{NAME}-profiler.service"
    if os.environ.get("OPSCTL_WRITE_UNITS"):
        path.write_text(HEAD + variant.text)
    assert path.read_text() == HEAD + variant.text
    fresh_lab_host.write_file(f"/run/systemd/system/{VARIANT.unit}", path.read_text())
    fresh_lab_host.write_file("/usr/local/lib/opsctl/opsctl-guard", "#!/bin/sh\n", 0o755)
    done = fresh_lab_host.exec("systemd-analyze", "verify", f"/run/systemd/system/{VARIANT.unit}", check=False)
    assert (done.returncode, done.stderr) == (0, "")

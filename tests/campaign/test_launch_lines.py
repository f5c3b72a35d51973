"""Whole campaigns on units as people write them: proven by the process that runs, or refused before the outage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, breaches, install
from tests.campaign.conftest import Desk, active, answers, invocation

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

STANDIN = Standin()
LINE = " ".join(STANDIN.argv())
PHASE = {"name": "variant", "serve": "vllm-kimi-k25-int4-profiler", "steps": [{"command": {"argv": ["/bin/true"]}}]}
PROFILE = {**PHASE, "steps": [{"profile": {"windows": 1, "requests": 2, "concurrency": [1]}}]}


def serving(host: LabHost, line: str, files: dict[str, str]) -> None:
    """Have production start by this line, and serve."""
    for path, text in files.items():
        host.write_file(path, text, 0o755)
    host.systemctl("stop", STANDIN.service_name, check=False)
    install(host, Standin(service=("ExecStart=", f"ExecStart={line}")))


SHIM = f'#!/bin/sh\n[ "$1" = serve ] && exec {LINE}\nexec /opt/vllm/bin/vllm "$@"\n'


@pytest.mark.parametrize(
    ("line", "files", "phase"),
    [
        (f"/bin/bash -lc 'cd / ; {LINE} 2>&1 | cat'", {}, PROFILE),
        ("/srv/run.sh", {"/srv/run.sh": f"#!/bin/bash\nexport STANDIN_LAYERS=2\nexec {LINE}\n"}, PHASE),
        ("/usr/bin/nice -n 1 /srv/run.sh", {"/srv/run.sh": f'#!/bin/bash\nexec {LINE} "$@"\n'}, PHASE),
    ],
    ids=["login shell with a pipe", "script without arguments", "wrapped script with arguments"],
)
def test_a_campaign_on_a_unit_as_people_write_it_is_verified(
    fresh_lab_host: LabHost,
    make_desk: Callable[[list[LabHost]], Desk],
    line: str,
    files: dict[str, str],
    phase: dict[str, Any],
) -> None:
    serving(fresh_lab_host, line, files)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = [phase]
    ran = desk.start_run().wait(250)
    assert breaches(fresh_lab_host) == []
    assert ran.code == 0, ran.out[-3000:] + ran.err
    told = [event["data"] for event in ran.named("service.ready")]
    ready = next(data for data in told if data.get("service") == PHASE["serve"])
    asked = [item["asked"] for item in ready["evidence"]]
    assert any(one.startswith("/proc/") for one in asked)
    assert "OPTIONS /start_profile" in asked
    (verified,) = ran.named("production.verified")
    assert verified["data"]["evidence"][-1]["observed"] == "what runs is what ran"


def test_a_line_that_hides_its_server_is_refused_before_the_outage(
    fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk]
) -> None:
    serving(fresh_lab_host, "/srv/run.sh", {"/srv/run.sh": f"#!/bin/bash\nCMD='{LINE}'\neval \"$CMD\"\n"})
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = [PHASE]
    before = invocation(fresh_lab_host, STANDIN.unit)
    ran = desk.run()
    assert ran.code == 2, ran.out[-3000:] + ran.err
    assert "eval in the script /srv/run.sh" in ran.out + ran.err
    assert invocation(fresh_lab_host, STANDIN.unit) == before


def test_a_variant_that_runs_without_its_differences_fails_at_once(
    fresh_lab_host: LabHost, make_desk: Callable[[list[LabHost]], Desk]
) -> None:
    """A program that is called vllm drops what it is given: it serves, and nothing is measured under it."""
    serving(fresh_lab_host, f"/usr/local/bin/{LINE.removeprefix('/opt/vllm/bin/')}", {"/usr/local/bin/vllm": SHIM})
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = [PHASE]
    ran = desk.run()
    assert ran.code == 1, ran.out[-3000:] + ran.err
    assert "serves, but not with its differences" in ran.out
    assert "no --profiler-config seen" in ran.out
    assert ran.named("step.begun") == []
    assert active(fresh_lab_host, STANDIN.unit)
    assert answers(fresh_lab_host, STANDIN)

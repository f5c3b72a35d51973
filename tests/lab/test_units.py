"""Stand-in services under a real systemd: what units, faults and GPUs do together."""

from __future__ import annotations

import re
import time

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import (
    Standin,
    await_answer,
    breaches,
    environment_files,
    gpu_files,
    install,
    journal,
    router,
    set_fault,
    set_gpus,
)
from tests.labfixtures import InstallStandin, MakeLabHost

pytestmark = pytest.mark.lab
PRODUCTION = Standin()


def active(host: LabHost, unit: str) -> str:
    return host.systemctl("is-active", f"{unit}.service", check=False)


def await_state(host: LabHost, unit: str, wanted: str, limit: float = 20) -> None:
    deadline = Deadline(limit, f"{unit} {wanted}")
    while (seen := active(host, unit)) != wanted:
        deadline.check(seen=seen)
        time.sleep(0.05)


def memory_used(host: LabHost) -> list[int]:
    shown = host.exec("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").stdout
    return [int(line) for line in shown.splitlines()]


def test_it_runs_as_vllm_would(standin_host: LabHost) -> None:
    pid = standin_host.systemctl("show", "-P", "MainPID", PRODUCTION.service_name)
    command = standin_host.exec("cat", f"/proc/{pid}/cmdline").stdout.split("\0")
    assert command[:4] == ["/opt/vllm/bin/python", "/opt/vllm/bin/vllm", "serve", "/models/kimi-k2.5-int4"]
    # journald strips the carriage return at the head of a line.
    assert "\nLoading safetensors checkpoint shards: 100% Completed | 6/6" in journal(standin_host, PRODUCTION.unit)
    assert memory_used(standin_host) == [129394, 129394]


def test_it_comes_back_after_a_power_cut(standin_host: LabHost) -> None:
    standin_host.reboot()
    await_answer(standin_host, PRODUCTION, Deadline(20, "production after the boot"))
    assert breaches(standin_host) == []


def test_a_stop_frees_the_gpus_after_a_while(standin_host: LabHost) -> None:
    set_gpus(standin_host, GpuConfig(release_seconds=5))
    standin_host.systemctl("stop", PRODUCTION.service_name)
    assert memory_used(standin_host) == [129394, 129394]
    deadline = Deadline(25, "free GPUs")
    while memory_used(standin_host) != [0, 0]:
        deadline.check()
        time.sleep(0.05)


def test_two_servers_at_once_are_seen(standin_host: LabHost, standin_unit: InstallStandin) -> None:
    second = Standin(unit="second", port=8001)
    standin_unit(standin_host, second, start=False)
    standin_host.systemctl("start", second.service_name)
    await_state(standin_host, second.unit, "failed")
    assert {breach["gpu"] for breach in breaches(standin_host)} == {0, 1}
    assert active(standin_host, PRODUCTION.unit) == "active"


def test_a_fault_of_one_unit_alone_that_passes(standin_host: LabHost, standin_unit: InstallStandin) -> None:
    variant = Standin(unit="vllm-kimi-k25-int4-profiler", enabled=False)
    standin_unit(standin_host, variant, start=False)
    set_fault(standin_host, variant.unit, "dies-at-shard=2,times=1")
    standin_host.systemctl("stop", PRODUCTION.service_name)
    standin_host.systemctl("start", variant.service_name)
    await_state(standin_host, variant.unit, "failed")
    assert "Input/output error" in journal(standin_host, variant.unit)
    standin_host.systemctl("start", variant.service_name)
    await_answer(standin_host, variant, Deadline(20, "second start"))
    standin_host.systemctl("stop", variant.service_name)
    standin_host.systemctl("start", PRODUCTION.service_name)
    await_answer(standin_host, PRODUCTION, Deadline(20, "production"))
    assert breaches(standin_host) == []


def test_a_load_that_is_stuck_answers_nothing_and_is_active(standin_host: LabHost) -> None:
    set_fault(standin_host, PRODUCTION.unit, "stuck-at-shard=3")
    standin_host.systemctl("restart", PRODUCTION.service_name)
    deadline = Deadline(20, "second shard")
    while journal(standin_host, PRODUCTION.unit).count("| 2/6") < 2:  # the start before, and this one
        deadline.check()
        time.sleep(0.05)
    with pytest.raises(DeadlineExceeded) as stuck:
        await_answer(standin_host, PRODUCTION, Deadline(0.5, "a stuck load"))
    assert "| 2/6" in (stuck.value.seen or "")
    assert active(standin_host, PRODUCTION.unit) == "active"


def test_sigterm_refused_until_systemd_kills(fresh_lab_host: LabHost, standin_unit: InstallStandin) -> None:
    stubborn = Standin(fault="ignores-sigterm", service=("TimeoutStopSec=1",))
    standin_unit(fresh_lab_host, stubborn)
    fresh_lab_host.systemctl("stop", stubborn.service_name)
    assert fresh_lab_host.systemctl("show", "-P", "Result", stubborn.service_name) == "timeout"
    assert memory_used(fresh_lab_host) == [0, 0]


def test_a_child_outlives_its_unit_and_keeps_its_gpu(fresh_lab_host: LabHost, standin_unit: InstallStandin) -> None:
    leaky = Standin(fault="leaves-child")
    standin_unit(fresh_lab_host, leaky)
    fresh_lab_host.systemctl("stop", leaky.service_name)
    assert active(fresh_lab_host, leaky.unit) == "inactive"
    assert memory_used(fresh_lab_host) == [129394, 0]
    left = fresh_lab_host.exec("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").stdout.split()
    assert len(left) == 1
    assert "vllm" not in fresh_lab_host.exec("cat", f"/proc/{left[0]}/cgroup").stdout
    fresh_lab_host.exec("kill", "-KILL", left[0])
    fresh_lab_host.systemctl("start", leaky.service_name)
    await_answer(fresh_lab_host, leaky, Deadline(20, "start after the child is gone"))


def test_a_router_hangs_on_production(standin_host: LabHost) -> None:
    standin_host.write_files(router(PRODUCTION))
    standin_host.systemctl("daemon-reload")
    standin_host.systemctl("start", "vllm-router.service")
    ask = ("curl", "-s", "-m", "5", "--retry", "5", "--retry-connrefused", "http://127.0.0.1:9000/v1/models")
    assert "kimi-k2.5" in standin_host.exec(*ask).stdout
    standin_host.systemctl("stop", PRODUCTION.service_name)
    assert active(standin_host, "vllm-router") == "inactive"
    standin_host.systemctl("start", PRODUCTION.service_name)
    assert active(standin_host, "vllm-router") == "inactive"  # Requires= does not bring it back: seen


def test_an_instance_of_a_template(fresh_lab_host: LabHost, standin_unit: InstallStandin) -> None:
    instance = Standin(unit="vllm@kimi")
    standin_unit(fresh_lab_host, instance)
    assert (
        fresh_lab_host.systemctl("show", "-P", "FragmentPath", "vllm@kimi.service")
        == "/etc/systemd/system/vllm@.service"
    )


def test_a_service_of_a_users_own_systemd(make_lab_host: MakeLabHost) -> None:
    own = Standin(scope="user")
    files = {**environment_files(), **gpu_files(GpuConfig()), **own.files()}
    host = make_lab_host(HostSpec(login="ops", linger=("ops",)).with_files(files))
    await_answer(host, own, Deadline(30, "the user's service"))
    unit = host.systemctl("--user", "-M", "ops@", "show", "-P", "ControlGroup", own.service_name)
    assert re.search(r"user@\d+\.service/app\.slice", unit)


def test_installing_again_changes_the_unit(standin_host: LabHost) -> None:
    install(standin_host, Standin(served="other"), start=False)
    standin_host.systemctl("restart", PRODUCTION.service_name)
    await_answer(standin_host, PRODUCTION, Deadline(20, "restart"))
    assert '"id":"other"' in standin_host.exec("curl", "-s", f"{PRODUCTION.url}/v1/models").stdout

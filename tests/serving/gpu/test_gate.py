"""The gate on a real host whose GPUs are stand-ins: free, late, held by ours, held by others, not to be known."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from opsctl.errors import GpuNotFree, Interrupted
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import Standin, environment_files, gpu_files
from opsctl.serving.gpu import gate
from opsctl.serving.gpu.gate import await_gpus_free
from tests.serving.conftest import limit

pytestmark = pytest.mark.lab

OURS = ("vllm-kimi-k25-int4*.service", "opsctl-*")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "GRACE", 1.0)
    monkeypatch.setattr(gate, "FOREIGN_GRACE", 2.0)


@pytest.fixture
def idle_host(fresh_lab_host: LabHost) -> LabHost:
    fresh_lab_host.write_files({**environment_files(), **gpu_files(GpuConfig())})
    return fresh_lab_host


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    return reach(fresh_lab_host)


def test_free_gpus_are_seen_free_several_times(idle_host: LabHost, host: Host) -> None:
    record = await_gpus_free(host, limit=limit(), ours=OURS, systemd=host.systemd())
    assert record.free is True
    assert record.samples == gate.SAMPLES, "no sample more than it takes"
    assert list(record.memory.values()) == [0.0, 0.0]
    assert "no process" in record.evidence[0].observed


def test_memory_that_comes_late_is_waited_for(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(), gpus=GpuConfig(release_seconds=3.0))
    fresh_lab_host.systemctl("stop", Standin().service_name)
    began = time.monotonic()
    record = await_gpus_free(host, limit=limit(60), ours=OURS, systemd=host.systemd())
    assert record.free is True
    assert time.monotonic() - began > 1.5
    assert not record.killed


def test_what_is_ours_is_named_and_its_cgroup_killed(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    """A unit with KillMode=process leaves its workers in a cgroup that systemd has given up."""
    standin = Standin(service=("KillMode=process",), fault="ignores-sigterm")
    standin_unit(fresh_lab_host, standin)
    main = fresh_lab_host.systemctl("show", "-P", "MainPID", standin.service_name)
    fresh_lab_host.exec("kill", "-STOP", *_workers(fresh_lab_host))
    fresh_lab_host.exec("kill", "-KILL", main)
    record = await_gpus_free(host, limit=limit(60), ours=OURS, systemd=host.systemd())
    assert record.free is True
    assert {process.unit for process in record.killed} == {standin.service_name}
    assert all(process.pid and process.command for process in record.killed)
    assert any("pid" in proof.observed for proof in record.evidence[1:])


def _workers(lab_host: LabHost) -> list[str]:
    listed = lab_host.exec("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").stdout
    return listed.split()


def test_what_is_not_ours_is_named_and_left_alive(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    other = Standin(unit="somebody-elses", tensor_parallel=1)
    standin_unit(fresh_lab_host, other)
    with pytest.raises(GpuNotFree) as raised:
        await_gpus_free(host, limit=limit(30), ours=OURS, systemd=host.systemd())
    assert "somebody-elses.service" in str(raised.value.seen)
    assert "129394 MiB" in str(raised.value.seen)
    assert "--kill-foreign" in str(raised.value.hint)
    assert fresh_lab_host.systemctl("is-active", other.service_name) == "active"


def test_kill_foreign_kills_the_process_alone(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(unit="somebody-elses", tensor_parallel=1))
    record = await_gpus_free(host, limit=limit(60), ours=OURS, kill_foreign=True, systemd=host.systemd())
    assert record.free is True
    assert record.killed[0].unit == "somebody-elses.service"


def test_memory_without_a_process_is_not_free(idle_host: LabHost, host: Host) -> None:
    idle_host.write_files(gpu_files(GpuConfig(stuck_mib=40_000)))
    with pytest.raises(GpuNotFree, match="not free within") as raised:
        await_gpus_free(host, limit=limit(3), ours=OURS, systemd=host.systemd())
    assert "GPU 0: 40000 MiB" in str(raised.value.seen)


def test_memory_is_seen_where_the_list_of_processes_is_empty(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, Standin(), gpus=GpuConfig(list_processes=False))
    with pytest.raises(GpuNotFree) as raised:
        await_gpus_free(host, limit=limit(3), ours=OURS, systemd=host.systemd())
    assert "GPU 0: 129394 MiB" in str(raised.value.seen)


def smi(lab_host: LabHost, *, memory: str, processes: str = ":") -> None:
    """Put an nvidia-smi on the host that says this of one GPU's memory, and prints what ``processes`` prints."""
    lab_host.write_file("/usr/local/bin/nvidia-smi", SMI % {"memory": memory, "processes": processes}, 0o755)


SMI = """#!/bin/sh
case "$*" in
*query-compute-apps*) %(processes)s ;;
*query-gpu*) printf '0, GPU-1, NVIDIA GB10, [N/A], %%s\n' "$(%(memory)s)" ;;
esac
exit 0
"""


@pytest.mark.parametrize("said", ["[N/A]", "[Not Supported]", "[Insufficient Permissions]", "ERR!"])
def test_memory_that_is_not_given_is_judged_by_processes(fresh_lab_host: LabHost, host: Host, said: str) -> None:
    smi(fresh_lab_host, memory=f"echo '{said}'")
    record = await_gpus_free(host, limit=limit(12), ours=OURS, systemd=host.systemd())
    assert record.free is True
    assert record.memory == {}
    assert "no process, memory not given" in record.evidence[0].observed


def test_a_process_keeps_a_gpu_without_memory_figures_from_being_free(fresh_lab_host: LabHost, host: Host) -> None:
    fresh_lab_host.exec("systemd-run", "--unit=somebody-elses", "sleep", "1000")
    pid = fresh_lab_host.systemctl("show", "-P", "MainPID", "somebody-elses.service")
    smi(fresh_lab_host, memory="echo '[N/A]'", processes=f"echo 'GPU-1, {pid}, VLLM::Worker, [N/A]'")
    with pytest.raises(GpuNotFree, match=f"pid {pid} is not opsctl's to kill"):
        await_gpus_free(host, limit=limit(30), ours=OURS, systemd=host.systemd())


def test_a_process_with_the_device_open_counts_where_nothing_else_is_said(fresh_lab_host: LabHost, host: Host) -> None:
    script = "mknod /dev/nvidia0 c 1 3; exec 3</dev/nvidia0; sleep 1000"
    fresh_lab_host.exec("systemd-run", "--unit=hidden-holder", "sh", "-c", script)
    smi(fresh_lab_host, memory="echo '[N/A]'")
    with pytest.raises(GpuNotFree) as raised:
        await_gpus_free(host, limit=limit(30), ours=OURS, systemd=host.systemd())
    assert "hidden-holder.service" in str(raised.value.seen)


def test_a_gpu_that_needs_a_reset_is_no_free_gpu(fresh_lab_host: LabHost, host: Host) -> None:
    smi(fresh_lab_host, memory="echo '[GPU requires reset]'")
    with pytest.raises(GpuNotFree, match="requires reset") as raised:
        await_gpus_free(host, limit=limit(30), ours=OURS, systemd=host.systemd())
    assert "gpu-reset" in str(raised.value.hint)


def test_what_a_stage_left_behind_is_known_by_its_slice(fresh_lab_host: LabHost, host: Host) -> None:
    fresh_lab_host.exec(
        "systemd-run", "--slice=opsctl.slice", "--unit=prof", "--property=KillMode=process",
        "sh", "-c", "sleep 1000 & echo $! >/run/left; sleep 2000",
    )  # fmt: skip
    patience = limit()
    while not fresh_lab_host.exists("/run/left"):
        patience.check(seen="the stage's child did not start")
        time.sleep(0.05)
    fresh_lab_host.systemctl("stop", "prof.service")
    pid = fresh_lab_host.read_file("/run/left").strip()
    listed = f"[ -d /proc/{pid} ] && echo 'GPU-1, {pid}, VLLM::Worker, 70000'"
    smi(fresh_lab_host, memory="echo 100", processes=listed)
    record = await_gpus_free(host, limit=limit(60), ours=("opsctl.slice",), systemd=host.systemd())
    assert record.free is True
    assert [process.unit for process in record.killed] == ["prof.service"]


def test_memory_that_still_falls_is_said_in_the_hint(fresh_lab_host: LabHost, host: Host) -> None:
    fresh_lab_host.write_file("/run/mib", "90000")
    smi(fresh_lab_host, memory="read m </run/mib; echo $((m - 500)) >/run/mib; echo $m")
    with pytest.raises(GpuNotFree, match="not free within") as raised:
        await_gpus_free(host, limit=limit(4), ours=OURS, systemd=host.systemd())
    assert "still falling" in str(raised.value.hint)
    assert "MiB/s" in str(raised.value.hint)


def test_no_nvidia_smi_is_recorded_as_unknown(
    make_lab_host: Callable[..., LabHost], reach: Callable[..., Host]
) -> None:
    record = await_gpus_free(reach(make_lab_host(HostSpec())), limit=limit(), ours=OURS)
    assert record.free is None
    assert "no nvidia-smi" in record.reason


def test_a_driver_that_does_not_answer_is_not_free(idle_host: LabHost, host: Host) -> None:
    idle_host.write_files(gpu_files(GpuConfig(broken=True)))
    with pytest.raises(GpuNotFree, match="couldn't communicate"):
        await_gpus_free(host, limit=limit(), ours=OURS, systemd=host.systemd())


def test_an_nvidia_smi_that_hangs_does_not_hang_the_gate(
    idle_host: LabHost, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opsctl.serving.gpu.nvidia_smi.SMI_LIMIT", 1.0)
    idle_host.write_files(gpu_files(GpuConfig(hang=True)))
    began = time.monotonic()
    with pytest.raises(GpuNotFree, match="may hang"):
        await_gpus_free(host, limit=limit(30), ours=OURS, systemd=host.systemd())
    assert time.monotonic() - began < 20


def test_the_gate_can_be_cancelled(idle_host: LabHost, host: Host) -> None:
    idle_host.write_files(gpu_files(GpuConfig(stuck_mib=40_000)))
    began = time.monotonic()
    with pytest.raises(Interrupted):
        await_gpus_free(host, limit=limit(60), ours=OURS, cancelled=lambda: time.monotonic() > began + 1)

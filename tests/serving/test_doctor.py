"""The doctor on a real host, fit and unfit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.estimate import Estimate
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from opsctl.lab.standin.gpus import GpuConfig
from opsctl.lab.units import Standin, gpu_files, router
from opsctl.playbook.models import Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving import doctor
from opsctl.serving.doctor import Check, Verdict
from tests.serving.conftest import limit, service_for

pytestmark = pytest.mark.lab

UNIT = Standin().service_name


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    return reach(fresh_lab_host)


@pytest.fixture
def examine(host: Host) -> Callable[..., dict[str, Check]]:
    def look(*services: ResolvedService, **about: object) -> dict[str, Check]:
        wanted = services or (service_for(Standin(), tensor_parallel=2),)
        checks = doctor.examine(host, wanted, host.systemd(), deadline=limit(60), **about)  # type: ignore[arg-type]
        names = [check.name for check in checks]
        assert len(names) == len(set(names)), names
        return {check.name: check for check in checks}

    return look


FIT = ("VLLM_ENGINE_READY_TIMEOUT_S=3600", "HF_HUB_OFFLINE=1")
FIT_SERVICE = ("LimitMEMLOCK=infinity", "TimeoutStopSec=60", *(f"Environment={one}" for one in FIT))


LATE = "Environment=VLLM_ENGINE_READY_TIMEOUT_S=600"


def test_a_fit_host_passes(
    fresh_lab_host: LabHost,
    standin_unit: Callable[..., None],
    examine: Callable[..., dict[str, Check]],
    tmp_path: Path,
) -> None:
    standin_unit(fresh_lab_host, Standin(service=FIT_SERVICE))
    checks = examine(loads={Standin().unit: Estimate(12.0, slowest=12.0)})
    assert [check for check in checks.values() if check.verdict is Verdict.STOP] == []
    expected = {
        "gpus": Verdict.OK,
        "gpu processes": Verdict.OK,
        "clocks": Verdict.OK,
        "pcie": Verdict.OK,
        "topology": Verdict.OK,
        f"unit {UNIT}": Verdict.OK,
        f"process of {UNIT}": Verdict.OK,
        f"version of {UNIT}": Verdict.OK,
        f"settings of {UNIT}": Verdict.OK,
        f"stop limit of {UNIT}": Verdict.OK,
        f"dependents of {UNIT}": Verdict.OK,
        f"port of {Standin().unit}": Verdict.OK,
        f"load time of {Standin().unit}": Verdict.OK,
        "tools": Verdict.OK,
    }
    assert {name: checks[name].verdict for name in expected} == expected
    assert checks[f"port of {Standin().unit}"].reason.endswith("of the unit")


def test_what_makes_a_unit_unfit_is_named(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    standin = Standin(service=("Restart=always", "RestartSec=30", "KillMode=process", "TimeoutStopSec=infinity", LATE))
    standin_unit(fresh_lab_host, standin)
    fresh_lab_host.write_files(router(standin))
    fresh_lab_host.systemctl("daemon-reload")
    checks = examine()
    for name in ("KillMode", "Restart", "LimitMEMLOCK", "ready time-out"):
        assert checks[f"{name} of {UNIT}"].verdict is (Verdict.STOP if name == "KillMode" else Verdict.WARNING)
        assert checks[f"{name} of {UNIT}"].hint
    assert "never reaches its start limit" in checks[f"Restart of {UNIT}"].reason
    assert "infinity" in checks[f"stop limit of {UNIT}"].reason
    assert "vllm-router.service" in checks[f"dependents of {UNIT}"].reason
    fresh_lab_host.exec("pkill", "-f", "standin/holder.py")


def test_an_edit_that_is_not_loaded_stops(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    standin_unit(fresh_lab_host, Standin())
    fresh_lab_host.exec("sh", "-c", f"echo '# edited' >>/etc/systemd/system/{UNIT}")
    assert examine()[f"unit {UNIT}"].verdict is Verdict.STOP


@pytest.mark.parametrize(
    "edit", ["s/--port 8000/--port 8000 --seed 1/", "s/STANDIN_LOAD_SECONDS=0.2/STANDIN_LOAD_SECONDS=1/"]
)
def test_a_process_that_is_not_what_the_unit_says_stops(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]], edit: str
) -> None:
    standin_unit(fresh_lab_host, Standin())
    fresh_lab_host.exec("sed", "-i", edit, f"/etc/systemd/system/{UNIT}")
    fresh_lab_host.systemctl("daemon-reload")
    check = examine()[f"process of {UNIT}"]
    assert check.verdict is Verdict.STOP
    assert "restore" in check.hint


def test_an_environment_that_was_upgraded_under_the_server_stops(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    command = "/opt/copy/bin/vllm serve /models/kimi-k2.5-int4 --served-model-name kimi-k2.5 -tp 2"
    standin_unit(fresh_lab_host, Standin(service=("ExecStart=", f"ExecStart={command}")), start=False)
    installed = "/opt/copy/lib/python3.11/site-packages/vllm-0.33.0.dist-info"
    fresh_lab_host.exec("mkdir", "-p", "/opt/copy/bin", installed)
    fresh_lab_host.exec("cp", "/opt/vllm/bin/vllm", "/opt/copy/bin/")
    fresh_lab_host.systemctl("start", UNIT)
    fresh_lab_host.exec("sh", "-c", "until curl -sf http://127.0.0.1:8000/version; do sleep 0.1; done", timeout=30)
    check = examine()[f"version of {UNIT}"]
    assert (check.verdict, check.reason) == (Verdict.STOP, "0.32.0 runs, 0.33.0 is installed")


def test_the_version_behind_a_wrapper_script_is_that_of_its_python_path(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    command = "/opt/wrapped/bin/vllm serve /models/kimi-k2.5-int4 --served-model-name kimi-k2.5 -tp 2"
    standin_unit(fresh_lab_host, Standin(service=("ExecStart=", f"ExecStart={command}")), start=False)
    fresh_lab_host.exec("mkdir", "-p", "/opt/wrapped/bin", "/srv/site/vllm-0.31.0.dist-info")
    script = '#!/bin/sh\nexport PYTHONPATH=/srv/site\nexec /opt/vllm/bin/vllm "$@"\n'
    fresh_lab_host.write_file("/opt/wrapped/bin/vllm", script, 0o755)
    fresh_lab_host.systemctl("start", UNIT)
    fresh_lab_host.exec("sh", "-c", "until curl -sf http://127.0.0.1:8000/version; do sleep 0.1; done", timeout=30)
    check = examine()[f"version of {UNIT}"]
    assert (check.verdict, check.reason) == (Verdict.STOP, "0.32.0 runs, 0.31.0 is installed")


def test_a_foreign_process_on_a_gpu_stops_or_is_announced(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    standin_unit(fresh_lab_host, Standin(unit="somebody-elses", tensor_parallel=1, port=8001))
    standin_unit(fresh_lab_host, Standin(), start=False)
    check = examine()["gpu processes"]
    assert check.verdict is Verdict.STOP
    assert "somebody-elses.service" in check.reason
    assert examine(kill_foreign=True)["gpu processes"].verdict is Verdict.WARNING


def test_a_port_that_somebody_else_holds_stops(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    standin_unit(fresh_lab_host, Standin(), start=False)
    fresh_lab_host.exec(
        "systemd-run", "--unit=other", "/usr/bin/python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"
    )
    fresh_lab_host.exec("sh", "-c", "until curl -s http://127.0.0.1:8000/ >/dev/null; do sleep 0.05; done", timeout=30)
    check = examine()[f"port of {Standin().unit}"]
    assert check.verdict is Verdict.STOP
    assert "other.service" in check.reason


def test_a_driver_that_hangs_or_is_not_there_is_never_ok(
    fresh_lab_host: LabHost,
    standin_unit: Callable[..., None],
    examine: Callable[..., dict[str, Check]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opsctl.serving.gpu.nvidia_smi.SMI_LIMIT", 1.5)
    standin_unit(fresh_lab_host, Standin())
    fresh_lab_host.write_files(gpu_files(GpuConfig(hang=True)))
    assert examine()["gpus"].verdict is Verdict.STOP
    fresh_lab_host.exec("rm", "/usr/local/bin/nvidia-smi")
    assert examine()["gpus"].verdict is Verdict.UNKNOWN


def test_a_missing_unit_a_missing_key_and_a_missing_program_are_named(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    standin_unit(fresh_lab_host, Standin())
    service = service_for(Standin(), api_key_file="/etc/none")
    variant = service_for(Standin(), name="v", unit="v.service", role=Role.VARIANT, exec_prefix=("nsys", "profile"))
    checks = examine(service, variant, service_for(Standin(unit="gone", port=8009)))
    assert checks["unit gone.service"].verdict is Verdict.STOP
    assert checks[f"key file of {service.name}"].verdict is Verdict.STOP
    assert checks["variant v"].verdict is Verdict.WARNING


def test_a_small_disk_and_no_curl_are_said(
    make_lab_host: Callable[..., LabHost], standin_unit: Callable[..., None], reach: Callable[..., Host]
) -> None:
    small = make_lab_host(HostSpec(disk="64M", remove=("/usr/bin/curl",)))
    checks = doctor.examine(reach(small), (), reach(small).systemd(), deadline=limit(60))
    by_name = {check.name: check for check in checks}
    assert by_name["disk space of /var/lib/opsctl"].verdict is Verdict.STOP
    assert "started, unverified" in by_name["tools"].reason
    assert doctor.worst(checks) is Verdict.STOP


SCOPE = f"docker-{'ab' * 32}.scope"
FAKE_DOCKER = f"""\
#!/bin/sh
case $1 in
run) exec systemd-run --quiet --scope --unit={SCOPE} {" ".join(Standin().argv())} ;;
inspect) case $3 in *Id*) echo {"ab" * 32} ;; *) head -n 1 /sys/fs/cgroup/system.slice/{SCOPE}/cgroup.procs ;; esac ;;
esac
"""


def test_a_container_of_production_is_no_stranger_on_its_gpus(
    fresh_lab_host: LabHost, standin_unit: Callable[..., None], examine: Callable[..., dict[str, Check]]
) -> None:
    """The engine runs in a scope of its own, as Docker puts it; its container's id says whose it is."""
    fresh_lab_host.write_file("/usr/local/bin/docker", FAKE_DOCKER, 0o755)
    line = f"/usr/local/bin/docker run --rm --name m --network host vllm/vllm-openai {' '.join(Standin().argv()[2:])}"
    standin_unit(fresh_lab_host, Standin(service=("ExecStart=", f"ExecStart={line}")))
    checks = examine()
    assert checks["gpu processes"].verdict is Verdict.OK
    assert checks[f"process of {UNIT}"].verdict is Verdict.OK
    assert checks["daemon-reload and containers"].verdict is Verdict.OK, "systemd has no rules of its devices"
    fresh_lab_host.systemctl("set-property", "--runtime", SCOPE, "DevicePolicy=strict", "DeviceAllow=/dev/null rwm")
    losing = examine()["daemon-reload and containers"]
    assert losing.verdict is Verdict.WARNING
    assert SCOPE in losing.reason

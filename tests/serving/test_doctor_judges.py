"""What the doctor makes of what was seen: by tables, from real output where there is some."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from opsctl.host.protocol import UnitStatus
from opsctl.lab.units import Standin
from opsctl.playbook.models import Stopping
from opsctl.serving.doctor import Verdict, worst
from opsctl.serving.doctor.checks import Check, ok, stop, unknown, warning
from opsctl.serving.doctor.gpu import judge_gpus, judge_topology, parse_topology
from opsctl.serving.doctor.looking import model_path
from opsctl.serving.doctor.place import (
    ModelFiles,
    Space,
    judge_kernel_log,
    judge_model,
    judge_port,
    judge_python,
    judge_space,
    judge_tools,
    parse_df,
)
from opsctl.serving.doctor.unit import FOREVER, UnitFacts, judge_unit
from opsctl.serving.gpu.nvidia_smi import Gpu, GpuProcess, GpuReading
from opsctl.serving.launch.line import Surroundings, understand
from opsctl.serving.launch.processes import Process
from opsctl.serving.listening import Holding, PortHolder
from tests.serving.conftest import service_for

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
GIB = 1 << 30


def gpu(index: int = 0, /, **values: str) -> Gpu:
    """Return a healthy card; keyword arguments change a field, with __ for a dot."""
    healthy = {
        "name": "NVIDIA H200",
        "driver_version": "580.159.04",
        "memory.total": "143771",
        "memory.used": "0",
        "utilization.gpu": "0",
        "power.draw": "80",
        "power.limit": "700",
        "power.default_limit": "700",
        "clocks_event_reasons.active": "0x0000000000000001",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "ecc.errors.uncorrected.volatile.total": "0",
        "mig.mode.current": "Disabled",
        "persistence_mode": "Enabled",
    }
    changed = {name.replace("__", "."): value for name, value in values.items()}
    return Gpu(index, f"GPU-{index}", {k: v for k, v in {**healthy, **changed}.items() if v != "absent"})


def gpu_check(name: str, *gpus: Gpu, ranks: int | None = None) -> Check:
    checks = judge_gpus(GpuReading(gpus or (gpu(),)), (), ours=(), ranks=ranks)
    return next(check for check in checks if check.name == name)


def test_a_healthy_card_passes_everything() -> None:
    assert {check.verdict for check in judge_gpus(GpuReading((gpu(),)), (), ours=(), ranks=1)} == {Verdict.OK}


@pytest.mark.parametrize(
    ("name", "change", "verdict", "words"),
    [
        ("power cap", {"power__limit": "300"}, Verdict.WARNING, "limited to 300 of 700 W"),
        ("power cap", {"power__limit": "690"}, Verdict.OK, "690 W"),
        ("power cap", {"power__default_limit": "absent"}, Verdict.UNKNOWN, "default not given"),
        (
            "power at load",
            {"utilization__gpu": "100", "power__draw": "140"},
            Verdict.WARNING,
            "100 % busy at 140 of 700",
        ),
        ("power at load", {"utilization__gpu": "100", "power__draw": "600"}, Verdict.OK, ""),
        ("power at load", {"power__draw": "absent"}, Verdict.UNKNOWN, ""),
        ("clocks", {"clocks_event_reasons__active": "0x48"}, Verdict.WARNING, "hardware thermal slowdown"),
        ("clocks", {"clocks_event_reasons__active": "0x4"}, Verdict.OK, ""),
        ("clocks", {"clocks_event_reasons__active": "absent"}, Verdict.UNKNOWN, ""),
        ("pcie", {"pcie__link__width__current": "8"}, Verdict.WARNING, "×8 of ×16"),
        ("pcie", {"pcie__link__width__max": "absent"}, Verdict.UNKNOWN, ""),
        ("ecc", {"ecc__errors__uncorrected__volatile__total": "2"}, Verdict.WARNING, "2 uncorrected"),
        ("ecc", {"ecc__errors__uncorrected__volatile__total": "absent"}, Verdict.UNKNOWN, ""),
        ("gpu modes", {"mig__mode__current": "Enabled"}, Verdict.WARNING, "MIG is on"),
        ("gpu modes", {"persistence_mode": "Disabled"}, Verdict.WARNING, "persistence mode is off"),
    ],
)
def test_each_fault_of_a_card_is_named(name: str, change: dict[str, str], verdict: Verdict, words: str) -> None:
    check = gpu_check(name, gpu(**change))
    assert check.verdict is verdict
    assert words in check.reason


def test_cards_with_the_same_fault_share_a_line() -> None:
    cards = [gpu(index, power__limit="300" if index != 2 else "700") for index in range(4)]
    assert gpu_check("power cap", *cards).reason == "GPU 0, 1, 3: limited to 300 of 700 W"


def test_too_few_and_mixed_cards() -> None:
    assert gpu_check("gpus", gpu(), ranks=2).verdict is Verdict.STOP
    assert gpu_check("gpus", gpu(0), gpu(1, name="NVIDIA H100")).verdict is Verdict.WARNING


@pytest.mark.parametrize(("all_seen", "verdict"), [(True, Verdict.WARNING), (False, Verdict.STOP)])
def test_what_could_not_be_judged_after_a_stop_is_refused_before_it(all_seen: bool, verdict: Verdict) -> None:
    silent = GpuReading((gpu(memory__used="absent"),))
    check = judge_gpus(silent, (), ours=(), ranks=1, all_seen=all_seen)[1]
    assert (check.name, check.verdict) == ("gpu memory", verdict)
    assert all_seen or "become: true" in check.hint


def test_a_tool_that_is_not_there_is_unknown_and_one_that_hangs_stops() -> None:
    (absent,) = judge_gpus(GpuReading(problem="there is none", absent=True), (), ours=(), ranks=None)
    (hangs,) = judge_gpus(GpuReading(problem="it hangs"), (), ours=(), ranks=None)
    assert (absent.verdict, hangs.verdict) == (Verdict.UNKNOWN, Verdict.STOP)


def test_processes_are_ours_by_unit() -> None:
    mine, theirs = GpuProcess(1, unit="vllm-a.service"), GpuProcess(2, unit="", name="train.py")
    check = judge_gpus(GpuReading((gpu(),)), (mine,), ours=("vllm-*",), ranks=1)[2]
    assert check.verdict is Verdict.OK
    check = judge_gpus(GpuReading((gpu(),)), (mine, theirs), ours=("vllm-*",), ranks=1)[2]
    assert check.verdict is Verdict.STOP
    assert "pid 2 of no unit: train.py" in check.reason
    assert "pid 1" not in check.reason


@pytest.mark.parametrize(
    ("name", "pairs", "worst_link", "verdict"),
    [
        ("h200-topo-m.txt", 0, "", Verdict.OK),
        ("made-by-hand-topo-m-phb.txt", 6, "PHB", Verdict.WARNING),
        ("made-by-hand-topo-m-node-sys.txt", 28, "SYS", Verdict.WARNING),
        ("made-by-hand-topo-m-nvlink.txt", 28, "NV18", Verdict.OK),
    ],
)
def test_topologies_are_read(name: str, pairs: int, worst_link: str, verdict: Verdict) -> None:
    links = parse_topology((DATA / name).read_text())
    assert len(links) == pairs
    count = round((1 + (1 + 8 * pairs) ** 0.5) / 2)
    check = judge_topology(links, count)
    assert check.verdict is verdict
    assert worst_link in check.reason


def test_a_topology_that_is_not_shown_is_unknown() -> None:
    assert judge_topology({}, 8).verdict is Verdict.UNKNOWN
    assert judge_topology({(0, 1): "NEW9"}, 2).verdict is Verdict.WARNING


ARGV = ("/opt/vllm/bin/vllm", "serve", "/models/k", "--port", "8000")


HEALTHY = UnitStatus(
    name="vllm-kimi-k25-int4.service",
    load_state="loaded",
    active_state="active",
    sub_state="running",
    main_pid=9,
    unit_file_state="enabled",
    fragment_path="/etc/systemd/system/vllm-kimi-k25-int4.service",
    exec_start=(ARGV,),
    environment=("VLLM_ENGINE_READY_TIMEOUT_S=7200",),
    properties={
        "KillMode": "control-group",
        "Restart": "on-failure",
        "RestartUSec": 10_000_000,
        "StartLimitIntervalUSec": 600_000_000,
        "StartLimitBurst": 3,
        "LimitMEMLOCK": FOREVER,
        "TimeoutStopUSec": 120_000_000,
    },
)
ENVIRONMENT = {"VLLM_ENGINE_READY_TIMEOUT_S": "7200"}
RUNNING = Process(9, 1, ("/opt/vllm/bin/python3", *ARGV), ENVIRONMENT)
FACTS = UnitFacts(HEALTHY, understand(ARGV, Surroundings()), (RUNNING,), "0.32.0", "0.32.0")


def judged(facts: UnitFacts = FACTS, **status: Any) -> dict[str, Check]:
    if "exec_start" in status:
        facts = dataclasses.replace(facts, launch=understand(status["exec_start"][0], Surroundings()))
    properties = status.pop("properties", {})
    changed = dataclasses.replace(facts.status, **status, properties={**HEALTHY.properties, **properties})
    checks = judge_unit(service_for(Standin()), dataclasses.replace(facts, status=changed))
    return {check.name.replace(f" of {HEALTHY.name}", "").replace(f" {HEALTHY.name}", ""): check for check in checks}


def test_a_healthy_unit_passes_everything() -> None:
    assert {check.verdict for check in judged().values()} == {Verdict.OK}


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("unit", {"load_state": "not-found"}, Verdict.STOP),
        ("unit", {"need_daemon_reload": True}, Verdict.STOP),
        ("unit", {"unit_file_state": "masked"}, Verdict.STOP),
        ("unit", {"unit_file_state": "disabled"}, Verdict.WARNING),
        ("process", {"active_state": "inactive"}, Verdict.UNKNOWN),
        ("process", {"exec_start": ((*ARGV, "--seed", "1"),)}, Verdict.STOP),
        ("process", {"environment": (*HEALTHY.environment, "NEW=1")}, Verdict.STOP),
        ("KillMode", {"properties": {"KillMode": "none"}}, Verdict.STOP),
        ("KillMode", {"properties": {"KillMode": "process"}}, Verdict.STOP),
        ("KillMode", {"properties": {"SendSIGKILL": False}}, Verdict.STOP),
        ("KillMode", {"properties": {"KillMode": "mixed"}}, Verdict.STOP),
        ("Restart", {"properties": {"StartLimitIntervalUSec": 0}}, Verdict.WARNING),
        ("Restart", {"properties": {"RestartUSec": 300_000_000}}, Verdict.WARNING),
        ("LimitMEMLOCK", {"properties": {"LimitMEMLOCK": 8 << 20}}, Verdict.WARNING),
        ("ready time-out", {"environment": ()}, Verdict.WARNING),
        ("ready time-out", {"environment": ("VLLM_ENGINE_READY_TIMEOUT_S=600",)}, Verdict.WARNING),
        ("stop limit", {"properties": {"TimeoutStopUSec": FOREVER}}, Verdict.WARNING),
        ("stop limit", {"properties": {"TimeoutStopUSec": 900_000_000}}, Verdict.WARNING),
        ("stop limit", {"properties": {"TimeoutStopUSec": 5_000_000}}, Verdict.WARNING),
        ("dependents", {"required_by": ("router.service", "multi-user.target")}, Verdict.WARNING),
        ("profiler", {"exec_start": ((*ARGV, "--profiler-config", "{}"),)}, Verdict.WARNING),
        (
            "max_iterations",
            {"exec_start": ((*ARGV, "--profiler-config", '{"max_iterations": 5}'),)},
            Verdict.WARNING,
        ),
    ],
)
def test_each_fault_of_a_unit_is_named(name: str, change: dict[str, Any], verdict: Verdict) -> None:
    check = judged(**change)[name]
    assert check.verdict is verdict
    assert check.reason


def test_a_process_that_cannot_be_compared_is_unknown() -> None:
    renamed = dataclasses.replace(RUNNING, cmdline=("VLLM::APIServer",))
    assert judged(dataclasses.replace(FACTS, processes=(renamed,)))["process"].verdict is Verdict.UNKNOWN
    assert judged(dataclasses.replace(FACTS, processes=None))["process"].verdict is Verdict.UNKNOWN
    hidden = understand(("/bin/sh", "-c", "$SERVER"), Surroundings())
    assert judged(dataclasses.replace(FACTS, launch=hidden))["process"].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("/usr/bin/numactl --cpunodebind=0 --membind=0", Verdict.OK),
        ("/usr/bin/taskset -c 0-31 nice -n 5", Verdict.OK),
        ("/usr/bin/env -i PATH=/usr/bin stdbuf -oL chrt -f 5", Verdict.OK),
        ("/usr/bin/numactl -N 0 vllm serve /other", Verdict.STOP),
        ("/usr/bin/env X=1 vllm serve /other", Verdict.UNKNOWN),
    ],
)
def test_a_wrapper_that_executes_the_server_is_no_edit(line: str, verdict: Verdict) -> None:
    """The unit says numactl …, the process does not: it is what numactl became."""
    words = tuple(line.split())
    launch = understand(words if "serve" in words else (*words, *ARGV), Surroundings())
    assert judged(dataclasses.replace(FACTS, launch=launch))["process"].verdict is verdict


def test_versions_that_differ_stop() -> None:
    assert judged(dataclasses.replace(FACTS, installed_version="0.33.0"))["version"].verdict is Verdict.STOP
    assert judged(dataclasses.replace(FACTS, installed_version="0.32.0+cu129"))["version"].verdict is Verdict.OK
    assert judged(dataclasses.replace(FACTS, running_version=None))["version"].verdict is Verdict.UNKNOWN


def test_a_stop_limit_of_the_inventory_is_respected() -> None:
    service = service_for(Standin(), stop=Stopping(limit=60.0))
    check = next(check for check in judge_unit(service, FACTS) if check.name.startswith("stop limit"))
    assert "outlasts stop.limit" in check.reason


DF = """\
/var/lib/opsctl\t/dev/sda1 1000000000000 1 500000000000 1% /
/tmp\ttmpfs 2000000000 1 100000000 99% /tmp
"""


def test_space_is_judged_by_what_is_planned() -> None:
    spaces = parse_df(DF)
    assert spaces == [
        Space("/var/lib/opsctl", "/", 500_000_000_000, 10**12),
        Space("/tmp", "/tmp", 100_000_000, 2 * 10**9),
    ]
    about: dict[str, Any] = {"state_dir": "/var/lib/opsctl", "temporary": "/tmp", "ranks": 8}
    state, temporary = judge_space(spaces, **about, profiled=True)
    assert (state.verdict, temporary.verdict) == (Verdict.OK, Verdict.STOP)
    spaces = [spaces[0], Space("/tmp", "/tmp", 4 * GIB, 4 * GIB)]
    assert judge_space(spaces, **about, profiled=True)[1].verdict is Verdict.WARNING
    assert judge_space(spaces, **about, profiled=False)[1].verdict is Verdict.OK
    assert judge_space([], **about, profiled=False)[0].verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("model", "available", "verdict", "words"),
    [
        (ModelFiles("/m", readable=False), None, Verdict.STOP, "cannot be read"),
        (ModelFiles("/m", readable=None), None, Verdict.UNKNOWN, "no weights"),
        (ModelFiles("/m", readable=None, made_up=True), None, Verdict.OK, "random weights"),
        (
            ModelFiles("/m", readable=True, size=600 * GIB, cached=60 * GIB),
            200 * GIB,
            Verdict.WARNING,
            "10% in the page",
        ),
        (ModelFiles("/m", readable=True, size=600 * GIB, cached=600 * GIB), 200 * GIB, Verdict.OK, "100% in the page"),
        (ModelFiles("/m", readable=True, size=600 * GIB), None, Verdict.OK, "not known"),
    ],
)
def test_a_model_is_judged(model: ModelFiles, available: int | None, verdict: Verdict, words: str) -> None:
    check = judge_model(model, available=available)
    assert check.verdict is verdict
    assert words in check.reason


@pytest.mark.parametrize(
    ("holding", "who", "active", "verdict"),
    [
        (Holding.OURS, "unit", True, Verdict.OK),
        (Holding.AS_ARMED, "nginx.service/0", True, Verdict.OK),
        (Holding.OTHER, "session-*.scope/1000", True, Verdict.STOP),
        (Holding.OTHER, "session-*.scope/1000", False, Verdict.STOP),
        (Holding.UNKNOWN, "nginx.service/0", True, Verdict.UNKNOWN),
        (Holding.UNKNOWN, "nginx.service/0", False, Verdict.STOP),
        (Holding.UNKNOWN, "", True, Verdict.UNKNOWN),
        (Holding.NOBODY, "none", True, Verdict.WARNING),
        (Holding.NOBODY, "none", False, Verdict.OK),
    ],
)
def test_a_port_is_judged(holding: Holding, who: str, active: bool, verdict: Verdict) -> None:
    held = PortHolder(holding, "port 8000 is held", who)
    assert judge_port(service_for(Standin()), held, active=active).verdict is verdict


KERNEL = """\
2026-12-01T01:00:00 gpu07 kernel: NVRM: Xid (PCI:0000:41:00): 79, pid=412, GPU has fallen off the bus.
2026-12-01T01:00:01 gpu07 kernel: NVRM: Xid (PCI:0000:42:00): 31, pid=413, Ch 00000008, MMU Fault
2026-12-01T01:00:02 gpu07 kernel: NVRM: Xid (PCI:0000:42:00): 31, pid=413, Ch 00000009, MMU Fault
2026-12-01T01:00:03 gpu07 kernel: blk_update_request: I/O error, dev nvme0n1, sector 12345
"""


def test_the_kernel_log_is_read() -> None:
    lasting, passing, disk = judge_kernel_log(KERNEL)
    assert (lasting.name, lasting.verdict) == ("xid 79", Verdict.STOP)
    assert (passing.name, passing.verdict) == ("xid 31", Verdict.WARNING)
    assert "2 × since boot, on 0000:42:00" in passing.reason
    assert "nvme0n1" in disk.reason
    assert [check.verdict for check in judge_kernel_log("")] == [Verdict.OK]
    assert [check.verdict for check in judge_kernel_log(None)] == [Verdict.UNKNOWN]


def test_tools_are_judged() -> None:
    assert judge_tools(("curl", "ss"))[0].verdict is Verdict.OK
    assert judge_tools(())[0].verdict is Verdict.WARNING


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (("vllm", "serve", "/models/k", "--port", "1"), "/models/k"),
        (("vllm", "serve", "--model", "/models/k"), "/models/k"),
        (("python", "-m", "sglang.launch_server", "--model-path", "/models/k"), "/models/k"),
        (("vllm", "serve", "org/name"), None),
        (("vllm", "serve"), None),
        ((), None),
    ],
)
def test_the_models_path_is_found(argv: tuple[str, ...], path: str | None) -> None:
    assert model_path(argv) == path


def test_the_worst_verdict_stands_for_all() -> None:
    assert worst([ok("a", ""), unknown("b", ""), warning("c", "")]) is Verdict.WARNING
    assert worst([ok("a", ""), unknown("b", "")]) is Verdict.UNKNOWN
    assert worst([stop("a", ""), warning("b", "")]) is Verdict.STOP
    assert worst([]) is Verdict.OK


@pytest.mark.parametrize(
    ("status", "said", "verdict", "reason"),
    [
        (0, "opsctl-python 3 9\n", Verdict.OK, "Python 3.9 starts"),
        (0, "(base) activated\nopsctl-python 3 12\n", Verdict.OK, "Python 3.12 starts"),
        (0, "opsctl-python 3 8\n", Verdict.STOP, "3.9 or newer"),
        (0, "opsctl-python 2 7\n", Verdict.STOP, "3.9 or newer"),
        (0, "", Verdict.STOP, "printed nothing"),
        (127, "env: '/opt/v/bin/python': No such file or directory", Verdict.STOP, "(status 127): env: '/opt/v"),
        (1, "ModuleNotFoundError: No module named 'zlib'", Verdict.STOP, "No module named 'zlib'"),
        (124, "no answer within 15 s", Verdict.STOP, "no answer within 15 s"),
        (-1, "", Verdict.STOP, "status -1"),
    ],
)
def test_the_python_of_the_stages(status: int, said: str, verdict: Verdict, reason: str) -> None:
    check = judge_python("gpu1", "/opt/v/bin/python", status, said)
    assert check.verdict is verdict
    assert reason in check.reason
    assert verdict is Verdict.OK or "hosts: {gpu1: {python: PATH}}" in check.hint

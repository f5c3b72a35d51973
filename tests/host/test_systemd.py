"""The contract of ``Systemd``, held by every binding against a real systemd; then what is D-Bus's alone."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from opsctl.deadline import Deadline
from opsctl.errors import (
    BusError,
    DeadlineExceeded,
    HostError,
    JobFailed,
    TransportLost,
    UnitNotFound,
)
from opsctl.host.machine import ConnectedHost
from opsctl.host.protocol import Host, Systemd, TransientUnit
from opsctl.host.systemctl import CommandSystemd
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit
from tests.host.test_quoting import NASTY

pytestmark = pytest.mark.lab

UNITS = {
    "sleeper": "[Service]\nExecStart=/bin/sleep 1000\n",
    "slow": "[Service]\nType=oneshot\nExecStart=/bin/sleep 60\nTimeoutStopSec=1\n",
    "fails": "[Service]\nType=exec\nExecStart=/absent/program\n",
    "breaks": "[Service]\nExecStart=/bin/sh -c 'exit 7'\nRestart=no\n",
    "oneshot": "[Service]\nType=oneshot\nExecStart=/bin/true\nRemainAfterExit=yes\n",
    "needs": "[Unit]\nRequires=fails.service\nAfter=fails.service\n[Service]\nExecStart=/bin/sleep 1000\n",
    "late": "[Service]\nType=oneshot\nTimeoutStartSec=0.3\nExecStart=/bin/sleep 60\n",
    "template@": "[Service]\nExecStart=/bin/sleep %i\n",
    "router": "[Unit]\nRequires=sleeper.service\nAfter=sleeper.service\n[Service]\nExecStart=/bin/sleep 1000\n",
    "words": (
        '[Service]\nEnvironment=A=1 "B=two words"\nExecStart=/bin/sleep 1000\nExecStart=\nExecStart=/bin/sleep 1001\n'
    ),
    "skipped": "[Service]\nExecCondition=/bin/false\nExecStart=/bin/sleep 1000\n",
    "stubborn": "[Service]\nTimeoutStopSec=0.5\nExecStart=/bin/sh -c 'trap \"\" TERM; while :; do sleep 0.1; done'\n",
}
LEAST = ("name", "load_state", "active_state", "sub_state")


@pytest.fixture(scope="module", autouse=True)
def units(lab_host: LabHost) -> None:
    for name, text in UNITS.items():
        lab_host.write_file(f"/etc/systemd/system/{name}.service", text)
    lab_host.systemctl("daemon-reload")


@pytest.fixture(scope="module", params=["bus", "commands"])
def systemd(request: pytest.FixtureRequest, host: Host) -> Systemd:
    assert isinstance(host, ConnectedHost)
    return host.systemd() if request.param == "bus" else CommandSystemd(host)


@pytest.fixture(autouse=True)
def quiet(lab_host: LabHost) -> Iterator[None]:
    yield
    names = [f"{name}.service" for name in UNITS if "@" not in name]
    lab_host.systemctl("kill", "--signal=KILL", "--quiet", "slow.service", "stubborn.service", check=False)
    lab_host.systemctl("stop", *names, "template@1000.service", check=False)
    lab_host.systemctl("reset-failed", check=False)


def until(condition: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    patience = Deadline(seconds, what)
    while not condition():
        patience.check()
        time.sleep(0.02)


def test_a_life(systemd: Systemd) -> None:
    before = systemd.status("sleeper.service", deadline=limit())
    assert (before.load_state, before.active_state, before.stopped) == ("loaded", "inactive", True)
    outcome = systemd.start("sleeper", deadline=limit())
    assert (outcome.unit, outcome.kind, outcome.result) == ("sleeper.service", "start", "done")
    status = systemd.status("sleeper", deadline=limit())
    assert status.name == "sleeper.service"
    assert (status.active, status.sub_state, status.result) == (True, "running", "success")
    assert status.main_pid > 1
    assert re.fullmatch(r"[0-9a-f]{32}", status.invocation_id)
    assert status.fragment_path == "/etc/systemd/system/sleeper.service"
    assert status.control_group == "/system.slice/sleeper.service"
    assert status.slice == "system.slice"
    assert status.exec_start == (("/bin/sleep", "1000"),)
    assert status.n_restarts == 0
    assert systemd.processes("sleeper", deadline=limit()) == ((status.main_pid, "/bin/sleep 1000"),)
    assert systemd.start("sleeper", deadline=limit()).result == "done", "starting what runs is no error"
    assert systemd.status("sleeper", deadline=limit()).main_pid == status.main_pid
    assert systemd.stop("sleeper", deadline=limit()).result == "done"
    assert systemd.status("sleeper", deadline=limit()).stopped


def test_a_unit_that_there_is_none_of(systemd: Systemd) -> None:
    status = systemd.status("absent.service", deadline=limit())
    assert status.load_state == "not-found"
    assert status.stopped
    for call in (systemd.start, systemd.stop, systemd.reset_failed):
        with pytest.raises(UnitNotFound) as caught:
            call("absent.service", deadline=limit())
        assert "absent" in str(caught.value.seen)
    with pytest.raises(UnitNotFound):
        systemd.kill("absent.service", signal.SIGTERM, deadline=limit())


@pytest.mark.parametrize(("unit", "result"), [("fails", "failed"), ("needs", "dependency"), ("late", "timeout")])
def test_a_job_that_is_not_done_is_an_error_with_its_result(systemd: Systemd, unit: str, result: str) -> None:
    with pytest.raises(JobFailed, match=f"start of {unit}.service") as caught:
        systemd.start(unit, deadline=limit())
    assert caught.value.result in {result, "failed"}
    assert "Result=" in (caught.value.seen or "")


def test_a_unit_that_dies_after_its_start_is_seen_as_failed(systemd: Systemd) -> None:
    assert systemd.start("breaks", deadline=limit()).result == "done"
    until(lambda: systemd.status("breaks", deadline=limit()).active_state == "failed", "end of breaks.service")
    status = systemd.status("breaks", deadline=limit())
    assert (status.result, status.exec_main_status) == ("exit-code", 7)
    systemd.reset_failed("breaks", deadline=limit())
    assert systemd.status("breaks", deadline=limit()).active_state == "inactive"


def test_a_condition_that_does_not_hold_leaves_the_unit_down(systemd: Systemd) -> None:
    try:
        systemd.start("skipped", deadline=limit())
    except JobFailed as error:  # so says systemd 247; later ones call the job done
        assert error.result == "skipped"  # noqa: PT017 - on some releases it is no error
    assert systemd.status("skipped", deadline=limit()).stopped


def test_a_oneshot_that_remains(systemd: Systemd) -> None:
    systemd.start("oneshot", deadline=limit())
    status = systemd.status("oneshot", deadline=limit())
    assert (status.active_state, status.sub_state) == ("active", "exited")


def test_a_job_outlasts_the_deadline_and_goes_on(systemd: Systemd) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        systemd.start("slow", deadline=limit(0.5))
    assert time.monotonic() - started < 3
    assert "slow.service" in (caught.value.seen or "") + (caught.value.where or "")
    assert systemd.status("slow", deadline=limit()).active_state == "activating"


def test_a_job_that_is_cancelled_by_another(systemd: Systemd, lab_host: LabHost) -> None:
    timer = threading.Timer(0.5, lab_host.systemctl, ["stop", "slow.service"])
    timer.start()
    with pytest.raises(JobFailed) as caught:
        systemd.start("slow", deadline=limit())
    assert caught.value.result in {"canceled", "failed"}
    timer.join()


def test_a_stop_that_has_to_kill(systemd: Systemd) -> None:
    systemd.start("stubborn", deadline=limit())
    outcome = systemd.stop("stubborn", deadline=limit())
    assert outcome.seconds > 0.4
    assert systemd.status("stubborn", deadline=limit()).result == "timeout"


def test_a_signal_reaches_every_process(systemd: Systemd) -> None:
    systemd.start("sleeper", deadline=limit())
    systemd.kill("sleeper", signal.SIGKILL, deadline=limit())
    until(lambda: systemd.status("sleeper", deadline=limit()).active_state == "failed", "end of sleeper.service")
    assert systemd.status("sleeper", deadline=limit()).result == "signal"


def test_a_template_instance(systemd: Systemd) -> None:
    systemd.start("template@1000", deadline=limit())
    status = systemd.status("template@1000.service", deadline=limit())
    assert status.exec_start == (("/bin/sleep", "1000"),)
    assert status.active


def test_what_hangs_on_a_unit(systemd: Systemd) -> None:
    systemd.start("router", deadline=limit())
    status = systemd.status("sleeper", deadline=limit())
    assert status.active, "a dependency is started with it"
    assert "router.service" in status.required_by


def test_environment_and_drop_ins(systemd: Systemd, lab_host: LabHost) -> None:
    systemd.start("words", deadline=limit())  # a unit that nothing holds loaded is simply read anew
    # The first drop-in of a unit is what NeedDaemonReload misses (252): a changed unit file it sees.
    lab_host.write_file("/etc/systemd/system/words.service", UNITS["words"] + "# changed\n")
    drop_in = "/etc/systemd/system/words.service.d/more.conf"
    lab_host.write_file(drop_in, "[Service]\nEnvironment=C=3\n")
    try:
        assert systemd.status("words", deadline=limit()).need_daemon_reload
        systemd.daemon_reload(deadline=limit())
        status = systemd.status("words", deadline=limit())
        assert not status.need_daemon_reload
        assert status.drop_in_paths == (drop_in,)
        assert status.environment == ("A=1", "B=two words", "C=3")
        assert status.exec_start == (("/bin/sleep", "1001"),)
        assert status.unit_file_state == "static"
    finally:
        lab_host.exec("rm", "-r", "/etc/systemd/system/words.service.d")
        lab_host.systemctl("daemon-reload")


def test_everything_else_by_systemds_own_names(systemd: Systemd) -> None:
    said = systemd.status("sleeper", deadline=limit()).properties
    assert said["KillMode"] == "control-group"
    assert "NoSuchProperty" not in said
    assert len(list(said)) == len(said) > 100


def test_units_by_pattern(systemd: Systemd) -> None:
    systemd.start("sleeper", deadline=limit())
    names = {unit.name: unit for unit in systemd.list_units("sleep*", "ssh.service", deadline=limit())}
    assert set(names) == {"sleeper.service", "ssh.service"}
    assert names["sleeper.service"].active
    assert systemd.list_units("nothing-like-it*", deadline=limit()) == ()
    assert len(systemd.list_units(deadline=limit())) > 20


def test_a_stage_of_our_own(systemd: Systemd, lab_host: LabHost) -> None:
    lab_host.exec("sh", "-c", "rm -rf /var/lib/opsctl/x && mkdir -p /var/lib/opsctl/x")  # output is appended
    unit = TransientUnit(
        "opsctl-run-stage.service",
        ("sh", "-c", 'printf "%s\\0" "$@"; echo "$GREETING in $PWD" >&2; exec sleep 1000', "sh", *NASTY),
        description="a stage: 100 %",
        environment={"GREETING": 'it\'s "here" $HOME 100%'},
        working_directory="/var/lib/opsctl/x",
        stdout_file="/var/lib/opsctl/x/out",
        stderr_file="/var/lib/opsctl/x/err",
        runtime_max=500,
        timeout_stop=3,
        properties={
            "Nice": 5,
            "OOMScoreAdjust": 100,
            "KillMode": "mixed",
            "After": ["basic.target"],
            "PrivateTmp": True,
        },
    )
    assert systemd.start_transient(unit, deadline=limit()).result == "done"
    status = systemd.status(unit.name, deadline=limit())
    assert status.active
    assert status.slice == "opsctl.slice"
    assert status.properties["RuntimeMaxUSec"] == 500_000_000
    assert status.properties["TimeoutStopUSec"] == 3_000_000
    assert status.properties["Nice"] == 5
    assert status.properties["Description"] == "a stage: 100 %"
    until(lambda: "in /" in lab_host.read_file("/var/lib/opsctl/x/err"), "output of the stage")
    assert lab_host.read_file("/var/lib/opsctl/x/err") == 'it\'s "here" $HOME 100% in /var/lib/opsctl/x\n'
    wanted = [word.replace("\r", "\n") for word in NASTY]  # text mode of the reading
    assert lab_host.read_file("/var/lib/opsctl/x/out").split("\0")[:-1] == wanted
    with pytest.raises(BusError, match="opsctl-run-stage") as caught:
        systemd.start_transient(unit, deadline=limit())
    assert caught.value.name == "org.freedesktop.systemd1.UnitExists"
    systemd.stop(unit.name, deadline=limit())
    assert systemd.status(unit.name, deadline=limit()).load_state == "not-found"


def test_the_host_ends_a_stage_that_runs_too_long(systemd: Systemd) -> None:
    unit = TransientUnit("opsctl-long.service", ("/bin/sleep", "1000"), runtime_max=0.5, timeout_stop=1)
    systemd.start_transient(unit, deadline=limit())
    until(lambda: systemd.status(unit.name, deadline=limit()).stopped, "RuntimeMaxSec")
    assert systemd.status(unit.name, deadline=limit()).result == "timeout"
    systemd.reset_failed(unit.name, deadline=limit())


def test_a_stage_whose_program_is_not_there_fails_at_once(systemd: Systemd) -> None:
    with pytest.raises(JobFailed) as caught:
        systemd.start_transient(TransientUnit("opsctl-gone.service", ("/absent/python", "-V")), deadline=limit())
    assert "203" in (caught.value.seen or "")
    systemd.reset_failed("opsctl-gone.service", deadline=limit())


def test_a_property_that_cannot_be_sent(systemd: Systemd) -> None:
    unit = TransientUnit("opsctl-odd.service", ("/bin/true",), properties={"Odd": {"a": 1}})
    with pytest.raises(HostError, match="Odd"):
        systemd.start_transient(unit, deadline=limit())


def test_a_deadline_that_has_passed_asks_nothing(systemd: Systemd) -> None:
    with pytest.raises(DeadlineExceeded):
        systemd.start("sleeper", deadline=limit(0))
    assert systemd.status("sleeper", deadline=limit()).stopped


def test_threads_share_it(systemd: Systemd) -> None:
    def life(number: int) -> str:
        unit = TransientUnit(f"opsctl-many-{number}.service", ("/bin/sleep", "1000"))
        systemd.start_transient(unit, deadline=limit(60))
        return systemd.stop(unit.name, deadline=limit(60)).result

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(life, range(16))) == ["done"] * 16


# -- what is D-Bus's alone


def test_a_bus_that_hangs_is_given_up(host: Host, lab_host: LabHost) -> None:
    systemd = host.systemd()
    lab_host.exec("sh", "-c", "kill -STOP $(systemctl show -P MainPID dbus.service)")
    started = time.monotonic()
    try:
        with pytest.raises(DeadlineExceeded):
            systemd.status("ssh", deadline=limit(0.5))
        assert time.monotonic() - started < 2
    finally:
        lab_host.exec("sh", "-c", "kill -CONT $(pidof dbus-daemon)")
    until(lambda: systemd.status("ssh", deadline=limit()).active, "the bus's return")


def test_systemd_reexecutes_itself_under_a_job(host: Host, lab_host: LabHost) -> None:
    timer = threading.Timer(0.3, lab_host.systemctl, ["daemon-reexec"])
    timer.start()
    try:
        with pytest.raises(JobFailed):
            host.systemd().start("late", deadline=limit())
    finally:
        timer.join()


def test_a_bridge_that_dies_is_made_again(host: Host, lab_host: LabHost) -> None:
    systemd = host.systemd()
    assert systemd.status("ssh", deadline=limit()).active
    lab_host.exec("pkill", "-x", "systemd-stdio-b")
    with pytest.raises(TransportLost, match="lost"):
        for _ in range(100):
            systemd.status("ssh", deadline=limit())
            time.sleep(0.02)
    assert host.systemd() is not systemd
    assert host.systemd().status("ssh", deadline=limit()).active


def test_a_cut_cable_ends_a_wait_for_a_job(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.write_file("/etc/systemd/system/slow.service", UNITS["slow"])
    fresh_lab_host.systemctl("daemon-reload")
    systemd = host.systemd()
    systemd.status("ssh", deadline=limit())
    threading.Timer(0.5, fresh_lab_host.cut).start()
    started = time.monotonic()
    with pytest.raises(TransportLost):
        systemd.start("slow", deadline=limit(60))
    assert time.monotonic() - started < 15


def test_twenty_units_are_read_in_twenty_calls(host: Host) -> None:
    assert isinstance(host, ConnectedHost)
    systemd = host.systemd()
    systemd.status("ssh", deadline=limit())
    started = time.monotonic()
    for _ in range(20):
        systemd.status("ssh", deadline=limit())
    assert time.monotonic() - started < 2.0

"""What else brings production up in mid-campaign: timers, sockets, paths, keepers, and a person. On a real systemd."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin, breaches, install
from tests.campaign.conftest import Desk, Running, active, answers, invocation

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"
SERVICE = f"{PRODUCTION}.service"
TIMER, SOCKET, PATH, KEEPER = (f"{PRODUCTION}.timer", f"{PRODUCTION}.socket", f"{PRODUCTION}.path", "keeper.service")
FILES = {
    TIMER: "[Timer]\nOnCalendar=*:*:*\nAccuracySec=100ms\n",
    SOCKET: "[Socket]\nListenStream=127.0.0.1:8001\n",
    PATH: "[Path]\nPathExists=/etc/hostname\n",
    KEEPER: f"[Unit]\nUpholds={SERVICE}\n[Service]\nExecStart=/bin/sleep infinity\n",
}
"""Each of them starts production within a second of its stop."""
LOOKS = (
    f"for i in 1 2 3 4 5 6; do systemctl is-active {SERVICE} >>seen; curl -sm1 127.0.0.1:8001; sleep 0.5; done; true"
)
MakeDesk = Callable[[list[LabHost]], Desk]


def served_with(host: LabHost, *triggers: str, files: dict[str, str] | None = None, **unit: Any) -> None:
    """Install production and start it after its socket, and before its other triggers, as a boot does."""
    for name, text in {**{name: FILES[name] for name in triggers if name in FILES}, **(files or {})}.items():
        host.write_file(f"/etc/systemd/system/{name}", text)
    install(host, Standin(**unit), start=False)
    sockets = [name for name in triggers if name.endswith(".socket")]
    if sockets:
        host.systemctl("start", *sockets)
    install(host, Standin(**unit))
    if triggers:
        host.systemctl("start", *triggers)


def stands(host: LabHost, unit: str) -> bool:
    return host.systemctl("is-active", unit, check=False).strip() == "active"


def alone(*argv: str) -> list[dict[str, Any]]:
    return [{"name": "alone", "serve": "nothing", "steps": [{"command": {"argv": list(argv), "collect": ["seen"]}}]}]


def in_the_step(desk: Desk, *options: str) -> Running:
    running = desk.start_run(*options)
    running.await_event("step.progress", phase="alone")
    return running


def await_production(host: LabHost) -> None:
    end = time.monotonic() + 60
    while not answers(host, Standin()):
        assert time.monotonic() < end, host.systemctl("status", SERVICE, check=False)
        time.sleep(0.2)


def test_triggers_are_stopped_first_and_started_again(fresh_lab_host: LabHost, make_desk: MakeDesk) -> None:
    """Production stays down for the whole step, though timer, socket, path and keeper would each start it."""
    served_with(fresh_lab_host, *FILES)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sh", "-c", LOOKS)
    done = desk.run()
    assert done.code == 0, done.out[-3000:] + done.err
    record = desk.status()
    [step] = record["phases"][0]["steps"]
    [seen] = [one for one in step["result"]["artifacts"] if one["path"].endswith("/seen")]
    looks = (desk.folder / "state" / "opsctl" / "runs" / record["run"] / seen["path"]).read_text().split()
    assert looks == ["inactive"] * 6
    assert all(stands(fresh_lab_host, unit) for unit in FILES)
    executed = [one["id"] for one in record["actions"] if one["branch"] == "main" and one["state"] == "verified"]
    stops = [one for one in executed if "/stop" in one]
    assert stops[-2:] == [f"alone/stop-trigger/{SOCKET}", "alone/stop"]
    assert set(stops[:-2]) == {f"alone/stop-trigger/{unit}" for unit in (TIMER, PATH, KEEPER)}
    assert answers(fresh_lab_host, Standin())


def test_production_that_requires_its_socket_stops_as_it_should(fresh_lab_host: LabHost, make_desk: MakeDesk) -> None:
    served_with(fresh_lab_host, SOCKET, unit_section=(f"Requires={SOCKET}", f"After={SOCKET}"))
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sh", "-c", LOOKS)
    done = desk.run()
    assert done.code == 0, done.out[-3000:] + done.err
    assert stands(fresh_lab_host, SOCKET)
    assert desk.status()["production"][0]["downtime_seconds"] > 0


def test_production_that_a_person_starts_in_mid_step_is_left_serving(
    fresh_lab_host: LabHost, make_desk: MakeDesk
) -> None:
    """The step fails and says why, nothing more is measured, and that very start of production is not stopped."""
    served_with(fresh_lab_host, SOCKET)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = [*alone("/bin/sleep", "300"), *desk.playbook["phases"][2:]]
    running = in_the_step(desk)
    fresh_lab_host.systemctl("start", SERVICE)
    started = invocation(fresh_lab_host, PRODUCTION)
    done = running.wait()
    assert done.code == 1, done.out[-3000:] + done.err
    assert invocation(fresh_lab_host, PRODUCTION) == started
    assert answers(fresh_lab_host, Standin())
    record = desk.status()
    alone_phase, variant_phase = record["phases"]
    assert "production was started by somebody else in mid-campaign" in alone_phase["steps"][0]["result"]["reason"]
    assert (alone_phase["steps"][0]["state"], variant_phase["state"]) == ("failed", "skipped")
    assert record["production"][0]["verified"]
    assert fresh_lab_host.exec("pgrep", "-f", "sleep 300", check=False).stdout == ""
    # systemd starts no socket whose service runs: said, and no reason to stop production.
    [socket] = [one for one in record["actions"] if one["id"] == f"give-back/start-trigger/{SOCKET}"]
    assert socket["state"] == "inconclusive"
    assert "systemd starts no socket whose service runs" in socket["reason"]


def test_a_step_that_ended_while_production_had_run_is_not_verified(
    fresh_lab_host: LabHost, make_desk: MakeDesk
) -> None:
    """It was up for a moment between two looks: its invocation shows it."""
    served_with(fresh_lab_host)
    desk = make_desk([fresh_lab_host])
    both = f"systemctl start {SERVICE}; systemctl stop {SERVICE}"
    desk.playbook["phases"] = alone("/bin/sh", "-c", both)
    done = desk.run()
    assert done.code == 1, done.out[-3000:] + done.err
    [step] = desk.status()["phases"][0]["steps"]
    assert step["state"] == "failed"
    assert "mid-campaign" in step["result"]["reason"]
    assert answers(fresh_lab_host, Standin())


def test_production_that_comes_up_beside_a_variant_ends_the_variant(
    fresh_lab_host: LabHost, make_desk: MakeDesk
) -> None:
    served_with(fresh_lab_host)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = desk.playbook["phases"][2:]
    desk.playbook["phases"][0]["steps"] = [{"command": {"argv": ["/bin/sleep", "300"]}}]
    running = desk.start_run()
    running.await_event("step.progress", phase="variant")
    # What serves on the port and on the GPUs then is the variant; production only has to be started.
    fresh_lab_host.write_file(f"/run/systemd/system/{SERVICE}.d/slow.conf", "[Service]\nExecStartPre=/bin/sleep 4\n")
    fresh_lab_host.systemctl("daemon-reload")
    fresh_lab_host.systemctl("start", "--no-block", SERVICE)
    done = running.wait()
    assert done.code == 1, done.out[-3000:] + done.err
    assert "mid-campaign" in desk.status()["reason"]
    assert not active(fresh_lab_host, f"{PRODUCTION}-profiler")
    assert answers(fresh_lab_host, Standin())
    assert breaches(fresh_lab_host) == []


def test_what_comes_up_by_itself_after_all_is_noticed(fresh_lab_host: LabHost, make_desk: MakeDesk) -> None:
    """Nothing in the unit says that a cron job starts production."""
    served_with(fresh_lab_host)
    cron = f"[Service]\nExecStart=/bin/sh -c 'sleep 3; exec systemctl start {SERVICE}'\n"
    fresh_lab_host.write_file("/etc/systemd/system/cron-like.service", cron)
    fresh_lab_host.systemctl("daemon-reload")
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sh", "-c", "systemctl start --no-block cron-like.service; sleep 300")
    done = desk.run()
    assert done.code == 1, done.out[-3000:] + done.err
    assert done.named("production.appeared")
    assert answers(fresh_lab_host, Standin())


@pytest.mark.parametrize("resumed", [True, False], ids=["resume", "the guard alone"])
def test_triggers_come_back_after_a_controller_that_died(
    fresh_lab_host: LabHost, make_desk: MakeDesk, resumed: bool
) -> None:
    """None of them is wanted by anything else: systemd forgets a timer that is stopped, and its relation with it."""
    served_with(fresh_lab_host, TIMER, SOCKET, PATH)
    desk = make_desk([fresh_lab_host])
    desk.playbook["lease"] = {"ttl": "150s" if resumed else "15s"}
    desk.playbook["phases"] = alone("/bin/sleep", "6" if resumed else "300")
    running = in_the_step(desk)
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    assert not any(stands(fresh_lab_host, unit) for unit in (TIMER, SOCKET, PATH))
    if resumed:
        done = desk.opsctl("resume", "--json")
        assert done.code == 0, done.out[-3000:] + done.err
    await_production(fresh_lab_host)
    end = time.monotonic() + 20
    while not all(stands(fresh_lab_host, unit) for unit in (TIMER, SOCKET, PATH)):
        assert time.monotonic() < end, fresh_lab_host.exec("sh", "/usr/local/lib/opsctl/opsctl-guard", "show").stdout
        time.sleep(0.2)


def test_production_started_between_two_controllers_fails_the_step(
    fresh_lab_host: LabHost, make_desk: MakeDesk
) -> None:
    served_with(fresh_lab_host)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sleep", "30")
    running = in_the_step(desk)
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    fresh_lab_host.systemctl("start", SERVICE)
    fresh_lab_host.systemctl("stop", SERVICE)
    done = desk.opsctl("resume", "--json")
    assert done.code == 1, done.out[-3000:] + done.err
    [step] = desk.status()["phases"][0]["steps"]
    assert step["state"] == "failed"
    assert "was started after opsctl-" in step["result"]["reason"]
    assert answers(fresh_lab_host, Standin())


def test_a_socket_waits_again_for_production_that_is_left_down(fresh_lab_host: LabHost, make_desk: MakeDesk) -> None:
    served_with(fresh_lab_host, SOCKET)
    fresh_lab_host.systemctl("stop", SERVICE)
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sh", "-c", LOOKS)
    done = desk.run("--if-down", "leave")
    assert done.code == 0, done.out[-3000:] + done.err
    assert stands(fresh_lab_host, SOCKET)
    assert not stands(fresh_lab_host, SERVICE)


def test_a_target_that_upholds_production_is_refused_by_all_before_the_outage(
    fresh_lab_host: LabHost, make_desk: MakeDesk
) -> None:
    served_with(fresh_lab_host, "keeper.target", files={"keeper.target": f"[Unit]\nUpholds={SERVICE}\n"})
    desk = make_desk([fresh_lab_host])
    before = invocation(fresh_lab_host, PRODUCTION)
    for words in (["plan", "small.yml"], ["doctor", fresh_lab_host.name], ["run", "small.yml"]):
        done = desk.opsctl(*words)
        assert done.code == 2, f"{words}: {done.out} {done.err}"
        assert f"keeper.target would start {SERVICE} again" in " ".join((done.out + done.err).split()), words
    assert invocation(fresh_lab_host, PRODUCTION) == before


def test_production_that_is_stopped_for_nobody_is_refused(fresh_lab_host: LabHost, make_desk: MakeDesk) -> None:
    served_with(fresh_lab_host, unit_section=("RefuseManualStop=yes",))
    done = make_desk([fresh_lab_host]).run()
    assert done.code == 2, done.out
    assert "is stopped for nobody (RefuseManualStop=yes)" in done.out


LEAVES = ("ExecStartPost=/bin/sh -c 'setsid sleep 901 & setsid sleep 902 & exit 0'",)


@pytest.mark.parametrize("mode", ["KillMode=process", "KillMode=mixed"])
def test_leftovers_are_ended_where_that_is_allowed_and_refused_where_not(
    fresh_lab_host: LabHost, make_desk: MakeDesk, mode: str
) -> None:
    served_with(fresh_lab_host, service=(mode, *LEAVES))
    desk = make_desk([fresh_lab_host])
    desk.playbook["phases"] = alone("/bin/sh", "-c", "pgrep -f 'sleep 90[12]' >seen; true")
    before = invocation(fresh_lab_host, PRODUCTION)
    refused = desk.run()
    assert refused.code == 2, refused.out
    assert "workers may outlive a stop" in refused.out
    assert invocation(fresh_lab_host, PRODUCTION) == before
    desk.inventory["services"][PRODUCTION]["stop"] = {"end-leftovers": True}
    assert "end what it leaves behind" in desk.opsctl("plan", "small.yml").out
    done = desk.run()
    assert done.code == 0, done.out[-3000:] + done.err
    record = desk.status()
    [step] = record["phases"][0]["steps"]
    seen = [one for one in step["result"]["artifacts"] if one["path"].endswith("/seen")]
    assert (desk.folder / "state" / "opsctl" / "runs" / record["run"] / seen[0]["path"]).read_text() == ""
    assert answers(fresh_lab_host, Standin())

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import UnfitError
from opsctl.schedule import controller
from opsctl.schedule.plans import Schedule, checked_name, name_for, read_time, retargeted, unit_texts


def schedule(**changes: object) -> Schedule:
    fields: dict[str, object] = {
        "name": "nightly",
        "playbook": "/srv/ops/playbooks/nightly-snapshot.yml",
        "inventory": "/srv/ops/inventory.yml",
        "calendar": "*-*-* 02:30:00",
        "user": "root",
        "folder": "/srv/ops",
        "state_home": "/root/.local/state",
        "python": "/opt/opsctl/bin/python",
        "path": "/usr/bin:/bin",
    }
    return Schedule.model_validate(fields | changes)


@pytest.mark.parametrize(
    ("at", "every", "calendar", "interval"),
    [
        ("02:30", None, "*-*-* 02:30:00", 0.0),
        ("2:30", None, "*-*-* 02:30:00", 0.0),
        ("02:30:15", None, "*-*-* 02:30:15", 0.0),
        ("Sun 03:00", None, "Sun *-*-* 03:00:00", 0.0),
        ("Mon..Fri 03:00", None, "Mon..Fri *-*-* 03:00:00", 0.0),
        ("02:30", "day", "*-*-* 02:30:00", 0.0),
        ("02:30", "weekday", "Mon..Fri *-*-* 02:30:00", 0.0),
        ("02:30", "week", "Mon *-*-* 02:30:00", 0.0),
        ("02:30", "month", "*-*-01 02:30:00", 0.0),
        ("02:30", "mon,thu", "Mon,Thu *-*-* 02:30:00", 0.0),
        ("*:0/10", None, "*:0/10", 0.0),
        (None, "6h", "", 21600.0),
    ],
)
def test_times(at: str | None, every: str | None, calendar: str, interval: float) -> None:
    assert read_time(at, every) == (calendar, interval)
    if calendar:
        assert controller.normalised(calendar)


@pytest.mark.parametrize(
    ("at", "every"),
    [
        (None, None),
        ("25:00", None),
        ("02:30", "6h"),
        (None, "10s"),
        ("noon", "day"),
        (None, "sometimes"),
        (None, "day"),
    ],
)
def test_times_that_say_nothing_are_refused(at: str | None, every: str | None) -> None:
    with pytest.raises(UnfitError) as caught:
        read_time(at, every)
    assert caught.value.wanted


def test_an_expression_that_systemd_does_not_know_is_refused() -> None:
    with pytest.raises(UnfitError, match="no time that systemd knows"):
        controller.normalised("half past two")


def test_a_machine_without_systemd_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match="not booted with systemd") as caught:
        controller.require_systemd(tmp_path / "no")
    assert caught.value.exit_code == 2
    controller.require_systemd(tmp_path)


def test_names() -> None:
    assert name_for(Path("playbooks/Nightly_snapshot.yml")) == "nightly-snapshot"
    for bad in ("", "Bad", "a/b", "-a", "a b", "a\nb", "x" * 80):
        with pytest.raises(UnfitError):
            checked_name(bad)


def test_another_host_takes_the_place_of_the_playbooks_own() -> None:
    text = "name: nightly\nhosts: kimi   # all of them\nphases:\n  - name: hosts: here\n"
    assert retargeted(text, "kimi-3") == 'name: nightly\nhosts: "kimi-3"\nphases:\n  - name: hosts: here\n'
    with pytest.raises(UnfitError):
        retargeted("name: x\n", "kimi-3")


@pytest.mark.parametrize(
    "made",
    [
        schedule(),
        schedule(scope="user"),
        schedule(local_hosts=True),
        schedule(inventory="/tmp/opsctl-lab/inventory.yml"),
        schedule(calendar="", interval=21600.0),
        schedule(state_home="/home/a b/$x/100%/.local", path='/opt/"odd"/bin:/bin', folder="/srv/100% sure"),
    ],
    ids=["system", "user", "local", "in /tmp", "interval", "odd paths"],
)
def test_systemd_finds_no_fault_with_the_units(tmp_path: Path, made: Schedule) -> None:
    python = tmp_path / "python $1"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    texts = unit_texts(made.model_copy(update={"python": str(python)}))
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", *(["--user"] if made.scope == "user" else [])]
    done = subprocess.run(
        [*verify, *(str(tmp_path / name) for name in texts)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    complaints = [line for line in done.stderr.splitlines() if "opsctl-schedule" in line]
    assert complaints == []


def test_the_service_is_locked_down_and_a_stop_restores_production_first() -> None:
    text = unit_texts(schedule())["opsctl-schedule-nightly.service"]
    for line in (
        "ProtectSystem=strict",
        "NoNewPrivileges=yes",
        "ProtectHome=read-only",
        'ReadWritePaths="/root/.local/state/opsctl"',
        "KillMode=mixed",
        "TimeoutStopSec=2h",
        "SuccessExitStatus=4 5",
        'Environment="XDG_STATE_HOME=/root/.local/state"',
        'ExecStart="/opt/opsctl/bin/python" "-m" "opsctl" "schedule" "fire" "nightly"',
    ):
        assert line in text.splitlines()
    local = unit_texts(schedule(local_hosts=True))["opsctl-schedule-nightly.service"]
    assert "NoNewPrivileges=no" in local
    assert "ReadWritePaths=-/usr/local/lib -/etc/systemd/system -/run -/var/lib" in local.splitlines()
    assert "/etc/systemd" not in text


@pytest.mark.parametrize(
    "needed",
    [
        {"inventory": "/tmp/opsctl-lab/inventory.yml"},
        {"python": "/var/tmp/opsctl/.venv/bin/python"},
        {"keys": ("/tmp/opsctl-lab/key",)},
    ],
    ids=str,
)
def test_a_service_sees_what_it_needs_in_tmp(needed: dict[str, Any]) -> None:
    lines = unit_texts(schedule(**needed))["opsctl-schedule-nightly.service"].splitlines()
    assert "PrivateTmp=no" in lines
    assert "ReadWritePaths=/tmp -/var/tmp" in lines
    usual = unit_texts(schedule())["opsctl-schedule-nightly.service"].splitlines()
    assert "PrivateTmp=yes" in usual
    assert "ReadWritePaths=/tmp -/var/tmp" not in usual


def test_the_timer() -> None:
    lines = unit_texts(schedule(random_delay=600.0))["opsctl-schedule-nightly.timer"].splitlines()
    assert "OnCalendar=*-*-* 02:30:00" in lines
    assert "Persistent=yes" in lines
    assert "RandomizedDelaySec=600s" in lines
    assert "WantedBy=timers.target" in lines


def test_a_line_break_cannot_add_a_setting() -> None:
    for field in ("playbook", "folder", "state_home", "python", "path", "calendar"):
        with pytest.raises(UnfitError):
            unit_texts(schedule(**{field: "/x\nExecStart=evil"}))


def test_no_secret_travels_in_the_command_line() -> None:
    argv = schedule(variables=("concurrency=[1, 8]",)).run_argv("/x/nightly.yml")
    assert argv[3:] == [
        "run",
        "/x/nightly.yml",
        "-i",
        "/srv/ops/inventory.yml",
        "--var",
        "concurrency=[1, 8]",
        "--plain",
    ]

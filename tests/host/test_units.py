from __future__ import annotations

import pytest

from opsctl.host.protocol import TransientUnit
from opsctl.host.units import absolute, full_name, object_path, status_of, transient_properties


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("ssh", "ssh.service"),
        ("ssh.service", "ssh.service"),
        ("vllm@kimi-k2.5", "vllm@kimi-k2.5.service"),
        ("opsctl.slice", "opsctl.slice"),
        ("x.timer", "x.timer"),
    ],
)
def test_names_are_completed_as_systemctl_does(unit: str, name: str) -> None:
    assert full_name(unit) == name


@pytest.mark.parametrize(
    ("unit", "path"),
    [
        ("ssh.service", "ssh_2eservice"),
        ("vllm-k2.5@a.service", "vllm_2dk2_2e5_40a_2eservice"),
        ("1st.service", "_31st_2eservice"),
        ("é.service", "_c3_a9_2eservice"),
        ("a_b.service", "a_5fb_2eservice"),
    ],
)
def test_paths_are_escaped_as_systemd_does(unit: str, path: str) -> None:
    assert object_path(unit) == f"/org/freedesktop/systemd1/unit/{path}"


def test_a_program_without_a_path_is_found_by_env_and_dollars_stay() -> None:
    assert absolute(("echo", "$HOME", "a$$b")) == ("/usr/bin/env", "--", "echo", "$$HOME", "a$$$$b")
    assert absolute(("/bin/echo", "x")) == ("/bin/echo", "x")


def test_transient_properties_say_what_was_asked_and_the_units_own_win() -> None:
    unit = TransientUnit(
        "x.service",
        ("/bin/true",),
        environment={"A": "1"},
        runtime_max=1.5,
        stdout_file="/out",
        properties={"TimeoutStopUSec": 7, "Nice": 5},
    )
    said = transient_properties(unit)
    assert said["RuntimeMaxUSec"] == 1_500_000
    assert said["TimeoutStopUSec"] == 7
    assert said["Nice"] == 5
    assert said["Environment"] == ["A=1"]
    assert said["StandardOutputFileToAppend"] == "/out"
    assert "StandardErrorFileToAppend" not in said
    assert said["Slice"] == "opsctl.slice"


def test_a_reading_of_next_to_nothing_is_still_a_reading() -> None:
    status = status_of("gone.service", {"LoadState": "not-found", "ActiveState": "inactive"})
    assert (status.name, status.load_state, status.stopped) == ("gone.service", "not-found", True)
    assert status.exec_start == ()

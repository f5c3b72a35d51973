"""What is not fit is said before production is touched: a clear error, exit 2, and nothing changed on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec
from opsctl.lab.units import Standin, install, set_fault
from tests.campaign.conftest import Desk, answers, invocation
from tests.labfixtures import MakeLabHost

pytestmark = pytest.mark.lab
PRODUCTION = "vllm-kimi-k25-int4"


@pytest.fixture
def untouched(serving_host: LabHost) -> Iterator[None]:
    """See that production is the same process before and after."""
    before = invocation(serving_host, PRODUCTION)
    yield
    assert invocation(serving_host, PRODUCTION) == before
    assert answers(serving_host, Standin())


def host_of(desk: Desk) -> dict[str, Any]:
    entry: dict[str, Any] = desk.inventory["hosts"][desk.hosts[0].name]
    return entry


def production_of(desk: Desk) -> dict[str, Any]:
    entry: dict[str, Any] = desk.inventory["services"][PRODUCTION]
    return entry


def unknown_service(desk: Desk) -> None:
    desk.playbook["phases"][0]["serve"] = "vllm-kimi-k25-int5"


def unknown_unit(desk: Desk) -> None:
    production_of(desk)["unit"] = "vllm-nowhere"


def service_of_another_host(desk: Desk) -> None:
    desk.inventory["hosts"]["other"] = dict(host_of(desk))
    desk.inventory["services"]["elsewhere"] = {**production_of(desk), "on": "other", "unit": "elsewhere"}
    for name in (PRODUCTION, f"{PRODUCTION}-profiler"):
        desk.inventory["services"][name]["on"] = desk.hosts[0].name
    desk.playbook["phases"][0]["serve"] = "elsewhere"


def unreachable(desk: Desk) -> None:
    host_of(desk)["port"] = 23


def wrong_key(desk: Desk) -> None:
    key = desk.folder / "other-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    host_of(desk)["identity-file"] = str(key)


def unknown_host_key(desk: Desk) -> None:
    empty = desk.folder / "known_hosts"
    empty.write_text("")
    host_of(desk)["known-hosts"] = str(empty)


def changed_host_key(desk: Desk) -> None:
    other = desk.folder / "known_hosts"
    wrong = "AAAAC3NzaC1lZDI1NTE5AAAAIJ3ZyJ6O2RzQm1mZp3cJ8wq0sYxk8iF2l1bV7o4f1h2K"
    other.write_text(f"{desk.hosts[0].address} ssh-ed25519 {wrong}\n")
    host_of(desk)["known-hosts"] = str(other)


def other_model(desk: Desk) -> None:
    production_of(desk)["model"] = "kimi-k3"


def something_else_on_the_port(desk: Desk) -> None:
    production_of(desk)["url"] = "http://127.0.0.1:9000"


def wrong_yaml(desk: Desk) -> None:
    desk.playbook["phases"][0]["serves"] = desk.playbook["phases"][0].pop("serve")
    desk.playbook["lease"] = {"ttl": 5}


CASES: list[tuple[Callable[[Desk], None], str]] = [
    (unknown_service, "vllm-kimi-k25-int4"),
    (unknown_unit, "no unit vllm-nowhere.service"),
    (service_of_another_host, "elsewhere"),
    (unreachable, "refused"),
    (wrong_key, "key"),
    (unknown_host_key, "unknown"),
    (changed_host_key, "is not the one that is known"),
    (other_model, "kimi-k3"),
    (wrong_yaml, "serves"),
]


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize(("spoil", "said"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_it_is_said_and_nothing_is_touched(desk: Desk, spoil: Callable[[Desk], None], said: str) -> None:
    spoil(desk)
    done = desk.opsctl("run", "small.yml")
    text = done.out + done.err
    assert done.code == 2, text
    assert said.lower() in text.lower()
    assert "Traceback" not in text
    assert "lease 1 armed" not in text


@pytest.mark.usefixtures("untouched")
def test_every_problem_of_a_playbook_is_said_at_once_with_its_place(desk: Desk) -> None:
    wrong_yaml(desk)
    done = desk.opsctl("run", "small.yml")
    problems = [line for line in done.err.splitlines() if line.startswith("small.yml:")]
    assert len(problems) >= 2, done.err
    assert all(line.split(":")[1].isdigit() and line.split(":")[2].isdigit() for line in problems)


@pytest.mark.parametrize(
    ("spec", "said"),
    [(HostSpec(login="ops", sudo=False), "sudo"), (HostSpec(init="sshd"), "systemd")],
    ids=["no sudo", "no systemd"],
)
def test_a_host_that_cannot_be_run_is_refused(
    make_lab_host: MakeLabHost,
    make_desk: Callable[[list[LabHost]], Desk],
    spec: HostSpec,
    said: str,
) -> None:
    desk = make_desk([make_lab_host(spec)])
    if spec.login != "root":
        host_of(desk)["become"] = True
    done = desk.opsctl("run", "small.yml")
    assert done.code == 2, done.out + done.err
    assert said in (done.out + done.err).lower()


def test_production_that_was_down_is_refused_or_restored_or_left_as_asked(
    standin_host: LabHost,
    make_desk: Callable[[list[LabHost]], Desk],
) -> None:
    desk = make_desk([standin_host])
    desk.playbook["phases"] = [{"name": "alone", "serve": "nothing", "steps": [{"command": {"argv": ["/bin/true"]}}]}]
    standin_host.systemctl("stop", f"{PRODUCTION}.service")

    refused = desk.opsctl("run", "small.yml")
    assert refused.code == 2
    assert "was not serving before" in refused.out + refused.err

    left = desk.run("--if-down", "leave")
    assert left.code == 0, left.out[-2000:]
    assert not answers(standin_host, Standin())

    restored = desk.run("--if-down", "restore")
    assert restored.code == 0, restored.out[-2000:]
    assert answers(standin_host, Standin())


def test_an_api_key_that_is_missing_or_wrong_is_an_error_before_the_swap(
    fresh_lab_host: LabHost,
    make_desk: Callable[[list[LabHost]], Desk],
) -> None:
    guarded = Standin(environment={"VLLM_API_KEY": "the-right-key"})
    install(fresh_lab_host, guarded)
    desk = make_desk([fresh_lab_host])
    before = invocation(fresh_lab_host, PRODUCTION)

    without = desk.opsctl("run", "small.yml")
    assert without.code == 2, without.out + without.err
    assert "api-key-file" in without.out + without.err

    fresh_lab_host.write_file("/etc/kimi.key", "the-wrong-key\n")
    production_of(desk)["api-key-file"] = "/etc/kimi.key"
    wrong = desk.opsctl("run", "small.yml")
    assert wrong.code == 2, wrong.out + wrong.err
    assert "401" in wrong.out + wrong.err
    assert "the-wrong-key" not in wrong.out + wrong.err

    fresh_lab_host.write_file("/etc/kimi.key", "the-right-key\n")
    right = desk.run()
    assert right.code == 0, right.out[-3000:]
    kept = [
        path for path in (desk.folder / "state").rglob("*") if path.is_file() and b"the-right-key" in path.read_bytes()
    ]
    assert kept == [], "the key is nowhere in what the controller keeps"
    assert invocation(fresh_lab_host, PRODUCTION) != before


def test_a_load_that_died_of_something_passing_is_tried_again(
    standin_host: LabHost,
    make_desk: Callable[[list[LabHost]], Desk],
) -> None:
    set_fault(standin_host, f"{PRODUCTION}-profiler", "dies-at-shard=2,times=1")
    desk = make_desk([standin_host])
    done = desk.run()
    loads = [(load["service"], load["attempt"], load["outcome"][:10]) for load in desk.status()["loads"]]
    assert done.code == 0, (done.out[-3000:], loads)
    assert [attempt for service, attempt, _ in loads if service.endswith("profiler")] == [1, 2]


def test_paths_in_errors_are_the_users_own(desk: Desk) -> None:
    done = desk.opsctl("run", "nowhere.yml")
    assert done.code == 2
    assert "nowhere.yml" in done.err
    assert Path("nowhere.yml").name in done.err

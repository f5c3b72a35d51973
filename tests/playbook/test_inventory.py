from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import DefinitionError, UnfitError
from opsctl.playbook.inventory import load_inventory
from opsctl.playbook.models import Role
from tests.playbook.files import INVENTORY, inventory_at, said

ONE = "hosts: {h: {}}\nservices:\n  p: {url: 'http://127.0.0.1:8000', model: m}\n"


def test_groups_unfold_sorted_and_once(tmp_path: Path) -> None:
    loaded = inventory_at(tmp_path)
    assert loaded.hosts_of("all-kimi") == ("gpu1", "gpu2")
    assert loaded.hosts_of("gpu2") == ("gpu2",)


def test_a_variant_takes_what_it_does_not_say_from_its_production(tmp_path: Path) -> None:
    loaded = inventory_at(tmp_path)
    variant = loaded.service_on("prod-profiler", "gpu1")
    assert variant.role is Role.VARIANT
    assert variant.is_variant
    assert (variant.unit, variant.url, variant.model) == (
        "prod-profiler.service",
        "http://127.0.0.1:8000",
        "kimi-k2.5",
    )
    assert (variant.api_key_file, variant.tensor_parallel, variant.engine) == ("/etc/vllm/key", 8, "vllm")
    # Of readiness it says one key; the others are production's, not the defaults.
    assert (variant.readiness.limit, variant.readiness.completions) == (5400.0, 5)
    assert variant.stop.drain == 30.0
    # It is never put into the load balancer.
    assert variant.traffic.in_ == ()
    assert loaded.service_on("prod-ep", "gpu2").url == "http://127.0.0.1:8001"


def test_production_and_services_of_a_host(tmp_path: Path) -> None:
    loaded = inventory_at(tmp_path)
    assert [service.name for service in loaded.production_of("gpu1")] == ["prod"]
    assert [service.name for service in loaded.services_of("gpu1")] == ["prod", "prod-profiler", "prod-ep"]
    assert [service.name for service in loaded.production_of("spare")] == ["other"]


def test_several_productions_on_one_host_need_a_choice(tmp_path: Path) -> None:
    both = ONE + "  q: {url: 'http://127.0.0.1:8001', model: n}\n"
    with pytest.raises(DefinitionError) as caught:
        inventory_at(tmp_path, both)
    (problem,) = said(caught.value)
    assert problem.startswith("1:9: several production services are on this host (p, q): say with `production: [p]`")
    chosen = inventory_at(tmp_path, both.replace("{h: {}}", "{h: {production: [q]}}"))
    assert [service.name for service in chosen.production_of("h")] == ["q"]


@pytest.mark.parametrize(
    ("call", "said_"),
    [
        (("hosts_of", "kimmi"), "unknown host or group `kimmi`; nearest: `kimi`"),
        (("service_on", "prodd", "gpu1"), "unknown service `prodd`; nearest: `prod`"),
        (("service_on", "prod", "spare"), "service `prod` is not on host `spare`"),
        (("production_of", "nowhere"), "unknown host `nowhere`"),
    ],
)
def test_names_that_are_asked_for_and_are_not_there(tmp_path: Path, call: tuple[str, ...], said_: str) -> None:
    loaded = inventory_at(tmp_path)
    with pytest.raises(UnfitError) as caught:
        getattr(loaded, call[0])(*call[1:])
    assert said_ in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "said_"),
    [
        ("{address: 10.0.0.1", "{adress: 10.0.0.1", "3:10: unknown key `adress`; nearest: `address`"),
        ("{address: 10.0.0.1", "{port: '22'", "3:16: wanted a whole number, found '22'"),
        ("{address: 10.0.0.1", "{port: 99999", "3:16: wanted at most 65535, found 99999"),
        ("{address: 10.0.0.1", "{scope: sistem", "3:17: wanted one of system, user, found 'sistem'; nearest: `system`"),
        ("{address: 10.0.0.1", "{become: yes", "3:18: wanted true or false, found 'yes'"),
        ("{address: 10.0.0.1", "{alert: mail me", "3:17: wanted a list, found 'mail me'"),
        ("gpu2: {}", "gpu2: 7", "4:9: wanted a mapping of keys, found 7"),
        ("gpu2: {}", "gpu 2: {}", "4:3: wanted a name of letters, digits"),
        ("rounds: 1", "in-rounds: 1", "3:36: wanted a name of letters, digits and `_`, found `in-rounds`; nearest"),
        ("[gpu1, gpu2]", "[gpu1, gpu22]", "7:16: unknown host or group `gpu22`; nearest: `gpu2`"),
        ("[gpu1, gpu2]", "[gpu1, all-kimi]", "7:3: the group holds itself: kimi → all-kimi → kimi"),
        ("[gpu1, gpu2]", "[]", "7:3: wanted at least one host in the group, found none"),
        ("all-kimi: [kimi]", "gpu1: [gpu2]", "8:3: `gpu1` is a host already: a group needs another name"),
        ("on: kimi", "on: kimmi", "11:9: unknown host or group `kimmi`; nearest: `kimi`"),
        ("vllm-prod.service", "a b", "12:11: wanted a systemd unit such as vllm-kimi-k25-int4.service, found `a b`"),
        ("8000\n    model: kimi-k2.5", "80000\n    model: kimi-k2.5", "13:10: wanted a URL such as http://127"),
        ("http://127.0.0.1:8000\n", "127.0.0.1:8000\n", "13:10: wanted a URL such as http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000\n", "http://me:pw@x:8000\n", "13:10: wanted a URL without a user or password"),
        (
            "http://127.0.0.1:8000\n",
            "http://127.0.0.1:8000/v1\n",
            "13:10: wanted the server's own address, without /v1",
        ),
        ("    model: kimi-k2.5\n", "", "10:3: wanted the key `model`, found none"),
        ("    model: kimi-k2.5\n", "    model: null\n", "10:3: wanted the key `model`, found none"),
        ("/etc/vllm/key", "sk-123", "15:19: wanted an absolute path on the host, not the key itself"),
        ("tensor-parallel: 8", "ca-file: lab.pem", "16:14: wanted an absolute path on the host, of a file of cert"),
        ("tensor-parallel: 8", "verify: false", "16:5: `verify` is for an https url"),
        ("tensor-parallel: 8", "verify: false\n    ca-file: /c", "17:5: `verify: false` trusts any certificate"),
        ("tensor-parallel: 8", "tensor_parallel: 8", "16:5: unknown key `tensor_parallel`; nearest: `tensor-parallel`"),
        ("tensor-parallel: 8", "tensor-parallel: 0", "16:22: wanted at least 1, found 0"),
        ("drain: 30s", "drain: 30", "18:19: wanted a duration such as 90s, 45m or 1h30m, found 30"),
        ("drain: 30s", "drain: soon", "18:19: wanted a duration such as 90s, 45m or 1h30m, found 'soon'"),
        ("    tensor-parallel: 8", "    profiler: torch", "16:5: `profiler` is for variants only: production runs as"),
        ("    of: prod\n    profiler: torch", "    role: variant", "20:3: wanted the key `of`"),
        ("of: prod\n    profiler: torch", "of: prodd", "21:9: unknown service `prodd`; nearest: `prod`"),
        ("of: prod\n    profiler: torch", "of: prod-ep", "21:9: `prod-ep` is a variant itself"),
        ("profiler: torch", "role: production", "22:11: wanted role variant, since `of` is given"),
        ("profiler: torch", "traffic: {out: [x]}", "22:5: `traffic` is for production only"),
        ("profiler: torch", "on: spare", "22:9: a variant runs where its production `prod` does: not on spare"),
        ("profiler: torch", "unit: vllm-prod", "22:11: unit vllm-prod.service is service `prod` on host gpu1 already"),
        ("profiler: torch", "env: {API_TOKEN: 5123}", "22:22: wanted text, found a value (not shown)"),
        ("profiler: torch", "env: {NCCL_NTHREADS: 64}", '22:26: wanted text, found 64; write "64" with quotes'),
        ("[--enable-expert-parallel]", "['{{ vars.x }}']", "24:66: expressions are for playbooks"),
        ("other: {on: spare", "nothing: {on: spare", "`nothing` is what `serve:` calls free GPUs"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(tmp_path: Path, old: str, new: str, said_: str) -> None:
    assert old in INVENTORY
    with pytest.raises(DefinitionError) as caught:
        inventory_at(tmp_path, INVENTORY.lstrip("\n").replace(old, new, 1).join(["\n", ""]).removeprefix("\n\n"))
    assert any(said_ in line for line in said(caught.value)), said(caught.value)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = """
    hosts: {h: {prot: 1}, i: {port: x}}
    groups: {g: [hh]}
    services:
      p: {url: nope, model: 3, on: gg}
      v: {of: q}
    extra: 1
    """
    with pytest.raises(DefinitionError) as caught:
        inventory_at(tmp_path, text)
    assert len(caught.value.problems) == 8
    assert caught.value.problems == sorted(caught.value.problems)
    assert caught.value.lines()[-1] == f"8 problems in {tmp_path}/inventory.yml"


def test_no_secret_is_in_a_message(tmp_path: Path) -> None:
    text = ONE.replace("model: m", "model: m, api-key-file: sk-very-secret, stop: {drain: 1}")
    with pytest.raises(DefinitionError) as caught:
        inventory_at(tmp_path, text)
    assert "very-secret" not in "\n".join(caught.value.lines())


def test_the_inventory_of_the_repository_is_fit() -> None:
    loaded = load_inventory(Path(__file__).parents[2] / "inventory.yml")
    assert loaded.hosts_of("kimi")
    assert loaded.service_on("vllm-kimi-k25-int4-profiler", "gpu1").profiler == "torch"


@pytest.mark.parametrize(
    ("address", "better"),
    [
        ("gpu1:2222", "address: gpu1, port: 2222"),
        ("10.9.8.7:22", "address: 10.9.8.7, port: 22"),
        ("[fd00::7]", "address: fd00::7"),
        ("[fe80::7%eth0]:2222", "address: fe80::7%eth0, port: 2222"),
        ("ops@gpu1", "address: gpu1, user: ops"),
        ("ops@[fd00::7]:2222", "address: fd00::7, user: ops, port: 2222"),
        ("ssh://ops@gpu1:2222/", "address: gpu1, user: ops, port: 2222"),
        ("ssh://gpu1", "address: gpu1"),
    ],
)
def test_an_address_with_more_than_an_address(tmp_path: Path, address: str, better: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        inventory_at(tmp_path, ONE.replace("h: {}", f"h: {{address: '{address}'}}"))
    (problem,) = said(caught.value)
    assert problem.startswith("1:22: ")
    assert problem.endswith(f"found `{address}`; write {better}")


@pytest.mark.parametrize("address", ["gpu1", "gpu1.example.org", "10.9.8.7", "fd00::7", "fe80::7%eth0", "::1", "a_b-c"])
def test_an_address_as_ssh_takes_it(tmp_path: Path, address: str) -> None:
    loaded = inventory_at(tmp_path, ONE.replace("h: {}", f"h: {{address: '{address}'}}"))
    assert loaded.host("h").address == address

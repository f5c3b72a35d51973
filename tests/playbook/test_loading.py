from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import DefinitionError, UnfitError
from opsctl.playbook.inventory import LoadedInventory, load_inventory
from opsctl.playbook.loading import find_playbook, load_playbook, load_playbooks
from opsctl.stages.gemm import Gemm
from opsctl.stages.serving_benchmark import ServingBenchmark
from tests.playbook.files import INVENTORY, inventory_at, said, write

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
name: campaign
hosts: kimi
vars:
  concurrency: [1, 8]
  rounds: 3
  thrice: "{{ vars.rounds * 3 }}"
lease: {ttl: 2m}
phases:
  - name: Base line
    serve: prod
    steps:
      - serving-benchmark: {concurrency: "{{ vars.concurrency }}", rounds: "{{ vars.rounds }}"}
  - name: kernels
    serve: nothing
    steps:
      - gemm: {tokens: "{{ vars.concurrency }}", repetitions: "{{ vars.thrice }}"}
      - name: all of NCCL
        collectives:
"""


@pytest.fixture
def inventory(tmp_path: Path) -> LoadedInventory:
    return inventory_at(tmp_path)


def problems_of(folder: Path, inventory: LoadedInventory, text: str, *overrides: str) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        load_playbooks(write(folder, "p.yml", text.lstrip("\n")), inventory, overrides)
    return said(caught.value)


def test_a_playbook_becomes_typed_steps_with_stable_ids(tmp_path: Path, inventory: LoadedInventory) -> None:
    playbook = load_playbook(write(tmp_path, "p.yml", PLAYBOOK), inventory)
    assert [step.id for phase in playbook.phases for step in phase.steps] == [
        "base-line/1-serving-benchmark",
        "kernels/1-gemm",
        "kernels/2-collectives",
    ]
    benchmark, gemm = playbook.phases[0].steps[0], playbook.phases[1].steps[0]
    assert isinstance(benchmark.options, ServingBenchmark)
    assert benchmark.options.concurrency == (1, 8)
    assert isinstance(gemm.options, Gemm)
    assert gemm.options.repetitions == 9
    assert playbook.phases[1].steps[1].name == "all of NCCL"
    assert playbook.lease.ttl == 120.0
    assert playbook.vars == {"concurrency": [1, 8], "rounds": 3, "thrice": 9}


def test_precedence_is_playbook_inventory_host_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "p.yml", PLAYBOOK)
    plain = inventory_at(tmp_path)
    assert load_playbook(path, plain, "gpu2").vars["rounds"] == 3
    shared = inventory_at(tmp_path, "vars: {rounds: 2, concurrency: [4], unheard_of: 1}\n" + INVENTORY)
    assert load_playbook(path, shared, "gpu2").vars["rounds"] == 2
    # gpu1 has a value of its own.
    assert load_playbook(path, shared, "gpu1").vars["rounds"] == 1
    assert load_playbook(path, shared, "gpu1", ["rounds=7"]).vars["rounds"] == 7
    assert load_playbook(path, shared, "gpu1", ["rounds=7", "rounds=8"]).vars["rounds"] == 8
    loaded = load_playbooks(path, shared, ["concurrency=[2, 3]"])
    assert loaded.hosts == ("gpu1", "gpu2")
    assert {host: playbook.vars["thrice"] for host, playbook in loaded.by_host.items()} == {"gpu1": 3, "gpu2": 6}
    assert loaded.by_host["gpu1"].phases[0].steps[0].options.concurrency == (2, 3)
    assert loaded.unused_vars == ("unheard_of",)


@pytest.mark.parametrize(
    ("override", "said_"),
    [
        ("roundz=3", "1:1: unknown var `roundz`; nearest: `rounds`"),
        ("rounds", "1:1: wanted NAME=VALUE, found `rounds`"),
        ("=3", "1:1: wanted NAME=VALUE, found `=3`"),
        ("rounds=[1", "1:10: not YAML"),
        ("rounds=[1]", "wanted a whole number, found a list (vars.rounds from --var)"),
        ("rounds=0", "wanted at least 1, found 0 (vars.rounds from --var)"),
        ("rounds='3'", "wanted a whole number, found '3' (vars.rounds from --var)"),
        ("rounds='{{ vars.thrice }}'", "vars.rounds uses itself: rounds → thrice → rounds"),
        ("rounds='{{ vars.nope }}'", "vars.rounds: `vars.nope` is not defined"),
    ],
)
def test_overrides_that_do_not_fit(tmp_path: Path, inventory: LoadedInventory, override: str, said_: str) -> None:
    found = problems_of(tmp_path, inventory, PLAYBOOK, override)
    assert any(said_ in line for line in found), found


def test_a_var_of_the_inventory_that_does_not_fit_is_named_with_its_place(tmp_path: Path) -> None:
    shared = inventory_at(tmp_path, "vars: {concurrency: many}\n" + INVENTORY.lstrip("\n"))
    found = problems_of(tmp_path, shared, PLAYBOOK)
    assert found[0] == (f"12:42: wanted a list, found 'many' (vars.concurrency from {tmp_path}/inventory.yml:1:21)")


@pytest.mark.parametrize(
    ("old", "new", "said_"),
    [
        ("name: campaign\n", "", "1:1: wanted the key `name`, found none"),
        ("name: campaign", 'name: "{{ vars.rounds }}"', "1:7: wanted plain text for `name`, found an expression"),
        ("hosts: kimi", "hosts: kimmi", "2:8: unknown host or group `kimmi` in"),
        ("rounds: 3", "in-tokens: 3", "5:3: wanted a name of letters, digits and `_`, found `in-tokens`"),
        ("ttl: 2m", "ttl: 120", "7:14: wanted a duration such as 90s, 45m or 1h30m, found 120: its unit would be"),
        ("ttl: 2m", "ttl: 5s", "7:14: wanted at least 10s, found '5s'"),
        ("lease:", "leases:", "7:1: unknown key `leases`; nearest: `lease`"),
        ("phases:", "rounds: {count: 0}\nphases:", "8:17: wanted at least 1, found 0"),
        ("serve: prod", "serve: prdo", "10:12: unknown service `prdo` in"),
        ("serve: prod", "serve: other", "10:12: service `other` is not on gpu1, gpu2; it is on spare"),
        ("serve: prod", "server: prod", "10:5: unknown key `server`; nearest: `serve`"),
        ("    serve: prod\n", "", "9:5: wanted the key `serve`, found none"),
        ("  rounds: 3", "  rounds: 3\n  idle: 4", "6:3: var `idle` is used nowhere in this playbook"),
        ("serving-benchmark:", "serving_benchmark:", "12:9: unknown stage `serving_benchmark`; nearest: `serving-b"),
        ("{concurrency: ", "{concurency: ", "12:29: unknown key `concurency`; nearest: `concurrency`"),
        ('concurrency: "{{ vars.concurrency }}", ', "", "12:9: wanted `concurrency` or `request-rate`"),
        (
            'vars.concurrency }}", rounds',
            'vars.concurency }}", rounds',
            "12:42: `vars.concurency` is not defined; nearest: `conc",
        ),
        ('{{ vars.concurrency }}", rounds', '{{ [0, 1] }}", rounds', "12:42: wanted numbers above 0, found 0"),
        ('{{ vars.concurrency }}", rounds', '{{ [1, 1] }}", rounds', "12:42: wanted values that differ"),
        ("serve: nothing\n", "serve: prod-ep\n", "16:9: `gemm` needs free GPUs, found `serve: prod-ep`"),
        ("serve: prod\n", "serve: nothing\n", "12:9: `serving-benchmark` needs a service that serves"),
        ("name: kernels", "name: base-line", "13:11: wanted phase names that differ, found `base-line` after"),
        ("name: kernels", "name: '--'", "13:11: wanted a name with a letter or digit, found '--'"),
        ("collectives:", "collectives: {sweep: {A: LL}}", "18:34: wanted a list, found 'LL'"),
        ("collectives:", "collectives: {limit: 9}", "18:30: wanted a duration"),
        ("collectives:", "collectives: {sizes: [5x]}", "18:31: wanted a size such as 512MiB or 2GB, found '5x'"),
        ("collectives:", "collectives: {model: kimi-k25}", "18:30: wanted `served` (the served model's own config"),
        ("collectives:", "collectives: {model: kimi-k25}", "found 'kimi-k25'; nearest: `kimi-k2.5`"),
        ("gemm: {", "gemm: {model: lama-70b, ", "found 'lama-70b'; known: kimi-k2.5, served"),
        (
            "collectives:",
            "collectives: {sweep: {NCCL_PROTOO: [LL]}}",
            "NCCL has no variable `NCCL_PROTOO`; nearest",
        ),
        ("collectives:", "collectives: {sweep: {NCCL_PROTO: [Simpel]}}", "NCCL_PROTO takes no `Simpel`; nearest: `Sim"),
        ("collectives:", "collectives: {ops: [all_reduc]}", "found all_reduc; nearest: `all_reduce`"),
        ("collectives:", "command: {argv: []}", "18:25: wanted at least 1 entry, found none"),
        ("collectives:", "command: {argv: [x], figures: {a: b}}", "18:39: wanted FILE#path.to.number for `a`"),
        ("collectives:", "command: {argv: [x], collect: [../y]}", "18:39: wanted a path inside the step's folder"),
        ("collectives:", "profile: {concurrency: [1]}", "18:9: `profile` needs a service that serves"),
        ("name: all of NCCL", "gemm: {}", "18:9: wanted one stage a step, found gemm and collectives"),
        ("        collectives:\n", "", "17:9: wanted a stage (one of serving-benchmark"),
        ("      - name: all of NCCL\n        collectives:\n", "      - gemm\n", "17:9: wanted a step such as `gemm: {"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(
    tmp_path: Path, inventory: LoadedInventory, old: str, new: str, said_: str
) -> None:
    assert old in PLAYBOOK
    found = problems_of(tmp_path, inventory, PLAYBOOK.replace(old, new, 1))
    assert any(said_ in line for line in found), found


@pytest.mark.parametrize(
    ("old", "new", "only"),
    [
        ("serve: prod", "server: prod", "10:5: unknown key `server`; nearest: `serve`"),
        ("phases:", "phase:", "8:1: unknown key `phase`; nearest: `phases`"),
        ("vars.thrice", "vars.thirce", "`vars.thirce` is not defined; nearest: `thrice`"),
    ],
)
def test_one_mistake_gives_one_error(tmp_path: Path, inventory: LoadedInventory, old: str, new: str, only: str) -> None:
    (found,) = problems_of(tmp_path, inventory, PLAYBOOK.replace(old, new, 1))
    assert only in found


def test_a_profile_step_needs_a_profiler(tmp_path: Path, inventory: LoadedInventory) -> None:
    def with_step(serve: str, step: str) -> str:
        return f"name: x\nhosts: kimi\nphases:\n  - name: a\n    serve: {serve}\n    steps:\n      - {step}\n"

    for serve, step, said_ in (
        ("prod", "profile: {}", "7:9: service `prod` has no profiler: serve a variant of it with `profiler: torch`"),
        ("prod-profiler", "profile: {with: nsys}", "7:25: service `prod-profiler` does not run under nsys"),
    ):
        assert problems_of(tmp_path, inventory, with_step(serve, step)) == [
            next(line for line in problems_of(tmp_path, inventory, with_step(serve, step)) if said_ in line)
        ]
    load_playbooks(write(tmp_path, "p.yml", with_step("prod-profiler", "profile: {}")), inventory)


def test_everything_wrong_is_said_at_once_and_only_once(tmp_path: Path, inventory: LoadedInventory) -> None:
    text = PLAYBOOK.replace("hosts: kimi", "hosts: kimi\nhost: x").replace("vars.thrice", "vars.thirce")
    text = text.replace("serve: prod", "serve: prof").replace("ttl: 2m", "ttl: 2")
    found = problems_of(tmp_path, inventory, text, "a=1")
    assert len(found) == len(set(found)) == 5


def test_a_host_without_production_cannot_be_borrowed(tmp_path: Path) -> None:
    loaded = inventory_at(tmp_path, INVENTORY.replace("gpu2: {}", "gpu2: {}\n  bare: {}"))
    found = problems_of(tmp_path, loaded, PLAYBOOK.replace("hosts: kimi", "hosts: bare"))
    assert any("host `bare` has no production service" in line for line in found)


def test_a_playbook_is_sought_here_and_then_in_playbooks(tmp_path: Path) -> None:
    (tmp_path / "playbooks").mkdir()
    there = write(tmp_path, "playbooks/night.yml", "name: x")
    for name in ("night", "night.yml"):
        assert find_playbook(name, tmp_path) == there
    here = write(tmp_path, "night.yml", "name: y")
    assert find_playbook("night", tmp_path) == here
    assert find_playbook(str(there), tmp_path) == there
    with pytest.raises(UnfitError) as caught:
        find_playbook("nigth.yml", tmp_path)
    assert "no playbook `nigth.yml`; nearest: `night.yml`" in caught.value.message


@pytest.mark.parametrize("path", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.name)
def test_the_playbooks_of_the_repository_are_fit(path: Path) -> None:
    loaded = load_playbooks(path, load_inventory(ROOT / "inventory.yml"))
    assert loaded.hosts == ("gpu1",)
    assert loaded.name == path.stem

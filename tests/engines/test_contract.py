"""Each engine through the protocol, by the data file that bears its name."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from opsctl.engines import ENGINES, Engine, entrypoint_of, recognise
from opsctl.errors import UnfitError
from opsctl.playbook.models import HostEntry
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.load.explaining import explain
from opsctl.serving.probing import requests_in_flight
from opsctl.stages.base import Place
from opsctl.stages.profile import Profile, ProfileStage
from opsctl.trace.names import rank_in_name

DATA = Path(__file__).parents[1] / "data" / "engines"
CASES: dict[str, dict[str, Any]] = {
    path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.toml"))
}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@pytest.fixture
def case(engine: Engine) -> dict[str, Any]:
    return CASES[engine.name]


def test_each_engine_has_its_data_and_each_data_its_engine() -> None:
    assert set(CASES) == set(ENGINES)


def test_its_launch_lines_say_what_they_start(engine: Engine, case: dict[str, Any]) -> None:
    for line in case["launch"]:
        argv = line["argv"].split()
        assert recognise(argv) is engine, line["argv"]
        launch = engine.launch(argv)
        assert launch is not None
        seen = asdict(launch)
        assert {key: seen[key] for key in line["expected"]} == line["expected"], line["argv"]
        assert not any("secret" in str(value) for value in seen.values())


def test_a_launch_line_behind_a_wrapper_is_known(engine: Engine, case: dict[str, Any]) -> None:
    for line in case["launch"]:
        assert recognise(["/usr/bin/numactl", "-N0", *line["argv"].split()]) is engine


def test_what_the_launch_line_says_holds_no_key(engine: Engine, case: dict[str, Any]) -> None:
    launch = engine.launch([*case["launch"][0]["argv"].split(), "--api-key", "sk-secret"])
    assert launch is not None
    assert "sk-secret" not in repr(launch)


def test_an_image_of_its_own_starts_it(engine: Engine, case: dict[str, Any]) -> None:
    """The words of an entrypoint are the beginning of one of its launch lines."""
    for words in engine.images.values():
        assert engine.begins((*words, "--port", "1")) == len(words)


@pytest.mark.parametrize(
    ("image", "entrypoint"),
    [
        ("vllm/vllm-openai:v0.11.0", ("vllm", "serve")),
        ("registry.example:5000/vllm-openai-cu129@sha256:12ab", ("vllm", "serve")),
        ("mine/vllm", ()),
    ],
)
def test_an_image_says_what_it_starts_by_its_name(image: str, entrypoint: tuple[str, ...]) -> None:
    assert entrypoint_of(image) == entrypoint


def test_other_programs_are_not_taken_for_it(engine: Engine, case: dict[str, Any]) -> None:
    for line in (*case["others"]["argv"], "/usr/sbin/sshd -D", ""):
        assert engine.launch(line.split()) is None, line


def test_every_alias_leads_to_a_canonical_flag(engine: Engine) -> None:
    for alias, flag in engine.aliases.items():
        assert engine.flag(alias) == flag
        assert engine.flag(flag) == flag, f"{flag} is an alias itself"
    assert engine.flag("seed") == "seed"


def test_the_profiler_is_switched_on_as_its_version_wants(engine: Engine, case: dict[str, Any]) -> None:
    for version, switch in case["profiler"]["versions"]:
        assert engine.profiler_switch(version or None) == switch, version
        if switch in {"unsure", "none"}:
            with pytest.raises(UnfitError) as refused:
                engine.switch_on(switch, "/var/t", version=version)
            assert refused.value.hint
            continue
        on = engine.switch_on(switch, "/var/t", version=version)
        assert "/var/t" in json.dumps([on.add, dict(on.env)])
        assert engine.title in on.how or on.how.startswith("vLLM")
        assert all(flag in on.add for flag in on.remove)


def test_it_is_profiled_by_routes_or_said_to_have_none(engine: Engine, case: dict[str, Any]) -> None:
    none = all(switch == "none" for _, switch in case["profiler"]["versions"])
    routes = engine.profile_routes("/var/t", "torch")
    assert (routes is None) == none
    if routes is not None:
        assert routes.start.startswith("/")
        assert routes.stop.startswith("/")
        assert json.loads(json.dumps(asdict(routes))) == asdict(routes), "a spec is JSON"
        assert routes.accepted == routes.accepted.lower()


def test_a_playbook_that_profiles_what_cannot_be_is_refused(engine: Engine) -> None:
    service = ResolvedService(
        name="s", host="h", unit="s.service", url="http://x", model="m", engine=engine.name, profiler="torch"
    )
    place = Place(host_name="h", host=HostEntry(), service_name="s", service=service)
    said = " ".join(message for _, message in ProfileStage().problems(Profile(), [place]))
    assert ("cannot be profiled" in said) == (engine.profile_routes("/var/t", "torch") is None)


def test_its_log_goes_through_the_phases_and_its_guess_is_right(engine: Engine, case: dict[str, Any]) -> None:
    if "log" in case:
        said = explain(case["log"])
        assert said.engine == engine.name
        assert said.verdict == "serves"
        assert list(said.phases) == case["phases"]


def test_the_ranks_of_its_files_are_in_their_names(engine: Engine, case: dict[str, Any]) -> None:
    for name, rank in case.get("rank_files", {}).items():
        found = [each for each in range(12) if any(fnmatchcase(name, glob) for glob in engine.rank_files(each))]
        assert found == ([] if rank == -1 else [rank]), name
        if found:
            assert rank_in_name(name) == rank, "the trace library reads the same"


def test_its_metrics_say_how_many_requests_are_in_flight(engine: Engine, case: dict[str, Any]) -> None:
    assert requests_in_flight(case["metrics"], engine.routes) == case.get("in_flight")
    assert requests_in_flight("# TYPE vllm:num_requests_running gauge\n", engine.routes) is None

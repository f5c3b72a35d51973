"""Variants of units as people write them, started by a real systemd and proven by the process that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from opsctl.engines import ENGINES
from opsctl.errors import NotProven
from opsctl.host.guard import GUARD_PATH
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import Standin
from opsctl.playbook.models import ArgumentEdits, Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving import readiness
from opsctl.serving.launch import proof, variants
from opsctl.serving.launch.line_edit import Intended
from opsctl.serving.launch.processes import Process, engine_processes, engines_among
from opsctl.serving.launch.variants import Variant
from tests.serving.conftest import limit, service_for

STANDIN = Standin()
LINE = " ".join(STANDIN.argv())
TRACES = "/var/lib/opsctl/runs/r1/traces"

# Pure


def process(*argv: str, **environ: str) -> Process:
    return Process(7, 1, ("/v/bin/python", *argv), environ)


BEFORE = ("/v/bin/vllm", "serve", "/m", "--port", "8000", "--seed", "1")


@pytest.mark.parametrize(
    ("after", "seen", "wrong"),
    [
        ((*BEFORE, "--x", "2"), (*BEFORE, "--x", "2"), []),
        ((*BEFORE, "--x", "2"), (*BEFORE, "--x=2"), []),
        ((*BEFORE, "--x", "2"), BEFORE, ["--x 2 intended, no --x seen", "the argument 2 intended, not seen"]),
        ((*BEFORE, "--x", '{"a":1}'), (*BEFORE, "--x", '{"a": 1}'), []),
        (BEFORE[:-2], BEFORE, ["no --seed intended, --seed 1 seen"]),
        ((*BEFORE[:-1], "2"), BEFORE, ["--seed 2 intended, --seed 1 seen", "the argument 2 intended, not seen"]),
        ((*BEFORE, "--eager"), (*BEFORE, "--eager"), []),
        (BEFORE, (*BEFORE, "--other"), []),
    ],
)
def test_intended_beside_seen(after: tuple[str, ...], seen: tuple[str, ...], wrong: list[str]) -> None:
    assert proof.missing(Intended(ENGINES["vllm"], BEFORE, after), process(*seen)) == wrong


def test_the_environment_is_proven_and_no_secret_is_shown() -> None:
    intended = Intended(ENGINES["vllm"], BEFORE, BEFORE, {"A": "1", "HF_TOKEN": "hf_secret"})
    assert proof.missing(intended, process(*BEFORE, A="1", HF_TOKEN="hf_secret")) == []
    wrong = proof.missing(intended, process(*BEFORE, HF_TOKEN="hf_other"))
    assert wrong == ["A=1 intended, it is not set seen", "HF_TOKEN=a value intended, another value seen"]
    assert proof.missing(intended, replace(process(*BEFORE), environ=None)) != []


def test_a_servers_own_account_is_compared() -> None:
    after = (
        "python",
        "-m",
        "sglang.launch_server",
        "--tp",
        "2",
        "--mem-fraction-static",
        "0.8",
        "--disable-radix-cache",
    )
    intended = Intended(ENGINES["sglang"], after[:3], after)
    agreeing = {"tensor_parallel_size": 2, "mem_fraction_static": 0.8, "disable_radix_cache": True, "other": 1}
    assert proof.disagreeing(intended, agreeing) == []
    assert proof.disagreeing(intended, {**agreeing, "mem_fraction_static": 0.9}) == [
        "--mem-fraction-static 0.8 intended, the server says 0.9"
    ]


def test_production_is_compared_with_what_ran() -> None:
    before = process(*BEFORE, VLLM_USE_V1="1", INVOCATION_ID="a")
    assert proof.changed([before], [process(*BEFORE, VLLM_USE_V1="1", INVOCATION_ID="b")]) == []
    assert "--seed 1" in proof.changed([before], [process(*BEFORE[:-2], VLLM_USE_V1="1")])[0]
    assert proof.changed([before], [process(*BEFORE)]) == ["the environment differs in VLLM_USE_V1"]
    assert "runs no engine" in proof.changed([before], [])[0]


def test_the_first_of_a_family_is_the_engine() -> None:
    shell = Process(1, 0, ("bash", "-c", "vllm serve /m | tee log"))
    server = Process(2, 1, ("/v/bin/python3", "/v/bin/vllm", "serve", "/m"))
    fork = replace(server, pid=3, parent=2)
    worker = Process(4, 3, ("VLLM::EngineCore",))
    tee = Process(5, 1, ("tee", "log"))
    assert engines_among([worker, tee, fork, server, shell]) == (server,)
    assert server.argv == ("/v/bin/vllm", "serve", "/m")
    assert worker.renamed


# On a real host


@dataclass
class Shape:
    """How a unit starts its server: lines under [Service] that replace ExecStart, and files."""

    service: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    unit: str = STANDIN.unit


def started(line: str, *more: str) -> tuple[str, ...]:
    return ("ExecStart=", f"ExecStart={line}", *more)


SCRIPT = "/srv/run_server.sh"
CONFIG = "/srv/vllm.yaml"
WITH_ARGUMENTS = f'#!/bin/bash\nset -e\nexport STANDIN_LAYERS=2\ncd "$(dirname "$0")"\nexec {LINE} "$@"\n'
WITHOUT = f"#!/bin/bash\n. /srv/env.sh\n{LINE} \\\n  --seed 5 2>&1 | tee -a /var/log/m.log\n"
SHAPES = {
    "script that passes arguments on": Shape(started(SCRIPT), {SCRIPT: WITH_ARGUMENTS}),
    "script without arguments": Shape(started(SCRIPT), {SCRIPT: WITHOUT, "/srv/env.sh": "export STANDIN_LAYERS=3\n"}),
    "oneshot": Shape(
        started(f"/bin/sh -c '{LINE} &'", "Type=oneshot", "RemainAfterExit=yes"),
    ),
    "several commands": Shape(
        started("/bin/true", f"ExecStart=/bin/sh -c '{LINE} &'", "Type=oneshot", "RemainAfterExit=yes"),
    ),
    "login shell with a pipe": Shape(started(f"/bin/bash -lc 'cd / && {LINE} 2>&1 | tee -a /var/log/m.log'")),
    "wrappers": Shape(started(f"/usr/bin/env -i PATH=/usr/bin:/bin nice -n 1 taskset -c 0 {LINE}")),
    "template": Shape(
        started(f"{LINE.replace('/models/kimi-k2.5-int4', '/models/%I')} $MORE", 'Environment="MORE=--seed 4"'),
        unit="vllm@kimi\\x2dk2.5\\x2dint4",
    ),
    "config file": Shape(
        started(f"{LINE.partition(' --')[0]} --config {CONFIG}"),
        {CONFIG: "served-model-name: kimi-k2.5\ntensor-parallel-size: 2\nport: 8000\nseed: 5\nmax-model-len: 4096\n"},
    ),
}


def variant_of(shape: Shape, **changes: Any) -> ResolvedService:
    described: dict[str, Any] = {
        "name": "vllm-kimi-k25-int4-profiler",
        "unit": "vllm-kimi-k25-int4-profiler.service",
        "role": Role.VARIANT,
        "of": shape.unit,
        **changes,
    }
    return service_for(STANDIN, **described)


@pytest.fixture
def host(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> Host:
    fresh_lab_host.write_file(GUARD_PATH, '#!/bin/sh\n[ "$1" = holds ]\n', 0o755)
    return reach(fresh_lab_host)


def derived(
    lab_host: LabHost, host: Host, install: Callable[..., None], shape: Shape, service: ResolvedService
) -> Variant:
    for path, text in shape.files.items():
        lab_host.write_file(path, text, 0o755)
    production = Standin(unit=shape.unit, service=shape.service, enabled="@" not in shape.unit)
    install(lab_host, production, start=False)
    status = host.systemd().status(production.service_name, deadline=limit())
    variant = variants.derive(host, service, status, token=7, run="r1", trace_dir=TRACES, version="0.32.0")
    variants.install(host, variant, systemd=host.systemd(), deadline=limit(30))
    return variant


def serve(host: Host, service: ResolvedService) -> None:
    host.systemd().start(service.unit, deadline=limit(30))
    status = host.systemd().status(service.unit, deadline=limit())
    readiness.await_ready(host, service, deadline=limit(60), started=status)


@pytest.mark.lab
@pytest.mark.parametrize("name", SHAPES)
def test_a_variant_of_any_shape_runs_with_its_differences(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None], name: str
) -> None:
    shape = SHAPES[name]
    edits = ArgumentEdits(add=("--max-num-seqs", "8"), replace={"--seed": 9})
    service = variant_of(shape, profiler="torch", args=edits, env={"STANDIN_TTFT": "0.02"})
    variant = derived(fresh_lab_host, host, standin_unit, shape, service)
    serve(host, service)
    found = proof.prove_variant(host, service, variant.intended, deadline=limit())
    assert [one.asked.partition(" ")[0] for one in found] == [found[0].asked.partition(" ")[0], "OPTIONS"]
    (engine,) = engine_processes(host, service.unit, deadline=limit())
    assert engine.argv[:2] == ("/opt/vllm/bin/vllm", "serve")
    assert {"--profiler-config", "--max-num-seqs"} <= set(engine.argv)
    assert engine.environ is not None
    assert engine.environ["STANDIN_TTFT"] == "0.02"
    host.systemd().stop(service.unit, deadline=limit(30))
    variants.remove(host, service.unit, systemd=host.systemd(), deadline=limit())
    left = fresh_lab_host.exec("sh", "-c", f"ls -d /run/systemd/system/{service.unit}*", check=False).stdout
    assert left == ""


@pytest.mark.lab
def test_a_broken_derivation_is_not_proven(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    """The copy of the script drops what was added to it: the server answers, and the proof says no."""
    shape = SHAPES["script without arguments"]
    service = variant_of(shape, profiler="torch", env={"STANDIN_TTFT": "0.02"})
    variant = derived(fresh_lab_host, host, standin_unit, shape, service)
    (copy,) = variant.copies
    fresh_lab_host.write_file(copy, WITHOUT, 0o755)
    serve(host, service)
    with pytest.raises(NotProven, match="not with its differences") as raised:
        proof.prove_variant(host, service, variant.intended, deadline=limit())
    assert "--profiler-config" in str(raised.value.wanted)
    for words in ("--profiler-config", "no --profiler-config seen", "STANDIN_TTFT", "no /start_profile"):
        assert words in str(raised.value.seen)


@pytest.mark.lab
def test_production_that_was_edited_meanwhile_is_seen(
    fresh_lab_host: LabHost, host: Host, standin_unit: Callable[..., None]
) -> None:
    standin_unit(fresh_lab_host, STANDIN)
    production = service_for(STANDIN)
    ran = proof.what_runs(host, production, deadline=limit())
    fresh_lab_host.systemctl("restart", production.unit)
    readiness.await_ready(host, production, deadline=limit(60), started=None)
    assert proof.compare_production(host, production, ran, deadline=limit()).observed == "what runs is what ran"
    standin_unit(fresh_lab_host, replace(STANDIN, arguments=("--seed", "3")), start=False)
    fresh_lab_host.systemctl("restart", production.unit)
    readiness.await_ready(host, production, deadline=limit(60), started=None)
    with pytest.raises(NotProven, match="not as it ran before") as raised:
        proof.compare_production(host, production, ran, deadline=limit())
    assert "--seed 3" in str(raised.value.seen)

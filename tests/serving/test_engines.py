"""What differs between engines and versions, by tables."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from opsctl.errors import UnfitError
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.lab.units import environment_files
from opsctl.playbook.models import Engine
from opsctl.serving.engines import ask_binary, profiler_switch, release_of, switch_profiler
from tests.serving.conftest import limit


@pytest.mark.parametrize(
    ("version", "switch"),
    [
        ("0.6.6.post1", "environment"),
        ("0.11.0", "environment"),
        ("0.12.0", "environment"),
        ("0.13.0", "argument"),
        ("0.14.1", "argument"),
        ("0.15.0", "unsure"),
        ("0.16.0", "argument"),
        # PEP 440 sorts it below 0.16, and it behaves as 0.16 (a real deployment).
        ("0.16.0rc2.dev344", "argument"),
        ("0.16.0rc2.dev344+gabcdef.d20260101", "argument"),
        ("0.33.0", "argument"),
        ("1.0.0", "argument"),
        ("0.1.dev12345+gabcdef", "unsure"),
        ("dev", "unsure"),
        (None, "unsure"),
    ],
)
def test_the_profiler_is_switched_by_release_number(version: str | None, switch: str) -> None:
    assert profiler_switch(Engine.VLLM, version) == switch


def test_releases_are_read_whatever_follows() -> None:
    assert release_of("v0.16.0rc2.dev344+g1") == (0, 16, 0)
    assert release_of("main") is None


def test_the_argument_turns_stacks_off_and_sets_no_iterations() -> None:
    on = switch_profiler(Engine.VLLM, "argument", "/var/t", version="0.32.0")
    flag, text = on.add
    config = json.loads(text)
    assert flag == "--profiler-config"
    assert config["torch_profiler_dir"] == "/var/t"
    assert config["torch_profiler_with_stack"] is False
    assert "max_iterations" not in config
    assert not on.env
    assert on.remove == ("--profiler-config",), "one that production has is replaced"


def test_the_environment_turns_stacks_off_too() -> None:
    on = switch_profiler(Engine.VLLM, "environment", "/var/t", version="0.11.0")
    assert on.env["VLLM_TORCH_PROFILER_DIR"] == "/var/t"
    assert on.env["VLLM_TORCH_PROFILER_WITH_STACK"] == "0"
    assert not on.add


def test_a_guess_is_refused() -> None:
    with pytest.raises(UnfitError, match="cannot be told"):
        switch_profiler(Engine.VLLM, "unsure", "/var/t", version="0.15.0")


def test_sglang_is_told_by_the_environment_and_the_request() -> None:
    assert "SGLANG_TORCH_PROFILER_DIR" in switch_profiler(Engine.SGLANG, "environment", "/var/t", version=None).env


@pytest.mark.lab
def test_the_binary_is_asked(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    fresh_lab_host.write_files(environment_files())
    host = reach(fresh_lab_host)
    fresh_lab_host.write_file("/opt/new", '#!/bin/sh\n[ "$1" = serve ] && echo "  --profiler-config JSON"\n', 0o755)
    fresh_lab_host.write_file("/opt/old", "#!/bin/sh\necho '  --port PORT'\n", 0o755)
    fresh_lab_host.write_file("/opt/broken", "#!/bin/sh\nexit 1\n", 0o755)

    def ask(*argv: str) -> str:
        return ask_binary(host, argv, deadline=limit())

    assert ask("/opt/new", "serve", "/m", "--port", "1") == "argument"
    assert ask("/usr/bin/env", "A=1", "/opt/new", "serve", "/m") == "argument"
    assert ask("/opt/old", "serve", "/m") == "environment"
    assert ask("/opt/broken", "serve", "/m") == "unsure"
    assert ask("python", "-m", "vllm.entrypoints.openai.api_server") == "unsure"

"""The profiler's arguments and environment, flag by flag."""

from __future__ import annotations

import json

import pytest

from opsctl.engines import ENGINES
from opsctl.engines.base import release_of
from opsctl.errors import UnfitError

VLLM = ENGINES["vllm"]


def test_releases_are_read_whatever_follows() -> None:
    assert release_of("v0.16.0rc2.dev344+g1") == (0, 16, 0)
    assert release_of("main") is None


def test_the_argument_turns_stacks_off_and_sets_no_iterations() -> None:
    on = VLLM.switch_on("argument", "/var/t", version="0.32.0")
    flag, text = on.add
    config = json.loads(text)
    assert flag == "--profiler-config"
    assert config["torch_profiler_dir"] == "/var/t"
    assert config["torch_profiler_with_stack"] is False
    assert config["torch_profiler_dump_cuda_time_total"] is False, "the table cost 20 of 33 s of a flush"
    assert config["ignore_frontend"] is True
    assert "max_iterations" not in config
    assert not on.env
    assert on.remove == ("--profiler-config",), "one that production has is replaced"


def test_the_environment_turns_stacks_off_too() -> None:
    on = VLLM.switch_on("environment", "/var/t", version="0.11.0")
    assert on.env["VLLM_TORCH_PROFILER_DIR"] == "/var/t"
    assert on.env["VLLM_TORCH_PROFILER_WITH_STACK"] == "0"
    assert not on.add


def test_a_guess_is_refused() -> None:
    with pytest.raises(UnfitError, match="cannot be told"):
        VLLM.switch_on("unsure", "/var/t", version="0.15.0")


def test_sglang_is_told_the_folder_by_the_request_and_its_refusal_is_known() -> None:
    routes = ENGINES["sglang"].profile_routes("/var/t", "torch")
    assert routes is not None
    assert routes.body == {"output_dir": "/var/t", "activities": ["CPU", "GPU"], "with_stack": False}
    assert routes.accepted == "start profiling"


def test_the_binary_is_asked_up_to_serve() -> None:
    assert VLLM.profiler_question(("/usr/bin/env", "A=1", "/o/vllm", "serve", "/m", "--port", "1")) == (
        ("/usr/bin/env", "A=1", "/o/vllm", "serve", "--help=all"),
        "--profiler-config",
    )
    assert VLLM.profiler_question(("python", "-m", "vllm.entrypoints.openai.api_server")) is None

"""The command line and the version's ways of switching the profiler on."""

from __future__ import annotations

import pytest

from opsctl.lab.standin.settings import Settings, read, release

CONFIG = '{"profiler":"torch","torch_profiler_dir":"/traces","torch_profiler_with_stack":false}'


def settings(*argv: str, **environment: str) -> Settings:
    found = read(["serve", "/models/m", *argv], environment)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("version", "by_environment", "by_flag"),
    [
        ("0.11.2", True, None),
        ("0.12.0", True, None),
        ("0.13.0", True, True),
        ("0.14.1", True, True),
        ("0.15.0", False, True),
        ("0.16.0rc2.dev344", False, True),
        ("0.32.0", False, True),
    ],
)
def test_how_each_version_switches_the_profiler_on(version: str, *, by_environment: bool, by_flag: bool | None) -> None:
    variables = {"STANDIN_VERSION": version}
    found = settings(**variables, VLLM_TORCH_PROFILER_DIR="/traces")
    assert (found.profiler is not None) is by_environment
    if by_flag is None:
        with pytest.raises(SystemExit, match="2"):
            settings("--profiler-config", CONFIG, **variables)
    else:
        assert settings("--profiler-config", CONFIG, **variables).profiler is not None


def test_stacks_are_on_unless_switched_off() -> None:
    with_default = settings("--profiler-config", '{"profiler":"torch","torch_profiler_dir":"/t"}').profiler
    assert with_default is not None
    assert with_default.with_stack
    switched_off = settings("--profiler-config", CONFIG).profiler
    assert switched_off is not None
    assert not switched_off.with_stack


def test_dotted_flags_make_the_same_configuration() -> None:
    dotted = ("--profiler-config.profiler", "torch", "--profiler-config.torch_profiler_dir", "/t")
    found = settings(*dotted, "--profiler-config.torch_profiler_with_stack", "false").profiler
    assert found is not None
    assert (str(found.folder), found.with_stack) == ("/t", False)


@pytest.mark.parametrize(
    "argv",
    [
        ("--no-such-flag",),
        ("--port", "many"),
        ("--profiler-config", "not json"),
        ("--profiler-config", '{"profiler":"torch","torch_profiler_dir":"relative"}'),
    ],
)
def test_command_lines_that_vllm_refuses(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        settings(*argv)
    assert "error:" in capsys.readouterr().err


def test_flags_of_real_units_are_accepted() -> None:
    real = ("--trust-remote-code", "--gpu-memory-utilization", "0.92", "-tp", "8", "--tool-call-parser", "kimi_k2")
    assert settings(*real, "--enable-auto-tool-choice", "--max-num-seqs", "64").tensor_parallel == 8


def test_version_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(["--version"], {"STANDIN_VERSION": "0.20.1"}) is None
    assert capsys.readouterr().out == "0.20.1\n"


def test_release() -> None:
    assert release("0.16.0rc2.dev344+g123") == (0, 16)
    with pytest.raises(ValueError, match="not a version"):
        release("unknown")

"""Editing command lines as argv, by tables."""

from __future__ import annotations

import pytest

from opsctl.engines import ENGINES
from opsctl.engines.argv import flag_name, flag_value
from opsctl.errors import UnfitError
from opsctl.playbook.models import ArgumentEdits
from opsctl.serving.launch.arguments import differences, edit

VLLM = ENGINES["vllm"]

BASE = (
    "/opt/vllm/bin/vllm",
    "serve",
    "/models/k",
    "-tp",
    "8",
    "--max_model_len=4096",
    "--enforce-eager",
    "--port",
    "1",
)


def edited(**edits: object) -> tuple[str, ...]:
    return edit(BASE, ArgumentEdits.model_validate(edits), VLLM, where="here")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("-tp", "tensor-parallel-size"),
        ("--tensor_parallel_size=8", "tensor-parallel-size"),
        ("--port", "port"),
        ("-1", None),
        ("-0.5", None),
        ("-", None),
        ("--", None),
        ("serve", None),
    ],
)
def test_flags_have_one_name(word: str, name: str | None) -> None:
    assert flag_name(word, VLLM.flag) == name


def test_a_flag_goes_with_its_values() -> None:
    assert edited(remove=["--port"]) == BASE[:-2]
    assert edited(remove=["--tensor-parallel-size"]) == (*BASE[:3], *BASE[5:])
    assert edited(remove=["--max-model-len"]) == (*BASE[:5], *BASE[6:])


def test_a_switch_takes_no_word_of_its_neighbour() -> None:
    argv = ("vllm", "serve", "--enforce-eager", "/models/k")
    assert edit(argv, ArgumentEdits(remove=("--enforce-eager",)), VLLM, where="") == (
        "vllm",
        "serve",
        "/models/k",
    )


def test_values_that_are_several_or_negative_are_values() -> None:
    argv = ("vllm", "serve", "/m", "--served-model-name", "a", "b", "--seed", "-1", "--port", "1")
    removed = edit(argv, ArgumentEdits(remove=("--served-model-name", "--seed")), VLLM, where="")
    assert removed == ("vllm", "serve", "/m", "--port", "1")


def test_replacing_keeps_the_place_and_the_spelling() -> None:
    assert edited(replace={"--tensor-parallel-size": 4}) == (*BASE[:4], "4", *BASE[5:])
    assert edited(replace={"--max-model-len": 1024})[5] == "--max_model_len=1024"
    assert edited(replace={"--max-num-seqs": 8}) == (*BASE, "--max-num-seqs", "8")
    assert edited(replace={"kv-cache-dtype": "fp8"}) == (*BASE, "--kv-cache-dtype", "fp8")


def test_edits_come_in_one_order_remove_replace_add() -> None:
    words = edited(remove=["--port"], replace={"-tp": 2}, add=["--enable-expert-parallel"])
    assert words == (*BASE[:4], "2", "--max_model_len=4096", "--enforce-eager", "--enable-expert-parallel")


def test_a_flag_that_is_not_there_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UnfitError, match="--max-model-length") as raised:
        edited(remove=["--max-model-length"])
    assert "--max-model-len" in str(raised.value.hint)
    with pytest.raises(UnfitError) as raised:
        edit(("vllm", "serve", "$ARGS"), ArgumentEdits(remove=("--xyz",)), VLLM, where="")
    assert "$ARGS" in str(raised.value.hint)


def test_the_last_occurrence_of_a_flag_wins() -> None:
    argv = ("vllm", "-tp", "2", "--tensor-parallel-size=4", "--enforce-eager")
    assert flag_value(argv, "tensor-parallel-size", VLLM.flag) == "4"
    assert flag_value(argv, "enforce-eager", VLLM.flag) == ""
    assert flag_value(argv, "port", VLLM.flag) is None


def test_differences_go_argument_by_argument() -> None:
    after = (
        "/opt/vllm/bin/vllm",
        "serve",
        "/models/k",
        "--tensor-parallel-size",
        "8",
        "--port",
        "2",
        "--async-scheduling",
    )
    assert differences(BASE, after, VLLM) == (
        "~ -tp 8 → --tensor-parallel-size 8",
        "- --max_model_len=4096",
        "- --enforce-eager",
        "~ --port 1 → --port 2",
        "+ --async-scheduling",
    )
    assert differences(BASE, BASE, VLLM) == ()
    assert differences(BASE, ("nsys", "profile", *BASE), VLLM) == ("+ nsys", "+ profile")

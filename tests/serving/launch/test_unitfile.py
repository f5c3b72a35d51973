"""Unit files as systemd reads them, by tables."""

from __future__ import annotations

import pytest

from opsctl.serving.launch.unitfile import (
    Assignment,
    format_unit,
    last_value,
    logical_lines,
    merge,
    parse_unit,
    specifiers,
    unescape,
    values_of,
)

FRAGMENT = """\
# A comment
[Unit]
Description = Kimi

[Service]
ExecStart=/opt/vllm/bin/vllm serve /models/kimi \\
    --port 8000 \\
# a comment between continued lines
    --tensor-parallel-size 8
Environment=A=1
; another comment
Environment=B=2
not an assignment
"""


def test_continuations_are_joined_and_comments_between_them_skipped() -> None:
    (line,) = [line for line in logical_lines(FRAGMENT) if line.startswith("ExecStart")]
    assert line.split() == [
        "ExecStart=/opt/vllm/bin/vllm",
        "serve",
        "/models/kimi",
        "--port",
        "8000",
        "--tensor-parallel-size",
        "8",
    ]


def test_two_backslashes_at_the_end_continue_nothing() -> None:
    assert logical_lines("A=x\\\\\nB=y\n") == ["A=x\\\\", "B=y"]
    assert logical_lines("A=x\\") == ["A=x"]


def test_assignments_keep_their_order_and_sections() -> None:
    found = parse_unit(FRAGMENT)
    assert found[0] == Assignment("Unit", "Description", "Kimi")
    assert [entry.value for entry in found if entry.key == "Environment"] == ["A=1", "B=2"]


def test_drop_ins_come_after_the_fragment_and_an_empty_value_resets() -> None:
    drop_in = "[Service]\nExecStart=\nExecStart=/bin/other\nEnvironment=C=3\nUser=vllm\n"
    merged = merge([FRAGMENT, drop_in])
    assert values_of(merged, "Service", "ExecStart") == ["/bin/other"]
    assert values_of(merged, "Service", "Environment") == ["A=1", "B=2", "C=3"]
    assert last_value(merged, "Service", "User") == "vllm"
    assert last_value(merged, "Service", "Group") is None


def test_what_is_formatted_reads_back_the_same() -> None:
    found = parse_unit(FRAGMENT)
    assert parse_unit(format_unit(found, head="one\ntwo")) == found


@pytest.mark.parametrize(
    ("unit", "letter", "value"),
    [
        ("vllm-kimi.service", "n", "vllm-kimi.service"),
        ("vllm-kimi.service", "N", "vllm-kimi"),
        ("vllm-kimi.service", "p", "vllm-kimi"),
        ("vllm-kimi.service", "j", "kimi"),
        ("vllm-kimi.service", "i", ""),
        ("vllm-kimi.service", "f", "/vllm/kimi"),
        ("vllm@kimi\\x2dk2.service", "i", "kimi\\x2dk2"),
        ("vllm@kimi\\x2dk2.service", "I", "kimi-k2"),
        ("vllm@kimi.service", "p", "vllm"),
        ("vllm@srv-models.service", "f", "/srv/models"),
    ],
)
def test_specifiers_of_a_name(unit: str, letter: str, value: str) -> None:
    assert specifiers(unit)[letter] == value


def test_names_are_unescaped() -> None:
    assert unescape("srv-models\\x2dkimi") == "srv/models-kimi"

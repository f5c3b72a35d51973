from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.host.quoting import quote_argv, show_argv

NASTY = (
    "",
    " ",
    "a b",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "$(id)",
    "a\nb",
    "\\",
    "\\n",
    "a\\'b\\\\c\\",
    "-rf",
    "--",
    "*",
    "~",
    "!!",
    "#x",
    "a;b",
    "a&b|c",
    "é µ 漢",
    "\t\r",
    "=x",
    "{a,b}",
    "%s",
)


SHELLS = pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish"])


def through_shell(shell: str, argv: list[str]) -> list[bytes]:
    command = quote_argv(["/usr/bin/printf", "%s\\0", *argv]).encode("utf-8", "surrogateescape")
    out = subprocess.run([shell, "-c", command], capture_output=True, check=True).stdout
    return out.split(b"\0")[:-1]


@SHELLS
def test_a_real_shell_splits_it_back(shell: str) -> None:
    assert through_shell(shell, list(NASTY)) == [word.encode() for word in NASTY]


@SHELLS
def test_bytes_that_are_no_utf8_cross(shell: str) -> None:
    assert through_shell(shell, [b"\xff\xfe/x".decode("utf-8", "surrogateescape")]) == [b"\xff\xfe/x"]


@SHELLS
@settings(deadline=None, max_examples=1)
@given(argv=st.lists(st.text("ab '\"\\\n$=~%!*"), min_size=300, max_size=300))
def test_any_text_through_a_real_shell(shell: str, argv: list[str]) -> None:
    assert through_shell(shell, argv) == [word.encode() for word in argv]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_any_text_is_split_back(argv: list[str]) -> None:
    assert shlex.split(quote_argv(argv)) == argv


@pytest.mark.parametrize("argv", [[], ["a\0b"]])
def test_what_cannot_be_an_argv_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match=r"empty argv|NUL"):
        quote_argv(argv)


def test_shown_on_one_line_and_cut() -> None:
    assert show_argv(["sh", "-c", "a\nb"]) == "sh -c 'a\\nb'"
    assert len(show_argv(["x" * 1000])) == 160

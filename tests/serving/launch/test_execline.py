"""Exec lines by systemd's rules: tables, and that formatting and parsing undo each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.serving.launch.execline import (
    ExecCommand,
    expand,
    format_exec,
    literal,
    parse_exec,
    same_words,
    split_words,
)

TABLE = [
    ("/bin/x a b", ["/bin/x", "a", "b"]),
    ("/bin/x   a\t b  ", ["/bin/x", "a", "b"]),
    ('/bin/x "a b"', ["/bin/x", "a b"]),
    ("/bin/x 'a b'", ["/bin/x", "a b"]),
    ("/bin/x a'b c'd", ["/bin/x", "ab cd"]),
    ('/bin/x ""', ["/bin/x", ""]),
    (r"/bin/x a\ b", ["/bin/x", r"a\ b"]),
    (r"/bin/x a\sb", ["/bin/x", "a b"]),
    (r'/bin/x "a\"b"', ["/bin/x", 'a"b']),
    (r"/bin/x 'a\'b'", ["/bin/x", "a'b"]),
    (r"/bin/x \x41\101\u00e9", ["/bin/x", "AAé"]),
    (r"/bin/x \xc3\xa9", ["/bin/x", "é"]),
    (r"/bin/x \q\d", ["/bin/x", r"\q\d"]),
    (r"/bin/x \x4", ["/bin/x", r"\x4"]),
    ("""/bin/x '{"profiler":"torch"}'""", ["/bin/x", '{"profiler":"torch"}']),
    ("/bin/x %i ${VAR} $$", ["/bin/x", "%i", "${VAR}", "$$"]),
]


@pytest.mark.parametrize(("text", "words"), TABLE)
def test_words_are_split_as_systemd_splits_them(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("text", ["/bin/x 'a", '/bin/x "a b', r"/bin/x \x00", r"/bin/x \000"])
def test_what_systemd_refuses_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"never closed|no character"):
        split_words(text)


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("-/bin/x a", [("-", ("/bin/x", "a"))]),
        ("+:-/bin/x", [("+:-", ("/bin/x",))]),
        ("/bin/x a ; /bin/y b", [("", ("/bin/x", "a")), ("", ("/bin/y", "b"))]),
        (r"/bin/x a \; b", [("", ("/bin/x", "a", ";", "b"))]),
        ('/bin/x "a ; b"', [("", ("/bin/x", "a ; b"))]),
        ("/bin/x a; b", [("", ("/bin/x", "a;", "b"))]),
        ("", []),
    ],
)
def test_commands_and_their_prefixes(text: str, commands: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(command.prefix, command.words) for command in parse_exec(text)] == commands


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
PROGRAMS = st.from_regex(r"/[a-z0-9/._ -]{1,20}", fullmatch=True)


@given(PROGRAMS, st.lists(WORDS, max_size=8), st.sampled_from(["", "-", "+", ":", "-+:", "!!"]))
def test_parsing_undoes_formatting(program: str, words: list[str], prefix: str) -> None:
    command = ExecCommand((program, *words), prefix)
    line = format_exec(command)
    assert "\n" not in line
    assert parse_exec(line) == (command,)


@given(st.lists(st.binary(min_size=1, max_size=8).filter(lambda data: b"\0" not in data), max_size=5))
def test_bytes_that_are_no_text_survive(words: list[bytes]) -> None:
    command = ExecCommand(("/bin/x", *(word.decode(errors="surrogateescape") for word in words)))
    (back,) = parse_exec(format_exec(command))
    assert [word.encode(errors="surrogateescape") for word in back.words[1:]] == words
    format_exec(command).encode()


@given(WORDS)
def test_a_literal_word_is_what_it_was_once_systemd_expanded_it(word: str) -> None:
    assert expand(literal(word, dollar=False), {"n": "x.service"}, escape=False) == word


def test_specifiers_of_the_name_are_filled_in_and_others_stay() -> None:
    values = {"i": "kimi", "n": "vllm@kimi.service"}
    assert expand("/models/%i-%H-%%", values, escape=True) == "/models/kimi-%H-%%"
    assert expand("/models/%i-%H-%%", values, escape=False) == "/models/kimi-%H-%"
    assert expand("%i", {"i": "50%"}, escape=True) == "50%%"


@pytest.mark.parametrize(
    ("written", "loaded", "same"),
    [
        (["/bin/x", "%i"], ["/bin/x", "kimi"], True),
        (["/bin/x", "%H-%i"], ["/bin/x", "gpu07-kimi"], True),
        (["/bin/x", "%H-%i"], ["/bin/x", "gpu07-llama"], False),
        (["/bin/x", "100%%"], ["/bin/x", "100%"], True),
        (["/bin/x", "a"], ["/bin/x"], False),
        (["/bin/x", "${A}"], ["/bin/x", "${A}"], True),
        (["/bin/x", "a.c"], ["/bin/x", "abc"], False),
    ],
)
def test_what_is_written_is_compared_with_what_is_loaded(written: list[str], loaded: list[str], same: bool) -> None:
    assert same_words(written, loaded, {"i": "kimi"}) is same

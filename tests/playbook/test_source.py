from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.errors import DefinitionError, Problem
from opsctl.playbook.source import BYTES_LIMIT, Document, parse_document, read_document


def problems(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(DefinitionError) as caught:
        parse_document(text, "f.yml")
    return [(one.line, one.column, one.message) for one in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("true", True),
        ("null", None),
        ("~", None),
        ('"8"', "8"),
        # YAML 1.1 would read each of these as something else than what is written.
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("022", "022"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2026-12-01", "2026-12-01"),
        (".inf", ".inf"),
        ("9" * 40, "9" * 40),
        ("1e999", "1e999"),
    ],
)
def test_plain_scalars_have_one_reading(text: str, value: object) -> None:
    found = parse_document(f"k: {text}", "f.yml").data["k"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_as_written() -> None:
    assert list(parse_document("on: 1\n8: 2\nno: 3\nnull: 4\n", "f.yml").data) == ["on", "8", "no", "null"]


def test_every_key_and_value_has_its_place() -> None:
    document = parse_document("a:\n  - b: 1\n    c: [x, y]\n", "f.yml")
    assert document.key_at(("a", 0, "c")) == (3, 5)
    assert document.value_at(("a", 0, "c", 1)) == (3, 12)
    assert document.value_at(("a", 0, "missing")) == (2, 5)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "duplicate key `a`; the first stands in line 1"),
        ("x: {b: 1, b: 2}\n", 1, 11, "duplicate key `b`; the first stands in line 1"),
        ("a:\n\tb: 1\n", 2, 1, "wanted spaces for indentation, found a tab"),
        ("a: 1\n---\nb: 2\n", 2, 1, "wanted one YAML document, found another after `---`"),
        ("a: !!python/object/apply:os.system [id]\n", 1, 4, "wanted a plain value, found the tag"),
        ("a: !!int '3'\n", 1, 4, "wanted a plain value, found the tag"),
        ("a: {{ vars.x }}\n", 1, 4, 'an expression needs quotes around it in YAML: "{{ vars.x }}"'),
        ("? [a, b]\n: 1\n", 1, 3, "wanted a name as key, found a list or mapping"),
        ("'': 1\n", 1, 1, "wanted a name before the colon, found nothing"),
        ("a: [1\nb: 2\n", 2, 2, "not YAML"),
        ("a: *nowhere\n", 1, 4, "not YAML: found undefined alias 'nowhere'"),
        ("a: '\x07'\n", 1, 5, "wanted printable text, found the character U+0007"),
        ('a: "x\\0"\n', 1, 4, "wanted printable text, found the character U+0000"),
        ('a: "\\ud800"\n', 1, 4, "wanted printable text, found the character U+D800"),
        ('"\\e": 1\n', 1, 1, "wanted printable text, found the character U+001B"),
        ("a: " + "[" * 60 + "]" * 60 + "\n", 1, 43, "nested deeper than 40 levels"),
        ("<<: 3\na: 1\n", 1, 5, "wanted a mapping to merge after `<<`"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(text: str, line: int, column: int, message: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0][:2] == (line, column)
    assert message in found[0][2]


def test_all_duplicates_are_said_at_once() -> None:
    assert len(problems("a: 1\na: 2\nb: {c: 1, c: 2}\n")) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "a: &a {b: *a}\n",
        "a: &a\n  <<: *a\n",
        "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9) if n else '0'}]\n" for n in range(9)),
    ],
)
def test_aliases_that_unfold_without_end_are_refused(text: str) -> None:
    found = problems(text)
    assert any("aliases that unfold" in message or "to merge" in message for _, _, message in found)


def test_merge_keys_lie_under_what_is_written_and_keep_places() -> None:
    document = parse_document("base: &b {x: 1, y: 2}\nown:\n  y: 3\n  <<: *b\n", "f.yml")
    assert document.data["own"] == {"x": 1, "y": 3}
    assert document.value_at(("own", "y")) == (3, 6)
    assert document.value_at(("own", "x")) == (1, 14)


@pytest.mark.parametrize(
    ("raw", "line", "column", "message"),
    [
        (b"", 1, 1, "wanted a mapping of keys, found nothing: the file is empty"),
        (b"# only a comment\n", 1, 1, "found nothing"),
        (b"- a\n- b\n", 1, 1, "wanted a mapping of keys, found a list"),
        (b"just text\n", 1, 1, "wanted a mapping of keys, found 'just text'"),
        (b"a: 1\nb: \xe9t\xe9\n", 2, 4, "wanted UTF-8 text, found the byte 0xe9"),
        (b"a: 1\n" + b"#" * BYTES_LIMIT, 1, 1, "wanted at most 256 KiB"),
    ],
)
def test_files_that_are_no_playbook(tmp_path: Path, raw: bytes, line: int, column: int, message: str) -> None:
    path = tmp_path / "p.yml"
    path.write_bytes(raw)
    with pytest.raises(DefinitionError) as caught:
        read_document(path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message
    assert problem.file == str(path)


def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "no.yml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(DefinitionError) as caught:
            read_document(path)
        assert said in caught.value.problems[0].message


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(path).data == {"a": 1}


_YAMLISH = st.text(alphabet="ab:-[]{}&*!|>#?,'\"% \t\n<01~\\@`.é\x00", max_size=60)


@given(_YAMLISH)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_document_or_a_list_of_problems(text: str) -> None:
    found: list[Problem] = []
    try:
        assert isinstance(parse_document(text, "f.yml"), Document)
    except DefinitionError as error:
        found = error.problems
        if not found:
            raise
    assert all(problem.line >= 1 and problem.column >= 1 for problem in found)

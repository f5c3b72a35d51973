"""YAML with the position of every key and value. The only module that knows PyYAML.

YAML 1.2's core rules decide what a plain scalar is, so that ``on:`` is a key and not ``true``, ``no`` is
text, and ``1:30`` is not 90. What has two readings (``022``) stays text, and the model then says what it
wanted. Tags are refused, aliases may not recurse or unfold beyond a bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from opsctl.errors import DefinitionError, Problem

Key = tuple[str | int, ...]
"""Where a value is inside its document, such as ("phases", 0, "serve")."""

BYTES_LIMIT = 256 * 1024
DEPTH_LIMIT = 40
NODES_LIMIT = 20_000

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)(?:[eE][-+]?[0-9]{1,3})?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]{1,3})"
)
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Position(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Document:
    """One YAML file as plain values, and where each stands."""

    file: str
    data: Any
    values: Mapping[Key, Position] = field(default_factory=dict)
    keys: Mapping[Key, Position] = field(default_factory=dict)

    def value_at(self, key: Key) -> Position:
        """Return where the value stands, or the nearest value around it."""
        return self._nearest(self.values, key)

    def key_at(self, key: Key) -> Position:
        """Return where the key itself stands; an entry of a list has none, so its value's place is given."""
        return self.keys[key] if key in self.keys else self.value_at(key)

    def _nearest(self, places: Mapping[Key, Position], key: Key) -> Position:
        for length in range(len(key), -1, -1):
            if key[:length] in places:
                return places[key[:length]]
        return Position(1, 1)

    def problem(self, key: Key, message: str, *, on_key: bool = False) -> Problem:
        """Return a Problem at a value, or at its key."""
        position = self.key_at(key) if on_key else self.value_at(key)
        return Problem(self.file, position.line, position.column, message)


def read_document(path: Path, *, file: str | None = None) -> Document:
    """Read a YAML file whose top is a mapping.

    ``file`` is the name shown in messages (default: the path as given). Raises DefinitionError.
    """
    name = file or str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(BYTES_LIMIT + 1)
    except OSError as error:
        raise DefinitionError([Problem(name, 1, 1, f"cannot be read: {error.strerror}")]) from error
    if len(raw) > BYTES_LIMIT:
        message = f"wanted at most {BYTES_LIMIT // 1024} KiB of YAML, found more"
        raise DefinitionError([Problem(name, 1, 1, message)])
    document = parse_document(_decode(raw, name), name)
    if not isinstance(document.data, dict):
        found = "nothing: the file is empty" if document.data is None else kind_of(document.data)
        raise DefinitionError([document.problem((), f"wanted a mapping of keys, found {found}")])
    return document


def parse_document(text: str, file: str) -> Document:
    """Parse YAML text. Raises DefinitionError with every duplicate key and tag, or the first error of syntax."""
    unprintable = UNPRINTABLE.search(text)
    if unprintable is not None:
        position = _position_in(text, unprintable.start())
        message = f"wanted printable text, found the character U+{ord(unprintable.group()):04X}"
        raise DefinitionError([Problem(file, *position, message)])
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise DefinitionError([_syntax_problem(error, file)]) from error
    finally:
        loader.dispose()
    reader = _Reader(file, text)
    data = reader.value(root, (), 0) if root is not None else None
    problems = [Problem(file, *position, message) for position, message in loader.refused] + reader.problems
    if problems:
        raise DefinitionError(problems)
    return Document(file, data, reader.values, reader.keys)


def kind_of(value: object) -> str:
    """Return what a value is, in words for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value!r}" if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"


def _decode(raw: bytes, file: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"wanted UTF-8 text, found the byte 0x{raw[error.start]:02x}"
        raise DefinitionError([Problem(file, line, column, message)]) from error


def _position_in(text: str, index: int) -> Position:
    return Position(text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


def _position(mark: yaml.Mark) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _syntax_problem(error: yaml.MarkedYAMLError, file: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    position = _position(mark) if mark is not None else Position(1, 1)
    said = error.problem or str(error)
    if "'\\t'" in said:
        said = "wanted spaces for indentation, found a tab"
    elif "found another document" in said:
        said = "wanted one YAML document, found another after `---`"
    elif error.context:
        said = f"not YAML: {error.context}: {said}"
    else:
        said = f"not YAML: {said}"
    return Problem(file, *position, said)


class _Loader(yaml.SafeLoader):
    """Composes nodes only, with a bound on depth; tags are noted as refused."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class declares it

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.refused: list[tuple[Position, str]] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            self.refused.append((_position(event.start_mark), f"wanted a plain value, found the tag {event.tag}"))
        self._depth += 1
        try:
            if self._depth > DEPTH_LIMIT:
                raise yaml.MarkedYAMLError(
                    problem=f"nested deeper than {DEPTH_LIMIT} levels", problem_mark=event.start_mark
                )
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class _Reader:
    """Turns nodes into plain values and notes where each stands."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.lines = text.split("\n")
        self.values: dict[Key, Position] = {}
        self.keys: dict[Key, Position] = {}
        self.problems: list[Problem] = []
        self._count = 0

    def refuse(self, position: Position, message: str) -> None:
        self.problems.append(Problem(self.file, *position, message))

    def value(self, node: yaml.Node, key: Key, depth: int) -> Any:
        position = _position(node.start_mark)
        self.values[key] = position
        self._count += 1
        if self._count > NODES_LIMIT or depth > DEPTH_LIMIT:
            message = f"wanted aliases that unfold to at most {NODES_LIMIT} values and {DEPTH_LIMIT} levels, found more"
            raise DefinitionError([Problem(self.file, *position, message)])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*key, index), depth + 1) for index, item in enumerate(node.value)]
        self._check_text(str(node.value), position)
        return _scalar(node)

    def _check_text(self, text: str, position: Position) -> None:
        """Refuse what an escape in quotes brings in, such as NUL: no argv, path or name can hold it."""
        unprintable = UNPRINTABLE.search(text)
        if unprintable is not None:
            self.refuse(position, f"wanted printable text, found the character U+{ord(unprintable.group()):04X}")

    def _mapping(self, node: yaml.MappingNode, key: Key, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                mapping = {**self._merged(value_node, key, depth + 1), **mapping}
        written: dict[str, Position] = {}
        for key_node, value_node in node.value:
            position = _position(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.refuse(*self._odd_key(node, position))
            elif _is_merge(key_node):
                continue
            elif not key_node.value:
                self.refuse(position, "wanted a name before the colon, found nothing")
            elif key_node.value in written:
                first = written[key_node.value].line
                self.refuse(position, f"duplicate key `{key_node.value}`; the first stands in line {first}")
            else:
                self._check_text(key_node.value, position)
                written[key_node.value] = self.keys[(*key, key_node.value)] = position
                mapping[key_node.value] = self.value(value_node, (*key, key_node.value), depth + 1)
        return mapping

    def _odd_key(self, node: yaml.MappingNode, position: Position) -> tuple[Position, str]:
        start = _position(node.start_mark)
        if self.lines[start.line - 1][start.column - 1 :].startswith("{{"):
            return start, 'an expression needs quotes around it in YAML: "{{ vars.x }}"'
        return position, "wanted a name as key, found a list or mapping"

    def _merged(self, source: yaml.Node, key: Key, depth: int) -> dict[str, Any]:
        """Return what ``<<: *base`` or ``<<: [*first, *second]`` brings; the first that has a key wins."""
        merged: dict[str, Any] = {}
        for part in source.value if isinstance(source, yaml.SequenceNode) else [source]:
            if isinstance(part, yaml.MappingNode) and depth <= DEPTH_LIMIT:
                merged = {**self._mapping(part, key, depth), **merged}
            else:
                self.refuse(_position(part.start_mark), "wanted a mapping to merge after `<<`")
        return merged


def _is_merge(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.value == "<<" and node.style is None


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    text = str(node.value)
    if getattr(node, "style", None) is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text

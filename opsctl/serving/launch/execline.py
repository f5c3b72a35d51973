"""Exec lines of unit files as argv, both ways, by systemd's own rules (systemd.service(5), "COMMAND LINES").

Words are split as systemd's ``extract_first_word`` does with unquoting and C escapes: quotes may stand
anywhere in a word, a backslash works inside both kinds of quotes, an unknown escape keeps its backslash.
Specifiers (``%n``) and variables (``${X}``) are left in the words: who expands them is another question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PREFIXES = "@-:+!|"
"""Characters before the program that change how it is run."""

_SIMPLE = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "s": " ",
}
_HEX = {"x": 2, "u": 4, "U": 8}
_OCTAL = "01234567"
_SPACE = " \t\n\r"


@dataclass(frozen=True)
class ExecCommand:
    """One command of an Exec line: its prefix characters, and its words before specifiers and variables."""

    words: tuple[str, ...]
    prefix: str = ""

    @property
    def literal_dollar(self) -> bool:
        """Whether ``$`` means nothing to systemd here."""
        return ":" in self.prefix


def split_words(text: str) -> list[str]:
    """Split one line into words. Raises ValueError for quotes that do not close and for NUL escapes."""
    words: list[str] = []
    position = 0
    while True:
        while position < len(text) and text[position] in _SPACE:
            position += 1
        if position >= len(text):
            return words
        word, position = _word(text, position)
        words.append(word)


def _word(text: str, position: int) -> tuple[str, int]:
    """Return the word at a position that holds no space, and where it ends."""
    out = bytearray()
    quote = ""
    while position < len(text):
        char = text[position]
        if char == "\\":
            piece, position = _escape(text, position + 1)
            out += piece
            continue
        position += 1
        if not quote and char in _SPACE:
            break
        if char == quote:
            quote = ""
        elif not quote and char in "\"'":
            quote = char
        else:
            out += _bytes(char)
    if quote:
        msg = f"a {quote} is opened and never closed in {text[:80]!r}"
        raise ValueError(msg)
    return out.decode(errors="surrogateescape"), position


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _escape(text: str, position: int) -> tuple[bytes, int]:
    """Return what an escape stands for, and where it ends. ``position`` is just after the backslash."""
    char = text[position : position + 1]
    if char and char in _SIMPLE:
        return _bytes(_SIMPLE[char]), position + 1
    if char and char in _HEX:
        return _number(text, position, digits=_HEX[char], base=16, start=position + 1)
    if char and char in _OCTAL:
        return _number(text, position, digits=3, base=8, start=position)
    return _bytes(f"\\{char}"), position + len(char)


def _number(text: str, position: int, *, digits: int, base: int, start: int) -> tuple[bytes, int]:
    found = text[start : start + digits]
    allowed = _OCTAL if base == 8 else "0123456789abcdefABCDEF"
    if len(found) < digits or any(digit not in allowed for digit in found):
        return _bytes(f"\\{text[position]}"), position + 1
    value = int(found, base)
    is_byte = text[position] not in "uU"
    if value == 0 or value > (0xFF if is_byte else 0x10FFFF):
        msg = f"the escape \\{text[position]}{found} stands for no character in {text[:80]!r}"
        raise ValueError(msg)
    return (bytes([value]) if is_byte else _bytes(chr(value))), start + digits


def parse_exec(value: str) -> tuple[ExecCommand, ...]:
    """Return the commands of one Exec line: several where a word ``;`` stands between them. Raises ValueError."""
    commands: list[ExecCommand] = []
    for group in _groups(value):
        words = split_words(group)
        if not words:
            continue
        program = words[0]
        bare = program.lstrip(PREFIXES)
        words[0] = bare
        commands.append(ExecCommand(tuple(words), program[: len(program) - len(bare)]))
    return tuple(commands)


_SEPARATOR = re.compile(r"(?:^|(?<=[ \t]));(?=[ \t]|$)")


def _groups(value: str) -> Iterable[str]:
    r"""Split at a ``;`` that is a word of its own outside of quotes; ``\;`` is a word that is a semicolon."""
    start = 0
    for match in _SEPARATOR.finditer(value):
        if _balanced(value[start : match.start()]):
            yield _unescape_semicolons(value[start : match.start()])
            start = match.end()
    yield _unescape_semicolons(value[start:])


def _balanced(text: str) -> bool:
    quote, position = "", 0
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        position += 1
    return not quote


def _unescape_semicolons(text: str) -> str:
    return re.sub(r"(?:^|(?<=[ \t]))\\;(?=[ \t]|$)", '";"', text)


_PLAIN = re.compile(r"[^\s\"'\\;#\x00-\x1f\x7f\udc80-\udcff]+")


def quote_word(word: str) -> str:
    """Return a word as a unit file needs it, so that systemd reads back just this word (specifiers stay live).

    Raises ValueError for NUL, which no argument can hold.
    """
    if "\0" in word:
        msg = "an argument cannot hold a NUL character"
        raise ValueError(msg)
    if _PLAIN.fullmatch(word):
        return word
    out = []
    for char in word:
        if char in '\\"':
            out.append(f"\\{char}")
        elif char == "\n":
            out.append("\\n")
        elif char == "\t":
            out.append("\\t")
        elif ord(char) < 32 or ord(char) == 127 or 0xDC80 <= ord(char) <= 0xDCFF:
            # Control characters, and bytes that are no UTF-8 (Python keeps them as lone surrogates).
            out.append(f"\\x{_bytes(char)[0]:02x}")
        else:
            out.append(char)
    return f'"{"".join(out)}"'


def format_exec(command: ExecCommand) -> str:
    """Return a command as the value of an Exec line. ``parse_exec`` gives it back unchanged."""
    program = quote_word(command.words[0])
    # The prefix must stand before the quotes, not inside them.
    return " ".join([f"{command.prefix}{program}", *(quote_word(word) for word in command.words[1:])])


def literal(word: str, *, dollar: bool = True) -> str:
    """Return a word in which systemd finds neither specifiers nor (with ``dollar``) variables to expand."""
    word = word.replace("%", "%%")
    return word.replace("$", "$$") if dollar else word


_SPECIFIER = re.compile(r"%(.)", re.DOTALL)


def expand(word: str, values: Mapping[str, str], *, escape: bool) -> str:
    """Expand the specifiers in ``values``; others stay. With ``escape`` the result is a word for a unit file again.

    Without it ``%%`` becomes ``%``, as in what systemd has loaded.
    """

    def one(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "%":
            return "%%" if escape else "%"
        if letter in values:
            return literal(values[letter], dollar=False) if escape else values[letter]
        return match[0]

    return _SPECIFIER.sub(one, word)


def same_words(written: Sequence[str], loaded: Sequence[str], values: Mapping[str, str]) -> bool:
    """Return whether systemd loaded what the file says. A specifier that only systemd knows may be anything."""
    if len(written) != len(loaded):
        return False
    return all(_word_matches(word, seen, values) for word, seen in zip(written, loaded, strict=True))


def _word_matches(word: str, seen: str, values: Mapping[str, str]) -> bool:
    pieces, end = [], 0
    for match in _SPECIFIER.finditer(word):
        pieces.append(re.escape(word[end : match.start()]))
        letter = match[1]
        pieces.append("%" if letter == "%" else re.escape(values[letter]) if letter in values else ".*")
        end = match.end()
    pieces.append(re.escape(word[end:]))
    return re.fullmatch("".join(pieces), seen, re.DOTALL) is not None

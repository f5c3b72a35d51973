"""Words of a launch line that know where they were written, so that an edit changes that place and nothing else.

A launch line can be nested: an argv holds a text for a shell, which starts a script, which is given words of the
argv again. Each such text is a ``Source``. A ``Word`` compares as its value and remembers its source and its
place in it; ``rebuild`` turns an edited list of words into new texts, from the innermost source outwards.
"""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opsctl.errors import UnfitError

Pieces = tuple[str | None, ...]
"""A value in pieces; None is a piece that only the host knows when the line runs."""


class Word(str):
    """One argument. The text is its value as far as it is known; what is not known stays as it is written."""

    __slots__ = ("end", "many", "pieces", "shared", "source", "start")

    source: Source
    start: int
    end: int
    pieces: Pieces
    many: bool
    """Whether it may stand for any number of arguments (``$ARGS`` without quotes)."""
    shared: bool
    """Whether it came out of a variable with others, so that it cannot be edited by itself."""


def make_word(
    text: str,
    source: Source,
    start: int,
    end: int,
    *,
    pieces: Pieces | None = None,
    many: bool = False,
    shared: bool = False,
) -> Word:
    """Return a word; without ``pieces`` all of its value is known."""
    word = Word(text)
    word.source, word.start, word.end = source, start, end
    word.pieces = (text,) if pieces is None else pieces
    word.many, word.shared = many, shared
    return word


class Copy(NamedTuple):
    """A file that is derived from another on the host: as readable as that one is."""

    text: str
    original: str


Files = dict[str, Copy]
"""Derived files by the path they are written to."""


@dataclass(eq=False)
class Source(ABC):
    """A text, or an argv, that holds words. ``holder`` is the word of the outer source that stands for it."""

    name: str
    """In words, for a person: ``the -c string of bash``."""
    holder: Word | None = None

    @abstractmethod
    def rewritten(self, changes: Changes) -> tuple[list[str], Files]:
        """Return what takes the holder's place, and the files that it needs."""


@dataclass
class Changes:
    """What is done to one source: words deleted, and words put in before a position."""

    deleted: list[Word] = field(default_factory=list)
    before: dict[int, list[str]] = field(default_factory=dict)
    """New words that lead the word at a position."""
    behind: dict[int, list[str]] = field(default_factory=dict)
    """New words that follow the word that ends at a position."""


@dataclass(eq=False)
class Arguments(Source):
    """The argv of one Exec line as systemd loaded it; positions are indexes."""

    items: tuple[str, ...] = ()
    dollar: bool = True
    """Whether systemd expands ``$``, so that a literal one must be doubled."""

    def rewritten(self, changes: Changes) -> tuple[list[str], Files]:
        """Return the new argv, as systemd must load it."""
        gone = {word.start for word in changes.deleted}
        out: list[str] = []
        for index in range(len(self.items) + 1):
            new = (*changes.behind.get(index, ()), *changes.before.get(index, ()))
            out += [self.literal(word) for word in new]
            if index < len(self.items) and index not in gone:
                out.append(self.items[index])
        return out, {}

    def literal(self, word: str) -> str:
        """Return a new word as it must be loaded. A text whose dollars are as written already comes as Loaded."""
        return word if isinstance(word, Loaded) or not self.dollar else word.replace("$", "$$")


class Loaded(str):
    """A word whose dollar signs are written for systemd already."""

    __slots__ = ()


@dataclass(eq=False)
class ShellText(Source):
    """A text for a shell: the string after ``-c``, or a script. Positions are offsets of characters."""

    text: str = ""
    doubled: bool = False
    """Whether a dollar sign for the shell is written twice, since systemd reads the text first."""

    def rewritten(self, changes: Changes) -> tuple[list[str], Files]:
        """Return the new text as one word."""
        return [self._loaded(self._new_text(changes))], {}

    def _loaded(self, text: str) -> str:
        return Loaded(text) if self.doubled else text

    def _new_text(self, changes: Changes) -> str:
        edits = [(position, 0, position, f" {self._quoted(words)}") for position, words in changes.behind.items()]
        edits += [(position, 1, position, f"{self._quoted(words)} ") for position, words in changes.before.items()]
        edits += [(word.start, 2, word.end, "") for word in changes.deleted]
        out, at = "", 0
        for start, _, end, text in sorted(edits):
            out += self.text[at:start] + text
            at = max(at, end)
        return out + self.text[at:]

    def _quoted(self, words: Sequence[str]) -> str:
        text = " ".join(shlex.quote(word) for word in words)
        return text.replace("$", "$$") if self.doubled else text


@dataclass(eq=False)
class Script(ShellText):
    """A script on the host. An edit makes a copy of it; the script itself is never written."""

    path: str = ""
    copy: str = ""
    """Where the copy goes."""
    interpreter: tuple[str, ...] = ()
    """What the copy is run by; empty where the line names the interpreter itself. /run may be mounted noexec."""

    def rewritten(self, changes: Changes) -> tuple[list[str], Files]:
        """Return the copy as it is run, and the copy. Raises UnfitError where the script would miss its own path."""
        text = _SCRIPT_NAME.sub(self._own_name, self._new_text(changes))
        odd = not _PLAIN_PATH.fullmatch(self.path) and _NAME_ALONE.search(self.text)
        if _NAME_IN_PARTS.search(text) or odd:
            raise UnfitError(
                f"{self.name} works with its own path ($0 or BASH_SOURCE), which a copy of it does not have",
                where=self.path,
                hint='end the server\'s command in the script with "$@": arguments then need no copy of it',
            )
        return [*self.interpreter, self.copy], {self.copy: Copy(text, self.path)}

    def _own_name(self, match: re.Match[str]) -> str:
        """Put the script's path where its name is asked for, outside of single quotes and comments."""
        piece = match[0]
        return _NAME_ALONE.sub(lambda _: self.path, piece) if piece.startswith(('"', "$")) else piece


_PLAIN_PATH = re.compile(r"[\w./@+-]+")
_NAME_ALONE = re.compile(r"\$(?:0(?!\d)|\{0\}|BASH_SOURCE\b(?!\[)|\{BASH_SOURCE(?:\[0\])?\})")
_SCRIPT_NAME = re.compile(rf"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\S)\#[^\n]*|{_NAME_ALONE.pattern}""", re.DOTALL)
_NAME_IN_PARTS = re.compile(r"\$\{(?:0|BASH_SOURCE)\b|\$BASH_ARGV0")


def rebuild(
    before: Sequence[Word],
    after: Sequence[str],
    *,
    root: Source,
    tail: tuple[Source, int],
    where: str,
    leading: tuple[Word, Sequence[str]] | None = None,
    replaced: tuple[Word, str] | None = None,
) -> tuple[tuple[str, ...], Files]:
    """Return the outermost argv, and the files to write, that make ``before`` run as ``after``.

    ``after`` holds words of ``before`` in their order, and new ones. What is new at its end goes to ``tail``;
    ``leading`` are words to put before one that need not be among these, ``replaced`` such a word and a new one.
    Raises UnfitError when a word would have to change that cannot be edited by itself.
    """
    changes = _changes(before, after, tail, where)
    if replaced is not None:
        word, instead = replaced
        made = changes.setdefault(word.source, Changes())
        made.deleted.append(word)
        made.before.setdefault(word.start, []).append(instead)
    if leading is not None:
        word, words = leading
        new = changes.setdefault(word.source, Changes()).before
        new[word.start] = [*words, *new.get(word.start, ())]
    files: Files = {}
    for source in _innermost_first({*changes, root}):
        done = changes.get(source)
        if done is None:
            continue
        words, written = source.rewritten(done)
        files |= written
        holder = source.holder
        if holder is None:
            return tuple(words), files
        if holder.shared or None in holder.pieces:
            raise UnfitError(
                f"{source.name} is named by {holder}, which is known only when it runs",
                where=where,
                hint="write its name out on the line",
            )
        outer = changes.setdefault(holder.source, Changes())
        outer.deleted.append(holder)
        outer.before.setdefault(holder.start, []).extend(words)
    argv, _ = root.rewritten(Changes())
    return tuple(argv), files


def _innermost_first(sources: set[Source]) -> list[Source]:
    """Return the sources and all around them, each before what holds it."""
    depth: dict[Source, int] = {}
    for source in sources:
        chain = [source]
        while (holder := chain[-1].holder) is not None:
            chain.append(holder.source)
        depth |= {one: len(chain) - index for index, one in enumerate(chain)}
    return sorted(depth, key=lambda source: -depth[source])


def _changes(
    before: Sequence[Word], after: Sequence[str], tail: tuple[Source, int], where: str
) -> dict[Source, Changes]:
    kept = {id(word) for word in after}
    changes: dict[Source, Changes] = {}
    for word in before:
        if id(word) not in kept:
            if word.shared:
                raise UnfitError(
                    f"{word} comes out of a variable, so it cannot be edited by itself",
                    where=f"{where}, {word.source.name}",
                    hint="write the flag out on the command itself, behind the variable",
                )
            changes.setdefault(word.source, Changes()).deleted.append(word)
    known = {id(word): word for word in before}
    last: Word | None = None
    waiting: list[str] = []
    for new in after:
        if id(new) not in known:
            waiting.append(new)
            continue
        word = known[id(new)]
        if waiting:
            # Before the first word there is only the word that follows; elsewhere a value stays with its flag.
            if last is None:
                changes.setdefault(word.source, Changes()).before[word.start] = waiting
            else:
                changes.setdefault(last.source, Changes()).behind.setdefault(last.end, []).extend(waiting)
            waiting = []
        last = word
    if waiting:
        changes.setdefault(tail[0], Changes()).behind.setdefault(tail[1], []).extend(waiting)
    return changes


def matches(words: Sequence[str], cmdline: Sequence[str]) -> bool:
    """Return whether a process that was started by these words can have this command line, from its program on.

    The program itself may be behind an interpreter (a console script is run by Python), and is compared by nothing:
    the kernel and a launcher may spell it otherwise. What only the host knows may be anything.
    """
    pattern = "".join(_pattern(word) for word in words[1:])
    text = "".join(f"{word}\0" for word in cmdline)
    return re.search(rf"(?:^|\x00){pattern}$", text) is not None


def _pattern(word: str) -> str:
    # \x00 and not \0, which swallows digits that follow it.
    if not isinstance(word, Word):
        return re.escape(word) + r"\x00"
    if word.many:
        return r"(?:[^\x00]*\x00)*?"
    return "".join(r"[^\x00]*" if piece is None else re.escape(piece) for piece in word.pieces) + r"\x00"


_SYSTEMD_VARIABLE = re.compile(r"\$\$|\$\{(\w+)\}")


def argv_words(source: Arguments, variables: Mapping[str, str | None]) -> list[Word]:
    """Return the words of an Exec line, its variables put in where they are known (systemd.service(5)).

    A name that is not in ``variables``, or is None there, has a value that only the host knows.
    """
    found: list[Word] = []
    for index, item in enumerate(source.items):
        whole = re.fullmatch(r"\$(\w+)", item) if source.dollar and index else None
        if whole is not None:
            value = variables.get(whole[1])
            if value is None:
                found.append(make_word(item, source, index, index + 1, pieces=(None,), many=True))
            else:
                parts = value.split()
                found += [make_word(part, source, index, index + 1, shared=True) for part in parts]
            continue
        pieces = _systemd_pieces(item, variables) if source.dollar else (item,)
        shown = item if None in pieces else "".join(piece or "" for piece in pieces)
        found.append(make_word(shown, source, index, index + 1, pieces=pieces))
    return found


def _systemd_pieces(item: str, variables: Mapping[str, str | None]) -> Pieces:
    pieces: list[str | None] = []
    end = 0
    for match in _SYSTEMD_VARIABLE.finditer(item):
        pieces.append(item[end : match.start()])
        pieces.append("$" if match[0] == "$$" else variables.get(match[1]))
        end = match.end()
    return (*pieces, item[end:])

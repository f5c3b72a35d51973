"""Commands in a text for a shell, as far as they can be told without running it.

It reads quotes, continuations, comments, here-documents, expansions and the frame of compound commands, and
says for each simple command its words with their places, and under which circumstances it runs. What a word
becomes is worked out where plain assignments say so; everything else is a piece that only the host knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from opsctl.serving.launch.words import Pieces, ShellText, Word, make_word

Value = tuple[str, ...] | None
"""A variable's value: one text, the elements of an array, or None where only the host knows it."""

_OPERATORS = ("<<<", "&>>", "<<-", ";;&", "&&", "||", ";;", ";&", "|&", "<<", ">>", "<&", ">&", "<>", ">|", "&>")
_REDIRECTIONS = {"<<<", "&>>", "<<-", "<<", ">>", "<&", ">&", "<>", ">|", "&>", "<", ">"}
_OPENING = {"if": "fi", "for": "done", "while": "done", "until": "done", "select": "done", "case": "esac", "{": "}"}
_LOOPS = {"for", "while", "until", "select"}
_BETWEEN = {"then", "do", "else", "elif", "!", "time"}
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_EXPANSION = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]")
_ARGUMENTS = {'"$@"', "$@", '"${@}"', "${@}", "$*", '${1+"$@"}', '"${@:1}"'}
_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")


@dataclass(frozen=True)
class SimpleCommand:
    """One simple command: ``assignments words``, and what is around it."""

    words: tuple[Word, ...]
    assignments: tuple[str, ...]
    """``NAME=value`` before the program, as written."""
    around: tuple[str, ...]
    """The compound commands that it stands in, outermost first: ``if``, ``while``, ``(``, ``function``."""
    environment: tuple[str, ...]
    """What was done before to the environment, in order: ``NAME=value``, ``-NAME``, ``reads FILE``."""
    end: int
    """Where its last word ends."""
    arguments_end: bool = False
    """Whether its last word is ``"$@"``, so that it ends with the shell's own arguments."""

    @property
    def loops(self) -> bool:
        """Whether the shell may run it again."""
        return any(one in _LOOPS for one in self.around)


@dataclass
class _Token:
    kind: str
    """word, operator or newline"""
    start: int
    end: int
    text: str = ""


@dataclass
class ShellReader:
    """Reads one text. ``positional`` are the words of ``"$@"``, None where they are not known."""

    source: ShellText
    variables: Mapping[str, str | None] = field(default_factory=dict)
    positional: tuple[Word, ...] | None = ()
    name: str = ""
    """What ``$0`` is."""

    def __post_init__(self) -> None:
        self._text = self.source.text
        self._values: dict[str, Value] = {
            name: None if value is None else (value,) for name, value in self.variables.items()
        }
        self._environment: list[str] = []
        self._around: list[str] = []

    def commands(self) -> list[SimpleCommand]:
        """Return every simple command, in order. Raises ValueError where quotes or brackets do not close."""
        tokens = list(self._tokens())
        found: list[SimpleCommand] = []
        group: list[_Token] = []
        for index, token in enumerate(tokens):
            following = tokens[index + 1] if index + 1 < len(tokens) else None
            if (token.kind == "operator" and token.text in _REDIRECTIONS) or token.kind == "word":
                group.append(token)
            elif token.text == "(" and len(group) == 1 and following is not None and following.text == ")":
                self._around.append("function")
                group = []
            else:
                self._finish(group, found)
                group = []
                self._bracket(token)
        self._finish(group, found)
        return found

    def _bracket(self, token: _Token) -> None:
        if token.text == "(" and self._around[-1:] != ["function"]:
            self._around.append("(")
        elif token.text == ")" and self._around[-1:] == ["("]:
            self._around.pop()

    # Tokens

    def _tokens(self) -> Iterator[_Token]:
        at, documents = 0, list[tuple[str, bool]]()
        while at < len(self._text):
            char = self._text[at]
            if char == "\n":
                yield _Token("newline", at, at + 1, "\n")
                at = self._after_documents(at + 1, documents)
                documents = []
            elif char in " \t\r":
                at += 1
            elif self._text.startswith("\\\n", at):
                at += 2
            elif char == "#":
                at = self._line_end(at)
            elif char in "<>" and self._text[at + 1 : at + 2] == "(":
                end = self._word_end(at)
                yield _Token("word", at, end)
                at = end
            elif char in "();<>|&":
                operator = next((one for one in _OPERATORS if self._text.startswith(one, at)), char)
                yield _Token("operator", at, at + len(operator), operator)
                at += len(operator)
                if operator in {"<<", "<<-"}:
                    while self._text[at : at + 1] in {" ", "\t"}:
                        at += 1
                    end = self._word_end(at)
                    documents.append((re.sub(r"[\"'\\]", "", self._text[at:end]), operator == "<<-"))
                    yield _Token("word", at, end)
                    at = end
            else:
                end = self._word_end(at)
                yield _Token("word", at, end)
                at = end

    def _line_end(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end

    def _after_documents(self, at: int, documents: Sequence[tuple[str, bool]]) -> int:
        for mark, tabs in documents:
            while at < len(self._text):
                end = self._line_end(at)
                line = self._text[at:end]
                at = min(end + 1, len(self._text))
                if (line.lstrip("\t") if tabs else line) == mark:
                    break
        return at

    def _word_end(self, at: int) -> int:
        """Return where the word at a position ends; ``NAME=(`` and process substitutions are one word."""
        start = at
        while at < len(self._text):
            char = self._text[at]
            if char == "\\":
                at += 2
            elif char in "\"'`" or char == "$":
                at = self._skip(at)
            elif char == "(" and (
                _ASSIGNMENT.fullmatch(self._text, start, at) or (at == start + 1 and self._text[start] in "<>")
            ):
                at = self._closing(at, "(", ")")
            elif char in "<>" and at == start and self._text[at + 1 : at + 2] == "(":
                at += 1
            elif char in " \t\r\n();<>|&":
                break
            else:
                at += 1
        return min(at, len(self._text))

    def _skip(self, at: int) -> int:
        """Return where the quoted or expanded piece at a position ends."""
        char = self._text[at]
        if char == "'":
            return self._find("'", at + 1) + 1
        if char == "`":
            end = at + 1
            while self._text[end : end + 1] != "`":
                if end >= len(self._text):
                    self._unclosed("`")
                end += 2 if self._text[end] == "\\" else 1
            return end + 1
        if char == '"':
            end = at + 1
            while self._text[end : end + 1] != '"':
                if end >= len(self._text):
                    self._unclosed('"')
                if self._text[end] == "\\":
                    end += 2
                else:
                    end = self._skip(end) if self._text[end] in "$`" else end + 1
            return end + 1
        return self._expansion_end(at)

    def _expansion_end(self, at: int) -> int:
        at += 1
        if self.source.doubled and self._text[at : at + 1] == "$":
            at += 1
        following = self._text[at : at + 1]
        if following == "(":
            return self._closing(at, "(", ")")
        if following == "{":
            return self._closing(at, "{", "}")
        if following == "'":
            end = at + 1
            while self._text[end : end + 1] != "'":
                if end >= len(self._text):
                    self._unclosed("$'")
                end += 2 if self._text[end] == "\\" else 1
            return end + 1
        match = _EXPANSION.match(self._text, at)
        return match.end() if match else at

    def _closing(self, at: int, opening: str, closing: str) -> int:
        depth, end = 0, at
        while end < len(self._text):
            char = self._text[end]
            if char == "\\":
                end += 2
                continue
            if char in "\"'`" or (char == "$" and self._text[end + 1 : end + 2] in {"'", "(", "{"}):
                end = self._skip(end)
                continue
            if char == "#" and opening == "(" and self._text[end - 1] in " \t\n":
                end = self._line_end(end)
                continue
            depth += {opening: 1, closing: -1}.get(char, 0)
            end += 1
            if not depth:
                return end
        self._unclosed(opening)
        raise AssertionError

    def _find(self, what: str, at: int) -> int:
        end = self._text.find(what, at)
        if end < 0:
            self._unclosed(what)
        return end

    def _unclosed(self, what: str) -> None:
        raise ValueError(f"a {what} is opened and never closed in {self._text[:80]!r}")

    # Commands

    def _finish(self, group: list[_Token], found: list[SimpleCommand]) -> None:
        """Take a group of tokens between two operators as a command, and follow what it does to the frame."""
        tokens = self._without_redirections(group)
        while tokens:
            head = self._raw(tokens[0])
            if self._around[-1:] == ["function"] and head == "{":
                self._around[-1:] = ["function", "{"]
            elif head in _OPENING:
                self._around.append(head)
                if head in {"for", "case", "select"}:
                    return
            elif head in {"fi", "done", "esac", "}"}:
                if self._around and _OPENING.get(self._around[-1]) == head:
                    self._around.pop()
                if self._around[-1:] == ["function"]:
                    self._around.pop()
            elif head == "function":
                self._around.append("function")
                tokens = tokens[1:]
            elif head not in _BETWEEN:
                break
            tokens = tokens[1:]
        alone = all(_ASSIGNMENT.match(self._raw(token)) for token in tokens)
        assignments: list[str] = []
        while tokens and (match := _ASSIGNMENT.match(self._raw(tokens[0]))):
            assignments.append(self._assign(match, tokens[0], only=alone))
            tokens = tokens[1:]
        words = [word for token in tokens for word in self._words(token)]
        if words and not self._changes_environment(words, tokens):
            given = self._gives_arguments(tokens[-1])
            frame, changed = tuple(self._around), tuple(self._environment)
            found.append(SimpleCommand(tuple(words), tuple(assignments), frame, changed, tokens[-1].end, given))

    def _gives_arguments(self, token: _Token) -> bool:
        """Return whether a written word stands for the shell's own arguments, and these are known."""
        raw = self._raw(token).replace("$$", "$") if self.source.doubled else self._raw(token)
        return raw in _ARGUMENTS and self.positional is not None and "function" not in self._around

    @property
    def _conditional(self) -> bool:
        """Whether what stands here may run or not, or run elsewhere."""
        return any(one != "{" for one in self._around)

    def _raw(self, token: _Token) -> str:
        return self._text[token.start : token.end]

    def _without_redirections(self, group: Sequence[_Token]) -> list[_Token]:
        kept: list[_Token] = []
        skip = False
        for token in group:
            if token.kind == "operator":
                # ``2>&1``: a number that touches the operator belongs to it.
                if kept and kept[-1].end == token.start and self._raw(kept[-1]).isdigit():
                    kept.pop()
                skip = True
            elif skip:
                skip = False
            else:
                kept.append(token)
        return kept

    def _assign(self, match: re.Match[str], token: _Token, *, only: bool) -> str:
        """Follow ``NAME=value``; return it as text. Before a command it holds for that command alone."""
        name, adds = match[1], bool(match[2])
        start = token.start + match.end()
        if self._text[start : start + 1] == "(":
            value: Value = self._array(start, token.end)
        else:
            pieces, _ = self._pieces(start, token.end)
            value = None if None in pieces else ("".join(piece or "" for piece in pieces),)
        if adds and value is not None:
            old = self._values.get(name, ())
            joined = None if old is None else (*old, *value)
            value = joined if self._text[start : start + 1] == "(" or joined is None else ("".join(joined),)
        if only:
            self._values[name] = None if self._conditional else value
        return f"{name}={' '.join(value) if value is not None else self._text[start : token.end]}"

    def _array(self, start: int, end: int) -> Value:
        inner = ShellReader(
            ShellText("an array", text=self._text[start + 1 : end - 1], doubled=self.source.doubled),
            positional=self.positional,
        )
        inner._values = self._values
        words = [word for token in inner._tokens() if token.kind == "word" for word in inner._words(token)]
        return None if any(word.many or None in word.pieces for word in words) else tuple(str(word) for word in words)

    def _changes_environment(self, words: Sequence[Word], tokens: Sequence[_Token]) -> bool:
        """Follow builtins that change variables; return whether the command was one."""
        head = words[0]
        if head in {"export", "declare", "typeset", "readonly", "local"}:
            for token in tokens[1:]:
                if match := _ASSIGNMENT.match(self._raw(token)):
                    text = self._assign(match, token, only=True)
                    self._environment += [] if self._conditional else [text]
            return True
        if head == "unset":
            for name in words[1:]:
                self._values[name] = None
                self._environment.append(f"-{name}")
            return True
        if head in {".", "source"} and len(words) > 1:
            self._forget(f"reads {words[1]}")
            return True
        if head in {"conda", "micromamba", "mamba", "module", "pyenv"} and words[1:2] in (["activate"], ["load"]):
            self._forget(" ".join(words))
            return True
        if head == "eval":
            self._forget("eval")
        if head in {"shift", "set"} and (head == "shift" or "--" in words):
            self.positional = None
        if head == "read":
            for name in words[1:]:
                self._values[name] = None
        return False

    def _forget(self, why: str) -> None:
        self._environment.append(why)
        self._values = dict.fromkeys(self._values, None)

    # Words

    def _words(self, token: _Token) -> list[Word]:
        """Return the words that one written word becomes: ``"$@"`` and known variables may become several."""
        raw = self._raw(token).replace("$$", "$") if self.source.doubled else self._raw(token)
        if raw in _ARGUMENTS:
            if self._gives_arguments(token):
                return list(self.positional or ())
            return [make_word(raw, self.source, token.start, token.end, pieces=(None,), many=True)]
        array = _ARRAY.fullmatch(raw.strip('"'))
        if array:
            known = self._values.get(array[1])
            if known is None:
                return [make_word(raw, self.source, token.start, token.end, pieces=(None,), many=True)]
            return [make_word(text, self.source, token.start, token.end, shared=True) for text in known]
        pieces, loose = self._pieces(token.start, token.end)
        if None in pieces:
            many = loose and len([piece for piece in pieces if piece != ""]) == 1
            return [make_word(raw, self.source, token.start, token.end, pieces=pieces, many=many)]
        value = "".join(piece or "" for piece in pieces)
        if loose and len(value.split()) != 1:
            return [make_word(text, self.source, token.start, token.end, shared=True) for text in value.split()]
        return [make_word(value, self.source, token.start, token.end, pieces=pieces)]

    def _pieces(self, at: int, end: int) -> tuple[Pieces, bool]:
        """Return a word's value in pieces, and whether an expansion stands in it outside of quotes."""
        pieces: list[str | None] = []
        loose, quoted, text = False, False, ""
        while at < end:
            char = self._text[at]
            if char == "\\":
                following = self._text[at + 1 : at + 2]
                keeps = quoted and following not in {"$", "`", '"', "\\", "\n"}
                text += ("\\" if keeps else "") + ("" if following == "\n" else following)
                at += 2
            elif char == "'" and not quoted:
                stop = self._skip(at)
                inner = self._text[at + 1 : stop - 1]
                text += inner.replace("$$", "$") if self.source.doubled else inner
                at = stop
            elif char == '"':
                quoted = not quoted
                at += 1
            elif char in "$`" or (char in "<>" and not quoted):
                stop = self._closing(at + 1, "(", ")") if char in "<>" else self._skip(at)
                value = self._expanded(self._text[at:stop])
                if char == "$" and stop == at + 1:
                    value = "$"
                pieces += [text, value]
                text, at, loose = "", stop, loose or not quoted
            else:
                text += char
                at += 1
        return (*pieces, text), loose

    def _expanded(self, raw: str) -> str | None:
        """Return what ``$NAME``, ``${NAME}``, ``${NAME:-word}`` or ``$1`` stands for, or None."""
        if self.source.doubled:
            raw = raw.replace("$$", "$", 1)
        match = re.fullmatch(r"\$(?:(\w+)|\{(\w+)(?::?-([^${}`\"'\\]*))?\})", raw)
        if match is None:
            return None
        name, default = match[1] or match[2], match[3]
        if name == "0":
            return None
        if name.isdecimal():
            if self.positional is None or "function" in self._around:
                return None
            index = int(name) - 1
            if index >= len(self.positional):
                return default or ""
            word = self.positional[index]
            return None if word.many or None in word.pieces else str(word)
        value = self._values.get(name)
        if value is None:
            return None
        return value[0] if value and value[0] else default or ""

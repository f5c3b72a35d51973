"""What a unit's launch line really starts: wrappers, changes of the environment, the engine's argv, where to edit it.

``understand`` follows a line through wrappers, shells and scripts to the engine. What it finds it can also edit, at
the place where the engine's words stand; what it cannot follow it says, with the reason and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from opsctl.engines import Engine
from opsctl.errors import UnfitError
from opsctl.serving.launch.containers import COMPOSERS, Container, container_of, is_client
from opsctl.serving.launch.recognise import engine_of
from opsctl.serving.launch.shell import ShellReader, SimpleCommand
from opsctl.serving.launch.words import (
    Arguments,
    Files,
    Script,
    ShellText,
    Source,
    Word,
    argv_words,
    make_word,
    rebuild,
)
from opsctl.serving.launch.wrappers import Wrapped, unwrap

SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"}
_SHELL_VALUES = {"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}
_BUILTINS = {"exec", "command", "builtin"}
_DEEPEST = 8
_RUN = "write ExecStart= as `docker run --name NAME … IMAGE …` or `podman run …`, or as a quadlet (.container)"
_ONE_SERVER = "write the server as ExecStart= of the unit, with Restart= where it should come back"


@dataclass(frozen=True)
class Refusal:
    """Why a line cannot be run as a variant, and what to write instead."""

    reason: str
    instead: str


@dataclass(frozen=True)
class Surroundings:
    """What is known of the host on which a line runs."""

    variables: Mapping[str, str | None] = field(default_factory=dict)
    """The unit's environment; None where a file or the host decides."""
    read: Callable[[str], str | None] = lambda _: None
    """Reads a script by its path; None where it is not there, or no text."""
    copies: str = "/run/opsctl-copies"
    """Folder for what is derived."""
    directory: str = ""
    """The unit's working directory."""


@dataclass(frozen=True)
class Launch:
    """A line that starts one engine."""

    engine: Engine
    argv: tuple[Word, ...]
    """The engine's program and its arguments, as far as they are known before it runs."""
    wrappers: tuple[str, ...]
    """What stands around it, outermost first, in words."""
    environment: tuple[str, ...]
    """What is done to the environment on the way: ``NAME=value``, ``-NAME``, ``-*``, ``reads FILE``."""
    root: Arguments
    tail: tuple[Source, int]
    """Where an argument may be added."""
    inner: Word | None = None
    """The word before which a variable must be set, since what is around it may change or drop the unit's own."""
    refusal: Refusal | None = None
    container: Container | None = None
    """The container in which the engine runs; variables are set by its client then."""

    @property
    def own_environment(self) -> bool:
        """Whether the unit's environment may not reach the engine."""
        return self.inner is not None

    @property
    def place(self) -> str:
        """Where the engine's words stand, in words."""
        return self.argv[0].source.name

    def edited(
        self, after: Sequence[str], *, where: str, leading: Sequence[str] = (), name: str = ""
    ) -> tuple[tuple[str, ...], Files]:
        """Return the line that runs ``after``, made of words of ``argv`` and new ones, and the files that it needs.

        ``leading`` is put before ``inner``: programs that start what stands there, or options of a container's
        client. ``name`` is what the container is called instead.
        Raises UnfitError where it cannot be made so.
        """
        if self.refusal is not None:
            raise UnfitError(
                f"no variant can be made of this launch line: {self.refusal.reason}",
                seen=" ".join(self.root.items)[:300],
                where=where,
                hint=self.refusal.instead,
            )
        led = (self.inner, leading) if self.inner is not None and leading else None
        named = self.container.name if self.container is not None and name else None
        replaced = (named, self.container.renamed(name)) if self.container is not None and named is not None else None
        return rebuild(self.argv, after, root=self.root, tail=self.tail, where=where, leading=led, replaced=replaced)


@dataclass(frozen=True)
class NotSeen:
    """A line in which no engine is seen."""

    refusal: Refusal


def understand(items: Sequence[str], around: Surroundings, *, dollar: bool = True) -> Launch | NotSeen:
    """Return what one Exec line starts. ``items`` is its argv as systemd loaded it; ``dollar`` False is ``:``."""
    root = Arguments("ExecStart", items=tuple(items), dollar=dollar)
    reader = _Reader(around)
    try:
        found = reader.find(argv_words(root, around.variables), (root, len(items)), _Seen(root, around.variables))
    except ValueError as error:
        return NotSeen(Refusal(f"it cannot be read: {error}", "see how the shell reads it, with sh -n"))
    if not found:
        unseen = Refusal("no engine that opsctl knows is seen in it", _ONE_SERVER)
        return NotSeen(reader.hidden[0] if reader.hidden else unseen)
    first = found[0]
    if len(found) > 1:
        reason = f"{len(found)} commands in {first.place} start an engine, and which one runs is not known before"
        return replace(first, refusal=Refusal(reason, "give each its own unit, or choose between arguments only"))
    return first


@dataclass(frozen=True)
class _Seen:
    """What was passed on the way inwards."""

    root: Arguments
    variables: Mapping[str, str | None]
    wrappers: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    inner: Word | None = None
    changed: bool = False
    """Whether the next program is the first behind a change of the environment."""
    refusal: Refusal | None = None
    container: Container | None = None

    def through(
        self, wrapper: str, environment: Iterable[str] = (), *, changes: bool, refusal: Refusal | None = None
    ) -> _Seen:
        """Return what is seen behind one more wrapper."""
        added = tuple(environment)
        known: dict[str, str | None] = dict(self.variables)
        if any(one == "-*" for one in added):
            known = {}
        for one in added:
            name, equals, value = one.partition("=")
            known[name.lstrip("-")] = value if equals else None
        return replace(
            self,
            variables=known,
            wrappers=(*self.wrappers, wrapper),
            environment=(*self.environment, *added),
            changed=self.changed or changes,
            refusal=self.refusal or refusal,
        )


Tail = tuple[Source, int]


class _Reader:
    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.hidden: list[Refusal] = []
        self._copies = 0

    def find(self, words: Sequence[Word], tail: Tail, seen: _Seen) -> list[Launch]:
        """Return every engine that an argv starts."""
        if not words or len(seen.wrappers) > _DEEPEST:
            return []
        if seen.changed and words[0] not in _BUILTINS:
            seen = replace(seen, inner=words[0], changed=False)
        engine = engine_of(words)
        if engine is not None:
            return [
                Launch(
                    engine=engine,
                    argv=tuple(words),
                    wrappers=seen.wrappers,
                    environment=seen.environment,
                    root=seen.root,
                    tail=tail,
                    inner=seen.inner,
                    refusal=seen.refusal,
                    container=seen.container,
                )
            ]
        if is_client(words[0]) or PurePosixPath(words[0]).name in COMPOSERS:
            return self._container(words, tail, seen)
        wrapped = unwrap(words)
        if wrapped is not None:
            return self._wrapped(words, wrapped, tail, seen)
        name = PurePosixPath(words[0]).name
        if name in SHELLS:
            return self._shell(words, tail, seen)
        if words[0].many or None in words[0].pieces:
            self._hide(f"the program is {words[0]}, which is known only when it runs", _ONE_SERVER)
            return []
        return self._script(words[0], words[1:], tail, seen, interpreter=None)

    def _hide(self, reason: str, instead: str) -> None:
        self.hidden.append(Refusal(reason, instead))

    def _wrapped(self, words: Sequence[Word], wrapped: Wrapped, tail: Tail, seen: _Seen) -> list[Launch]:
        wrapper, own = wrapped.wrapper, words[: wrapped.own]
        refusal = Refusal(wrapper.refused, wrapper.instead) if wrapper.refused else None
        name = PurePosixPath(words[0]).name
        if wrapper.hides:
            if name != "systemctl" or any(one in {"start", "restart"} for one in words):
                self._hide(wrapper.refused, wrapper.instead)
            return []
        if wrapped.unknown:
            self._hide(f"{name} {wrapped.unknown} splits a text into words", "write the words out, without -S")
            return []
        variables = (*wrapped.variables, *(("-*",) if name == "sudo" and not _keeps(own) else ()))
        shown = " ".join(own) if wrapped.shell is None else " ".join(own[:-1])
        deeper = seen
        if name not in _BUILTINS:
            deeper = seen.through(shown, variables, changes=wrapped.changes_environment, refusal=refusal)
        if wrapped.shell is not None:
            return self._text(words[wrapped.shell], words[wrapped.own :], tail, deeper)
        rest = words[wrapped.own :]
        if wrapper.one_text and len(rest) == 1 and " " in rest[0]:
            return self._text(rest[0], (), tail, deeper)
        return self.find(rest, tail, deeper)

    def _container(self, words: Sequence[Word], tail: Tail, seen: _Seen) -> list[Launch]:
        """Follow ``docker run …`` into its image."""
        found = container_of(words)
        if found is None:
            command = " ".join(words[:2])
            self._hide(f"{command} starts a container that it does not describe", _RUN)
            return []
        container, rest = found
        if container.name is None:
            self._hide("the container has no name, so that its processes cannot be told from others", _RUN)
            return []
        image = container.image
        # Words of the image itself stand at no place of the line: they are kept, and what is new follows the image.
        own = [make_word(one, image.source, image.end, image.end, shared=True) for one in container.entrypoint()]
        shown = f"{PurePosixPath(words[0]).name} run ({container.described})"
        # No script of the image can be read here, and the unit's environment does not go into it.
        deeper = seen.through(shown, ("-*",), changes=False)
        deeper = replace(deeper, inner=image, changed=False, container=container)
        if own and engine_of([*own, *rest]) is None:
            self._hide(f"the image's entrypoint {container.entrypoint()[0]} is no engine", _RUN)
            return []
        inside = _Reader(Surroundings())
        launches = inside.find([*own, *rest], tail, deeper)
        if not launches:
            unknown = f"what image {image} starts is not said on the line"
            self.hidden += inside.hidden or [Refusal(unknown, "write --entrypoint vllm, then the image, then serve …")]
        return [replace(launch, inner=image) for launch in launches]

    def _shell(self, words: Sequence[Word], tail: Tail, seen: _Seen) -> list[Launch]:
        """Follow ``bash -lc TEXT [NAME [ARGUMENT…]]`` or ``bash SCRIPT [ARGUMENT…]``."""
        at, text = 1, False
        if PurePosixPath(words[0]).name == "busybox":
            at = 2
        while at < len(words) and words[at][:1] in {"-", "+"} and len(words[at]) > 1:
            word = words[at]
            at += 2 if word in _SHELL_VALUES else 1
            text = text or (not word.startswith("--") and "c" in word[1:] and word not in _SHELL_VALUES)
            if word == "--":
                break
            if word not in _SHELL_VALUES and re.fullmatch(r"-\w+o", word):
                at += 1  # -euo pipefail
        if at >= len(words):
            return []
        deeper = seen.through(" ".join(words[:at]), changes=True)
        if text:
            return self._text(words[at], words[at + 2 :], tail, deeper)
        return self._script(words[at], words[at + 1 :], tail, deeper, interpreter=())

    def _text(self, word: Word, positional: Sequence[Word], tail: Tail, seen: _Seen) -> list[Launch]:
        """Follow a word that is a text for a shell."""
        name = f"the shell's text in {word.source.name}"
        if isinstance(word.source, Arguments) and not word.shared and not word.many:
            source = ShellText(name, holder=word, text=word.source.items[word.start], doubled=word.source.dollar)
        else:
            source = ShellText(name, holder=word, text=str(word))
            if None in word.pieces or word.shared:
                reason = "the shell's text itself is put together when it runs"
                refusal = Refusal(reason, "write the text in single quotes, or ExecStart= without the outer shell")
                seen = replace(seen, refusal=seen.refusal or refusal)
        return self._commands(source, positional, tail, seen)

    def _commands(self, source: ShellText, positional: Sequence[Word], tail: Tail, seen: _Seen) -> list[Launch]:
        reader = ShellReader(source, seen.variables, tuple(positional))
        found: list[Launch] = []
        for command in reader.commands():
            if command.words[0] == "eval" and re.search(r"vllm|sglang|\$", source.text):
                self._hide(f"eval in {source.name} starts what a variable holds", _ONE_SERVER)
            found += self._command(command, source, tail, seen)
        return found

    def _command(self, command: SimpleCommand, source: ShellText, tail: Tail, seen: _Seen) -> list[Launch]:
        refusal = None
        if command.loops:
            refusal = Refusal(
                f"{source.name} starts the server again in a loop, so a failed load is not seen", _ONE_SERVER
            )
        changes = (*command.environment, *command.assignments)
        inner = replace(
            seen,
            environment=(*seen.environment, *changes),
            changed=True,
            refusal=seen.refusal or refusal,
        )
        place = tail if command.arguments_end else (source, command.end)
        return self.find(command.words, place, inner)

    def _script(
        self, path: Word, arguments: Sequence[Word], tail: Tail, seen: _Seen, *, interpreter: tuple[str, ...] | None
    ) -> list[Launch]:
        """Follow a script. ``interpreter`` None: its own first line says what runs it."""
        where = str(PurePosixPath(self.around.directory or "/") / path)
        if "/" not in path and interpreter is None:
            return []
        text = self.around.read(where)
        if text is None:
            if interpreter is not None:
                self._hide(f"the script {where} cannot be read", "see that it is there, and that it is text")
            return []
        by = _interpreter(text)
        if interpreter is None and not any(PurePosixPath(one).name in SHELLS for one in by):
            self._hide(f"{where} is a program of {' '.join(by)}, which opsctl does not read", _ONE_SERVER)
            return []
        self._copies += 1
        source = Script(
            f"the script {where}",
            holder=path,
            text=text,
            path=where,
            copy=f"{self.around.copies}/{self._copies}-{PurePosixPath(where).name}",
            interpreter=by if interpreter is None else (),
        )
        deeper = seen.through(where, changes=True)
        return self._commands(source, arguments, tail, deeper)


def _keeps(own: Sequence[str]) -> bool:
    """Return whether sudo keeps the environment."""
    return any(re.fullmatch(r"-[a-zA-Z]*E[a-zA-Z]*|--preserve-env", word) for word in own)


def _interpreter(text: str) -> tuple[str, ...]:
    """Return what runs a script, by its first line; a text without one is run by sh, as execvp's callers do."""
    match = re.match(r"#!\s*(\S+)(?:[ \t]+(\S.*?))?[ \t]*(?:\n|$)", text)
    if match is None:
        return ("/bin/sh",)
    program, argument = match[1], match[2]
    if PurePosixPath(program).name == "env" and argument:
        words = argument.removeprefix("-S").split()
        return (program, *words)
    return (program, argument) if argument else (program,)

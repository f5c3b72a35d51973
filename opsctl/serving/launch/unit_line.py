"""The launch line of a unit on a host: what its files say, what systemd loaded, and what that starts. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from opsctl.deadline import Deadline
from opsctl.engines.argv import flag_name, flag_value
from opsctl.errors import CommandFailed, UnfitError, UnitNotFound
from opsctl.host.protocol import Host, UnitStatus
from opsctl.serving.launch.config_file import arguments_of
from opsctl.serving.launch.execline import ExecCommand, parse_exec, same_words
from opsctl.serving.launch.line import Launch, NotSeen, Refusal, Surroundings, understand
from opsctl.serving.launch.unitfile import Assignment, last_value, merge, specifiers, values_of

_SCRIPT_BYTES = 256 << 10
"""A script that is longer is a program of another kind."""
_HEAD_BYTES = 512
"""A program that is no text shows that in its first bytes."""
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class UnitLine:
    """A unit's commands, and the one of them that starts the engine."""

    assignments: tuple[Assignment, ...]
    """Of the fragment and the drop-ins."""
    commands: tuple[ExecCommand, ...]
    """As written, without the dash that would turn a failed load into a success."""
    loaded: tuple[tuple[str, ...], ...]
    """The argv of each, as systemd loaded it."""
    index: int
    """Which one starts the engine."""
    launch: Launch | NotSeen

    @property
    def command(self) -> ExecCommand:
        """The command that starts the engine, as written."""
        return self.commands[self.index]


def read_line(host: Host, production: UnitStatus, *, copies: str, deadline: Deadline) -> UnitLine:
    """Read a unit and find its engine. Raises UnitNotFound, UnfitError with what does not fit, HostError."""
    where = f"host {host.name}, {production.fragment_path or production.name}"
    assignments = tuple(merge(_read_unit(host, production, deadline)))
    commands, loaded = _commands(assignments, production, where)
    around = surroundings(host, production, assignments, copies=copies, deadline=deadline)
    launches = [
        understand(argv, around, dollar=not command.literal_dollar)
        for command, argv in zip(commands, loaded, strict=True)
    ]
    starting = [index for index, launch in enumerate(launches) if isinstance(launch, Launch)]
    if len(starting) > 1:
        raise UnfitError(
            f"{len(starting)} ExecStart commands of {production.name} start an engine; a server has one", where=where
        )
    index = starting[0] if starting else len(commands) - 1
    return UnitLine(assignments, commands, loaded, index, launches[index])


def launch_of(host: Host, status: UnitStatus, *, deadline: Deadline) -> Launch | NotSeen:
    """Return what a unit starts, by what systemd loaded alone: also where its files cannot be compared with that."""
    return first_launch(status, surroundings(host, status, (), copies="", deadline=deadline))


def first_launch(status: UnitStatus, around: Surroundings) -> Launch | NotSeen:
    """Return the first command of a unit that starts an engine, or why none is seen. Pure but for ``around.read``."""
    found: Launch | NotSeen = NotSeen(Refusal("the unit has no ExecStart", "see `systemctl cat`"))
    for argv in status.exec_start:
        found = understand(argv, around)
        if isinstance(found, Launch):
            break
    return found


def whole_arguments(launch: Launch, around: Surroundings) -> tuple[str, ...]:
    """Return the engine's argv with what the file of ``--config`` says, before the line's own flags, which win."""
    named = flag_value(launch.argv, "config", launch.engine.flag)
    text = around.read(str(PurePosixPath(around.directory or "/") / named)) if named else None
    if text is None:
        return launch.argv
    first = next((at for at, word in enumerate(launch.argv) if flag_name(word, launch.engine.flag)), len(launch.argv))
    return (*launch.argv[:first], *arguments_of(text), *launch.argv[first:])


def surroundings(
    host: Host, status: UnitStatus, assignments: Sequence[Assignment], *, copies: str, deadline: Deadline
) -> Surroundings:
    """Return what is known of a unit's environment, and how its scripts are read."""

    def read(path: str) -> str | None:
        try:
            data = host.read_file(path, deadline=deadline, limit=_HEAD_BYTES)
            if len(data) == _HEAD_BYTES and b"\0" not in data:
                data = host.read_file(path, deadline=deadline, limit=_SCRIPT_BYTES + 1)
        except CommandFailed:
            return None
        if len(data) > _SCRIPT_BYTES or b"\0" in data or not data:
            return None
        return data.decode(errors="surrogateescape")

    directory = last_value(assignments, "Service", "WorkingDirectory") or status.properties.get("WorkingDirectory")
    return Surroundings(
        variables=_variables(status, assignments, read),
        read=read,
        copies=copies,
        directory=str(directory or "").lstrip("-!"),
    )


def _variables(
    status: UnitStatus, assignments: Sequence[Assignment], read: Callable[[str], str | None]
) -> dict[str, str | None]:
    """Return the unit's own environment. A file that cannot be read leaves every value unknown."""
    known: dict[str, str | None] = {}
    for entry in status.environment:
        name, _, value = entry.partition("=")
        known[name] = value
    files = [*values_of(assignments, "Service", "EnvironmentFile")] or _files_loaded(status)
    for path in files:
        text = None if re.search(r"[%*?\[]", path) else read(path.lstrip("-"))
        if text is None and not path.startswith("-"):
            return dict.fromkeys(known, None)
        known |= environment_file(text or "")
    return known


def _files_loaded(status: UnitStatus) -> list[str]:
    """Return EnvironmentFile= as systemd loaded it: pairs of a path and whether it may be missing."""
    entries = status.properties.get("EnvironmentFiles")
    if not isinstance(entries, (list, tuple)):
        return []
    return [
        f"{'-' if len(entry) > 1 and entry[1] else ''}{entry[0]}"
        for entry in entries
        if isinstance(entry, (list, tuple))
    ]


def environment_file(text: str) -> dict[str, str | None]:
    """Return the variables of an EnvironmentFile (systemd.exec(5)); one that cannot be told is None."""
    found: dict[str, str | None] = {}
    for line in re.sub(r"\\\n", "", text).splitlines():
        match = _VARIABLE.fullmatch(line.strip())
        if match is None or line.lstrip().startswith(("#", ";")):
            continue
        value = match[2].strip()
        quoted = re.fullmatch(r"""(["'])((?:(?!\1).)*)\1""", value)
        if quoted:
            found[match[1]] = quoted[2] if "\\" not in quoted[2] else None
        else:
            found[match[1]] = None if re.search(r"[\"'\\]", value) else value
    return found


def _read_unit(host: Host, production: UnitStatus, deadline: Deadline) -> list[str]:
    """Return the text of the fragment and of each drop-in, in the order in which systemd applied them."""
    if production.load_state == "not-found" or not production.fragment_path:
        raise UnitNotFound(
            f"{host.name} has no unit file of {production.name}",
            seen=f"load state {production.load_state}, fragment {production.fragment_path or 'none'}",
            where=f"host {host.name}",
            hint="a variant is derived from a unit on disk; transient units have none",
        )
    if production.need_daemon_reload:
        raise UnfitError(
            f"{production.name} was edited on disk and not loaded since",
            where=f"host {host.name}, {production.fragment_path}",
            hint="look at the edit, then `systemctl daemon-reload`: a variant of a mixture would prove nothing",
        )
    paths = (production.fragment_path, *production.drop_in_paths)
    return [host.read_file(path, deadline=deadline).decode(errors="surrogateescape") for path in paths]


def _commands(
    assignments: Sequence[Assignment], production: UnitStatus, where: str
) -> tuple[tuple[ExecCommand, ...], tuple[tuple[str, ...], ...]]:
    """Return the commands as written, and their argv as loaded. They must agree, or the files are not the unit."""
    try:
        commands = [one for line in values_of(assignments, "Service", "ExecStart") for one in parse_exec(line)]
    except ValueError as error:
        raise UnfitError(f"ExecStart of {production.name} cannot be read: {error}", where=where) from error
    if not commands or len(commands) != len(production.exec_start):
        raise UnfitError(
            f"{production.name} has {len(production.exec_start)} ExecStart commands, its files {len(commands)}",
            where=where,
            hint="see `systemctl cat` and `systemctl show -p ExecStart`",
        )
    if any("@" in command.prefix for command in commands):
        raise UnfitError(
            f"{production.name} starts its program under another name (ExecStart=@…)",
            where=where,
            hint="write it without @: a variant must be able to change the command",
        )
    values = specifiers(production.name, fragment=production.fragment_path)
    for command, loaded in zip(commands, production.exec_start, strict=True):
        if not same_words(command.words, loaded, values):
            raise UnfitError(
                f"what systemd runs as {production.name} is not what its files say",
                wanted=" ".join(command.words)[:300],
                seen=" ".join(loaded)[:300],
                where=where,
                hint="see `systemctl cat` and `systemctl show -p ExecStart`",
            )
    plain = tuple(replace(command, prefix=command.prefix.replace("-", "")) for command in commands)
    return plain, production.exec_start

"""A launch line with a variant's differences, each at the place where it takes effect. Pure but for one read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from opsctl.engines import Engine
from opsctl.engines.argv import flag_name, flag_value
from opsctl.engines.base import ProfilerSwitch
from opsctl.errors import UnfitError
from opsctl.playbook.models import ArgumentEdits
from opsctl.serving.launch import config_file
from opsctl.serving.launch.arguments import differences, edit
from opsctl.serving.launch.line import Launch, NotSeen
from opsctl.serving.launch.variant_unit import is_secret
from opsctl.serving.launch.words import Copy, Files


@dataclass(frozen=True)
class Intended:
    """What the engine's own process must show, compared with production's."""

    engine: Engine
    before: tuple[str, ...] = ()
    """Production's engine, from its program on."""
    after: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    profiler: bool = False
    """Whether the routes of the profiler must exist."""
    container: tuple[str, str] | None = None
    """(client, name) of the container in which the engine runs."""


@dataclass(frozen=True)
class EditedLine:
    """The new line and what belongs to it."""

    argv: tuple[str, ...]
    """As systemd must load it."""
    files: Files
    env: Mapping[str, str]
    """What is left to be set by the unit."""
    differences: tuple[str, ...]
    intended: Intended
    renamed: tuple[str, str] | None = None
    """Production's container and the variant's, by name."""


@dataclass(frozen=True)
class Edits:
    """In what a variant differs."""

    args: ArgumentEdits
    switch: ProfilerSwitch | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """Programs and their options, put before the engine."""

    @property
    def any(self) -> bool:
        """Whether anything differs."""
        return bool(self.switch or self.args != ArgumentEdits() or self.env or self.prefix)


@dataclass(frozen=True)
class Place:
    """What is around a launch line on its host."""

    read: Callable[[str], str | None]
    """Text of a file; None where it cannot be read."""
    directory: str
    """Of the unit."""
    copies: str
    """Folder of derived files."""
    name: str
    """What the variant's container is called, where the engine runs in one."""
    trace_dir: str
    """Mounted in the container; "" where there is none."""
    where: str
    """Host and unit, for errors."""


def edit_line(
    launch: Launch | NotSeen, loaded: Sequence[str], edits: Edits, place: Place, *, engine: Engine
) -> EditedLine:
    """Return a launch line after a variant's edits. Raises UnfitError where one cannot be made so that it acts."""
    env, where = edits.env, place.where
    if isinstance(launch, NotSeen):
        if edits.any:
            raise UnfitError(
                f"no variant can be made of this launch line: {launch.refusal.reason}",
                seen=" ".join(loaded)[:300],
                where=where,
                hint=launch.refusal.instead,
            )
        return EditedLine(tuple(loaded), {}, {}, (), Intended(engine))
    words, files = _own_words(launch.argv, edits, place, engine)
    contained, traces = launch.container is not None, place.trace_dir
    mounts = ("-v", f"{traces}:{traces}") if contained and traces else ()
    inside = (*_inside(launch, env, edits.prefix, where), *mounts)
    argv, copied = launch.edited(words, where=where, leading=inside, name=place.name if contained else "")
    if not launch.own_environment:
        argv = (*(launch.root.literal(word) for word in edits.prefix), *argv)
    files = {**files, **copied}
    client = (launch.container.client, place.name) if launch.container else None
    return EditedLine(
        argv=argv,
        files=files,
        env={} if launch.own_environment else env,
        differences=_differences(
            launch, words, prefix=edits.prefix, name=place.name, mounts=mounts, files=files, engine=engine
        ),
        intended=Intended(engine, tuple(launch.argv), words, dict(env), edits.switch is not None, client),
        renamed=(launch.container.called, place.name) if launch.container else None,
    )


def _own_words(before: Sequence[str], edits: Edits, place: Place, engine: Engine) -> tuple[tuple[str, ...], Files]:
    """Return the engine's own words after the edits, and the configuration file that they need."""
    words, args, files = _config(before, edits, place, engine)
    if edits.switch is not None:
        given = [flag for flag in edits.switch.remove if flag_value(words, flag.lstrip("-"), engine.flag) is not None]
        words = (*edit(words, ArgumentEdits(remove=tuple(given)), engine, where=place.where), *edits.switch.add)
    return tuple(edit(words, args, engine, where=place.where)), files


def _differences(
    launch: Launch,
    words: Sequence[str],
    *,
    prefix: Sequence[str],
    name: str,
    mounts: Sequence[str],
    files: Files,
    engine: Engine,
) -> tuple[str, ...]:
    """Return how the line differs from production's, and where, a line each."""
    changed = differences(launch.argv, words, engine)
    if prefix:
        changed = (f"+ {' '.join(prefix)} (before the command)", *changed)
    place = () if launch.place == "ExecStart" or not changed else (f"in {launch.place}:",)
    if launch.container is not None:
        changed = (*changed, f"~ container {launch.container.called} → {name}")
        changed += (f"+ {' '.join(mounts)}",) if mounts else ()
    made = tuple(f"derived copy: {path} of {copy.original}" for path, copy in files.items())
    return (*place, *changed, *made)


def _inside(launch: Launch, env: Mapping[str, str], prefix: Sequence[str], where: str) -> tuple[str, ...]:
    """Return what is put before the engine, where what is around it may change or drop the unit's environment."""
    if not launch.own_environment:
        return ()
    if secret := [name for name in env if is_secret(name)]:
        raise UnfitError(
            f"{secret[0]} would stand in a command line, where every user of the host can read it",
            where=f"{where}, {launch.place}",
            hint="have the script or the EnvironmentFile set it, or start the server without a shell",
        )
    if launch.container is not None:
        if prefix:
            raise UnfitError(
                f"{prefix[0]} cannot be put before an engine that runs in a container",
                where=where,
                hint="leave out exec-prefix, or build it into the image",
            )
        return tuple(word for name, value in env.items() for word in ("-e", f"{name}={value}"))
    assigned = tuple(f"{name}={value}" for name, value in env.items())
    return (*(("env", *assigned) if assigned else ()), *prefix)


def _config(
    words: Sequence[str], edits: Edits, place: Place, engine: Engine
) -> tuple[tuple[str, ...], ArgumentEdits, Files]:
    """Have ``--config`` name a copy without the flags that go or are replaced, where its file sets any of them.

    Returns the words, the edits that are left for the command line, and the copy.
    """
    args, switch, where = edits.args, edits.switch, place.where
    named = flag_value(words, "config", engine.flag)
    gone = {_name(flag, engine) for flag in (*args.remove, *args.replace, *(switch.remove if switch else ()))}
    if not named or not gone:
        return tuple(words), args, {}
    path = str(PurePosixPath(place.directory or "/") / named)
    text = None if re.search(r"[$`]", named) else place.read(path)
    if text is None:
        raise UnfitError(
            f"the file of --config cannot be read, so it is not known whether it sets {', '.join(sorted(gone))}",
            seen=path,
            where=where,
            hint="name it by its absolute path, or write the flags out on the command line",
        )
    found = [name for name in config_file.names_of(text) if _name(name, engine) in gone]
    if not found:
        return tuple(words), args, {}
    copy = f"{place.copies}/config-{PurePosixPath(path).name}"
    pointed = edit(words, ArgumentEdits(replace={"--config": copy}), engine, where=where)
    in_file = {_name(name, engine) for name in found}
    on_line = {flag_name(word, engine.flag) for word in words}
    left = tuple(flag for flag in args.remove if _name(flag, engine) in on_line or _name(flag, engine) not in in_file)
    return pointed, args.model_copy(update={"remove": left}), {copy: Copy(config_file.without(text, found), path)}


def _name(flag: str, engine: Engine) -> str:
    """Return the canonical name of a flag, with or without its dashes."""
    return flag_name(flag if flag.startswith("-") else f"--{flag}", engine.flag) or flag

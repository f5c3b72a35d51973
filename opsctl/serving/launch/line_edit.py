"""A launch line with a variant's differences, each at the place where it takes effect. Pure but for one read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def edit_line(
    launch: Launch | NotSeen,
    loaded: Sequence[str],
    *,
    engine: Engine,
    args: ArgumentEdits,
    switch: ProfilerSwitch | None,
    env: Mapping[str, str],
    prefix: Sequence[str],
    read: Callable[[str], str | None],
    directory: str,
    copies: str,
    name: str,
    trace_dir: str,
    where: str,
) -> EditedLine:
    """Return a launch line after a variant's edits. Raises UnfitError where one cannot be made so that it acts.

    ``name`` is what the variant's container is called, where the engine runs in one; ``trace_dir`` is mounted there.
    """
    if isinstance(launch, NotSeen):
        if switch or args != ArgumentEdits() or env or prefix:
            raise UnfitError(
                f"no variant can be made of this launch line: {launch.refusal.reason}",
                seen=" ".join(loaded)[:300],
                where=where,
                hint=launch.refusal.instead,
            )
        return EditedLine(tuple(loaded), {}, {}, (), Intended(engine))
    before = launch.argv
    words, args, files = _config(
        before, args, switch, engine=engine, read=read, directory=directory, copies=copies, where=where
    )
    if switch is not None:
        given = [flag for flag in switch.remove if flag_value(words, flag.lstrip("-"), engine.flag) is not None]
        words = (*edit(words, ArgumentEdits(remove=tuple(given)), engine, where=where), *switch.add)
    words = edit(words, args, engine, where=where)
    mounts = ("-v", f"{trace_dir}:{trace_dir}") if launch.container is not None and trace_dir else ()
    inside = (*_inside(launch, env, prefix, where), *mounts)
    argv, copied = launch.edited(words, where=where, leading=inside, name=name if launch.container else "")
    if not launch.own_environment:
        argv = (*(launch.root.literal(word) for word in prefix), *argv)
    changed = differences(before, words, engine)
    if prefix:
        changed = (f"+ {' '.join(prefix)} (before the command)", *changed)
    place = () if launch.place == "ExecStart" or not changed else (f"in {launch.place}:",)
    client = None
    if launch.container is not None:
        client = (launch.container.client, name)
        changed = (
            *changed,
            f"~ container {launch.container.called} → {name}",
            *([f"+ {' '.join(mounts)}"] * bool(mounts)),
        )
    made = tuple(f"derived copy: {path} of {copy.original}" for path, copy in {**files, **copied}.items())
    return EditedLine(
        argv=argv,
        files={**files, **copied},
        env={} if launch.own_environment else env,
        differences=(*place, *changed, *made),
        intended=Intended(engine, tuple(before), tuple(words), dict(env), switch is not None, client),
        renamed=(launch.container.called, name) if launch.container else None,
    )


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
    words: Sequence[str],
    args: ArgumentEdits,
    switch: ProfilerSwitch | None,
    *,
    engine: Engine,
    read: Callable[[str], str | None],
    directory: str,
    copies: str,
    where: str,
) -> tuple[tuple[str, ...], ArgumentEdits, Files]:
    """Have ``--config`` name a copy without the flags that go or are replaced, where its file sets any of them.

    Returns the words, the edits that are left for the command line, and the copy.
    """
    named = flag_value(words, "config", engine.flag)
    gone = {_name(flag, engine) for flag in (*args.remove, *args.replace, *(switch.remove if switch else ()))}
    if not named or not gone:
        return tuple(words), args, {}
    path = str(PurePosixPath(directory or "/") / named)
    text = None if re.search(r"[$`]", named) else read(path)
    if text is None:
        raise UnfitError(
            f"the file of --config cannot be read, so it is not known whether it sets {', '.join(sorted(gone))}",
            seen=path,
            where=where,
            hint="name it by its whole path, or write the flags out on the command line",
        )
    found = [name for name in config_file.names_of(text) if _name(name, engine) in gone]
    if not found:
        return tuple(words), args, {}
    copy = f"{copies}/config-{PurePosixPath(path).name}"
    pointed = edit(words, ArgumentEdits(replace={"--config": copy}), engine, where=where)
    in_file = {_name(name, engine) for name in found}
    on_line = {flag_name(word, engine.flag) for word in words}
    left = tuple(flag for flag in args.remove if _name(flag, engine) in on_line or _name(flag, engine) not in in_file)
    return pointed, args.model_copy(update={"remove": left}), {copy: Copy(config_file.without(text, found), path)}


def _name(flag: str, engine: Engine) -> str:
    """Return the canonical name of a flag, with or without its dashes."""
    return flag_name(flag if flag.startswith("-") else f"--{flag}", engine.flag) or flag

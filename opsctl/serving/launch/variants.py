"""A variant: the unit that production runs now on that host, with the few differences that are measured.

It is derived from what systemd has loaded (fragment, drop-ins, and the argv that they came to), never from a
copied file that drifts; written where a reboot forgets it; and it cannot start without the lease. What
systemd then made of it must equal what was meant, argument by argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES, Engine
from opsctl.engines.argv import flag_value
from opsctl.engines.base import Switch
from opsctl.errors import CommandFailed, PreflightStop, UnfitError, UnitNotFound
from opsctl.host.guard import SLICE, holds_condition
from opsctl.host.protocol import Host, Systemd, UnitStatus
from opsctl.playbook.models import ArgumentEdits
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.launch.arguments import differences, edit
from opsctl.serving.launch.execline import ExecCommand, literal, parse_exec, same_words
from opsctl.serving.launch.unitfile import Assignment, format_unit, last_value, merge, specifiers, values_of
from opsctl.serving.launch.variant_unit import derived_assignments, environment_lines, environment_text
from opsctl.serving.profiler import ask_binary
from opsctl.serving.waits import CALL_LIMIT

WRITTEN = "Written by opsctl"
"""How a file of ours begins, so that nothing else is ever removed."""
DYNAMIC = "(dynamic)"
"""The user of a unit with DynamicUser=yes, whose name only systemd knows."""


@dataclass(frozen=True)
class Variant:
    """A unit that is to be installed. ``argv`` is what systemd must have loaded from it."""

    name: str
    unit: str
    production: str
    text: str
    argv: tuple[str, ...]
    differences: tuple[str, ...]
    """How it differs from production, a line each; values that look secret are not in it."""
    mode: int = 0o644
    trace_dir: str = ""
    user: str = ""
    """Whom the trace folder must belong to; "" is root."""
    environment_file: tuple[str, str] = ("", "")
    """(path, text) of a companion that outranks production's EnvironmentFile=; ("", "") where none is needed."""


def derive(
    host: Host,
    service: ResolvedService,
    production: UnitStatus,
    *,
    token: int,
    run: str,
    trace_dir: str = "",
    version: str | None = None,
    switch: Switch | None = None,
    deadline: Deadline | None = None,
) -> Variant:
    """Derive a variant from production as it is loaded on the host. Only reads.

    ``version`` is what production's server said of itself; the profiler's switch is chosen from it (or from
    the binary where a number does not tell, or given by ``switch``). Raises UnfitError with what does not fit.
    """
    limit = deadline or Deadline(2 * CALL_LIMIT, f"deriving {service.name}")
    where = f"host {host.name}, {production.fragment_path or production.name}"
    assignments = merge(_read_unit(host, production, limit))
    engine = ENGINES[service.engine]
    command, loaded = _command(assignments, production, where)
    words, env = loaded, dict(service.env)
    notes: tuple[str, ...] = ()
    if service.profiler is not None:
        words, switched, how = _with_profiler(
            host, engine, loaded, version=version, switch=switch, trace_dir=trace_dir, deadline=limit
        )
        env, notes = {**switched, **env}, (f"profiler: {how}",)
    edited = edit(words, _edits(service, command), engine, where=where)
    argv = (*_as_loaded(service.exec_prefix, command), *edited)
    companion = _companion(host, service, assignments, env, limit)
    traces = trace_dir if service.profiler else ""
    final = derived_assignments(
        assignments,
        # Percent signs of a loaded argv are final; its variables are still to come.
        command=replace(command, words=tuple(literal(word, dollar=False) for word in argv)),
        values=specifiers(production.name, fragment=production.fragment_path),
        # The plus sign: the lease is root's to read, whoever the server runs as.
        condition=("+" if host.entry.scope == "system" else "") + holds_condition(host.entry, token),
        env={} if companion[0] else env,
        environment_file=companion[0],
        limits=service.limits,
        trace_dir=traces,
        where=where,
    )
    limits = tuple(f"+ {key}={value}" for key, value in service.limits.items())
    return Variant(
        name=service.name,
        unit=service.unit,
        production=production.name,
        text=format_unit(final, head=_head(service, production, run)),
        argv=argv,
        differences=(*notes, *differences(loaded, argv, engine), *environment_lines(env), *limits),
        mode=_mode(host, production, limit),
        trace_dir=traces,
        user=_user(assignments),
        environment_file=companion,
    )


def _head(service: ResolvedService, production: UnitStatus, run: str) -> str:
    return (
        f"{WRITTEN} for run {run}: {service.name}, derived from {production.name}.\n"
        "It starts only while that run's lease holds, and a reboot forgets it. Edits here are lost."
    )


def install(host: Host, variant: Variant, *, systemd: Systemd, deadline: Deadline) -> None:
    """Write the unit, have systemd read it, and see that it loaded what was meant. ``systemd`` is a fenced one.

    Drop-ins that apply to the variant by a truncated name (``vllm-.service.d``) came with production already:
    they are masked, so that none acts twice. Raises PreflightStop when what was loaded differs.
    """
    folder = unit_folder(host, deadline=deadline)
    if variant.environment_file[0]:
        path, text = variant.environment_file
        host.write_file(path, text.encode(), deadline=deadline, mode=0o600)
    host.write_file(f"{folder}/{variant.unit}", variant.text.encode(), deadline=deadline, mode=variant.mode)
    if variant.trace_dir:
        _make_trace_dir(host, variant, deadline)
    systemd.daemon_reload(deadline=deadline)
    foreign = [path for path in systemd.status(variant.unit, deadline=deadline).drop_in_paths if path]
    masks = [f"{mask_folder(folder, variant.unit)}/{path.rpartition('/')[2]}" for path in foreign]
    masks = [mask for mask in masks if mask not in foreign]
    for mask in masks:
        host.write_file(mask, b"# masked by opsctl: it came with production already\n", deadline=deadline)
    if masks:
        systemd.daemon_reload(deadline=deadline)
    check_loaded(systemd, variant, deadline=deadline)


def remove(host: Host, variant_unit: str, *, systemd: Systemd, deadline: Deadline) -> None:
    """Take a variant's files away. A unit that opsctl did not write is left alone (UnfitError)."""
    folder = unit_folder(host, deadline=deadline)
    path = f"{folder}/{variant_unit}"
    try:
        head = host.read_file(path, deadline=deadline, limit=4096)
    except CommandFailed:
        return
    if not head.startswith(f"# {WRITTEN}".encode()):
        raise UnfitError(f"{path} was not written by opsctl and stays", where=f"host {host.name}")
    companion = companion_path(folder, variant_unit)
    host.run(["rm", "-rf", "--", path, mask_folder(folder, variant_unit), companion], deadline=deadline)
    systemd.daemon_reload(deadline=deadline)


def check_loaded(systemd: Systemd, variant: Variant, *, deadline: Deadline) -> UnitStatus:
    """Compare what systemd loaded with what was meant. Raises PreflightStop with both."""
    status = systemd.status(variant.unit, deadline=deadline)
    wrong = [
        *_mismatch("ExecStart", " ".join(variant.argv), [" ".join(line) for line in status.exec_start]),
        *_mismatch("Slice", SLICE, [status.slice]),
        *_mismatch("Restart", "no", [str(status.properties.get("Restart", "no"))]),
        *_mismatch("LoadState", "loaded", [status.load_state]),
    ]
    if len(status.exec_start) == 1 and status.exec_start[0] != variant.argv and not wrong:
        wrong.append("ExecStart has the same text, split into other arguments")
    conflicts = [name for name in _strings(status.properties.get("Conflicts")) if name != "shutdown.target"]
    if conflicts:
        wrong.append(f"Conflicts with {', '.join(conflicts)}: starting it would stop them")
    if not status.properties.get("ExecCondition"):
        wrong.append("no ExecCondition was loaded (systemd 243): it could start after its lease has ended")
    if wrong:
        raise PreflightStop(
            f"systemd did not load {variant.unit} as it was meant",
            wanted=f"the derived unit: {' '.join(variant.argv)[:300]}",
            seen="; ".join(wrong),
            where=f"{status.fragment_path}, drop-ins: {', '.join(status.drop_in_paths) or 'none'}",
            hint=f"see `systemctl cat {variant.unit}` and `systemd-analyze verify`",
        )
    return status


def _mismatch(name: str, wanted: str, seen: Sequence[str]) -> list[str]:
    return [] if list(seen) == [wanted] else [f"{name} is {'; '.join(seen) or 'empty'}, wanted {wanted}"]


def _strings(value: object) -> list[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []


def unit_folder(host: Host, *, deadline: Deadline) -> str:
    """Return where runtime units lie: gone at reboot by construction."""
    if host.entry.scope == "system":
        return "/run/systemd/system"
    uid = host.run(["id", "-u"], deadline=deadline.within(CALL_LIMIT, "the user's id"), become=False).text.strip()
    return f"/run/user/{uid}/systemd/user"


def mask_folder(folder: str, unit: str) -> str:
    """Return where a drop-in of the same name outranks any other of this unit, also those in /etc.

    systemd goes through its folders in order, and through full and truncated names within each: only a folder
    that comes before /etc outranks a truncated name there. Like the unit's own, a reboot forgets it.
    """
    return f"{folder}.control/{unit}.d"


def companion_path(folder: str, unit: str) -> str:
    """Return the path of a variant's own environment file; systemd reads no file of that name as a unit."""
    return f"{folder}/{unit}.opsctl-environment"


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


def _command(
    assignments: Sequence[Assignment], production: UnitStatus, where: str
) -> tuple[ExecCommand, tuple[str, ...]]:
    """Return production's one command as written, and its argv as loaded. They must agree, or the file is not it."""
    try:
        commands = [one for line in values_of(assignments, "Service", "ExecStart") for one in parse_exec(line)]
    except ValueError as error:
        raise UnfitError(f"ExecStart of {production.name} cannot be read: {error}", where=where) from error
    if len(commands) != 1 or len(production.exec_start) != 1:
        raise UnfitError(
            f"{production.name} has {len(production.exec_start)} ExecStart commands; a server has one", where=where
        )
    command, loaded = commands[0], production.exec_start[0]
    if "@" in command.prefix:
        raise UnfitError(
            f"{production.name} starts its program under another name (ExecStart=@…)",
            where=where,
            hint="write it without @: a variant must be able to change the command",
        )
    if not same_words(command.words, loaded, specifiers(production.name, fragment=production.fragment_path)):
        raise UnfitError(
            f"what systemd runs as {production.name} is not what its files say",
            wanted=" ".join(command.words)[:300],
            seen=" ".join(loaded)[:300],
            where=where,
            hint="see `systemctl cat` and `systemctl show -p ExecStart`",
        )
    # A dash would turn a failed load into a success.
    return replace(command, prefix=command.prefix.replace("-", "")), loaded


def _with_profiler(
    host: Host,
    engine: Engine,
    words: Sequence[str],
    *,
    version: str | None,
    switch: Switch | None,
    trace_dir: str,
    deadline: Deadline,
) -> tuple[tuple[str, ...], dict[str, str], str]:
    """Return (argv, environment, in words) with the profiler switched on, the way this server wants it."""
    chosen = switch or engine.profiler_switch(version)
    if chosen == "unsure":
        chosen = ask_binary(host, engine, words, deadline=deadline)
    on = engine.switch_on(chosen, trace_dir, version=version)
    given = [flag for flag in on.remove if flag_value(words, flag.lstrip("-"), engine.flag) is not None]
    kept = edit(words, ArgumentEdits(remove=tuple(given)), engine, where=f"host {host.name}")
    return (*kept, *on.add), dict(on.env), on.how


def _as_loaded(words: Iterable[str], command: ExecCommand) -> tuple[str, ...]:
    """Return what the user wrote as systemd must load it: a dollar sign of theirs is a dollar sign."""
    return tuple(word if command.literal_dollar else word.replace("$", "$$") for word in words)


def _edits(service: ResolvedService, command: ExecCommand) -> ArgumentEdits:
    """Return the user's edits, as systemd must load them."""
    args = service.args
    values = _as_loaded((str(value) for value in args.replace.values()), command)
    return ArgumentEdits(
        add=_as_loaded(args.add, command),
        remove=args.remove,
        replace=dict(zip(args.replace, values, strict=True)),
    )


def _companion(
    host: Host, service: ResolvedService, assignments: Sequence[Assignment], env: Mapping[str, str], deadline: Deadline
) -> tuple[str, str]:
    """Return the environment file that a variant needs where production has one, since files outrank Environment=."""
    if not env or not values_of(assignments, "Service", "EnvironmentFile"):
        return "", ""
    return companion_path(unit_folder(host, deadline=deadline), service.unit), environment_text(env)


def _mode(host: Host, production: UnitStatus, deadline: Deadline) -> int:
    """Return the mode of the variant's file: as closed as production's, since it holds the same environment."""
    paths = [production.fragment_path, *production.drop_in_paths]
    said = host.run(["stat", "-L", "-c", "%a", "--", *paths], deadline=deadline, check=False)
    modes = [int(word, 8) for word in said.text.split() if word.isdigit()]
    open_to_all = said.exit_status == 0 and all(mode & 0o004 for mode in modes)
    return 0o644 if open_to_all else 0o600


def _make_trace_dir(host: Host, variant: Variant, deadline: Deadline) -> None:
    """Make the run's trace folder, empty of traces, writable for the server's user."""
    owner = ["-o", variant.user] if variant.user else []
    mode = "1777" if variant.user == DYNAMIC else "0755"
    owner = [] if variant.user == DYNAMIC else owner
    host.run(["install", "-d", *owner, "-m", mode, "--", variant.trace_dir], deadline=deadline)
    old = [variant.trace_dir, "-maxdepth", "1", "-type", "f", "(", "-name", "*.pt.trace.json*"]
    host.run(["find", *old, "-o", "-name", "*profiler_out*", ")", "-delete"], deadline=deadline)


def _user(assignments: Sequence[Assignment]) -> str:
    user = last_value(assignments, "Service", "User") or ""
    dynamic = last_value(assignments, "Service", "DynamicUser") in {"yes", "true", "1", "on"}
    return DYNAMIC if dynamic else user

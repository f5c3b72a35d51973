"""A variant: the unit that production runs now on that host, with the few differences that are measured.

It is derived from what systemd has loaded (fragment, drop-ins, and the argv that they came to), never from a
copied file that drifts; written where a reboot forgets it; and it cannot start without the lease. What
systemd then made of it must equal what was meant, argument by argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.engines.base import ProfilerSwitch, Switch
from opsctl.errors import CommandFailed, PreflightStop, UnfitError
from opsctl.host.guard import SLICE, holds_condition
from opsctl.host.protocol import Host, Systemd, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.launch.containers import rename_in, stops_container
from opsctl.serving.launch.execline import ExecCommand, literal
from opsctl.serving.launch.line import Launch
from opsctl.serving.launch.line_edit import Edits, Intended, Place, edit_line
from opsctl.serving.launch.unit_line import UnitLine, read_line, surroundings
from opsctl.serving.launch.unitfile import EXEC_KEYS, Assignment, format_unit, last_value, specifiers, values_of
from opsctl.serving.launch.variant_unit import derived_assignments, environment_lines, environment_text
from opsctl.serving.launch.words import Files
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
    lines: tuple[tuple[str, ...], ...]
    """Every ExecStart, in order; ``argv`` is the one that starts the engine."""
    differences: tuple[str, ...]
    """How it differs from production, a line each; values that look secret are not in it."""
    intended: Intended
    """What the engine's process must show."""
    mode: int = 0o644
    trace_dir: str = ""
    user: str = ""
    """Whom the trace folder must belong to; "" is root."""
    environment_file: tuple[str, str] = ("", "")
    """(path, text) of a companion that outranks production's EnvironmentFile=; ("", "") where none is needed."""
    copies: Files = field(default_factory=dict)
    """Scripts and configuration files derived from production's, by the path they are written to."""


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
    folder = unit_folder(host, deadline=limit)
    copies = copies_folder(folder, service.unit)
    line = read_line(host, production, copies=copies, deadline=limit)
    around = surroundings(host, production, line.assignments, copies=copies, deadline=limit)
    on = _profiler(host, service, line, version=version, switch=switch, trace_dir=trace_dir, deadline=limit)
    traces = trace_dir if service.profiler else ""
    edits = Edits(service.args, on, {**(on.env if on else {}), **service.env}, tuple(service.exec_prefix))
    place = Place(around.read, around.directory, copies, service.unit.removesuffix(".service"), traces, where)
    made = edit_line(line.launch, line.loaded[line.index], edits, place, engine=ENGINES[service.engine])
    companion = _companion(line, made.env, companion_path(folder, service.unit))
    lines = tuple(made.argv if index == line.index else argv for index, argv in enumerate(line.loaded))
    final = derived_assignments(
        _for_container(line, made.renamed, where),
        commands=_commands(line, lines),
        values=specifiers(production.name, fragment=production.fragment_path),
        # The plus sign: the lease is root's to read, whoever the server runs as.
        condition=("+" if host.entry.scope == "system" else "") + holds_condition(host.entry, token),
        env={} if companion[0] else made.env,
        environment_file=companion[0],
        limits=service.limits,
        trace_dir=traces,
        where=where,
    )
    notes = (f"profiler: {on.how}",) if on else ()
    limits = tuple(f"+ {key}={value}" for key, value in service.limits.items())
    return Variant(
        name=service.name,
        unit=service.unit,
        production=production.name,
        text=format_unit(final, head=_head(service, production, run)),
        argv=made.argv,
        lines=lines,
        differences=(*notes, *made.differences, *environment_lines(edits.env), *limits),
        intended=made.intended,
        mode=_mode(host, production, limit),
        trace_dir=traces,
        user=_user(line.assignments),
        environment_file=companion,
        copies=made.files,
    )


def _companion(line: UnitLine, env: Mapping[str, str], path: str) -> tuple[str, str]:
    """Return (path, text) of a file for the variant's variables where production has one: it outranks Environment=."""
    if env and values_of(line.assignments, "Service", "EnvironmentFile"):
        return path, environment_text(env)
    return "", ""


def _commands(line: UnitLine, lines: Sequence[Sequence[str]]) -> list[ExecCommand]:
    """Return the unit's commands with these arguments. Percent signs of a loaded argv are final, its variables not."""
    return [
        replace(command, words=tuple(literal(word, dollar=False) for word in argv))
        for command, argv in zip(line.commands, lines, strict=True)
    ]


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
    for path, copy in variant.copies.items():
        host.write_file(path, copy.text.encode(errors="surrogateescape"), deadline=deadline, mode=0o600)
        for program in ("chown", "chmod"):
            host.run([program, f"--reference={copy.original}", "--", path], deadline=deadline)
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
    derived = (companion_path(folder, variant_unit), copies_folder(folder, variant_unit))
    host.run(["rm", "-rf", "--", path, mask_folder(folder, variant_unit), *derived], deadline=deadline)
    systemd.daemon_reload(deadline=deadline)


def check_loaded(systemd: Systemd, variant: Variant, *, deadline: Deadline) -> UnitStatus:
    """Compare what systemd loaded with what was meant. Raises PreflightStop with both."""
    status = systemd.status(variant.unit, deadline=deadline)
    wrong = [
        *_mismatch(
            "ExecStart", [" ".join(line) for line in variant.lines], [" ".join(line) for line in status.exec_start]
        ),
        *_mismatch("Slice", [SLICE], [status.slice]),
        *_mismatch("Restart", ["no"], [str(status.properties.get("Restart", "no"))]),
        *_mismatch("LoadState", ["loaded"], [status.load_state]),
    ]
    if status.exec_start != variant.lines and not wrong:
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


def _mismatch(name: str, wanted: Sequence[str], seen: Sequence[str]) -> list[str]:
    same = list(seen) == list(wanted)
    return [] if same else [f"{name} is {'; '.join(seen) or 'empty'}, wanted {'; '.join(wanted)}"]


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


def copies_folder(folder: str, unit: str) -> str:
    """Return where copies of production's scripts and configuration files lie for a variant."""
    return f"{folder}/{unit}.opsctl-copies"


def companion_path(folder: str, unit: str) -> str:
    """Return the path of a variant's own environment file; systemd reads no file of that name as a unit."""
    return f"{folder}/{unit}.opsctl-environment"


def _for_container(line: UnitLine, renamed: tuple[str, str] | None, where: str) -> tuple[Assignment, ...]:
    """Return the unit's settings with the variant's container in every line that speaks to production's.

    Raises UnfitError where the unit's stop would leave a container running.
    """
    if renamed is None:
        return line.assignments
    stops = [entry.value for entry in line.assignments if entry.key in {"ExecStop", "ExecStopPost"}]
    container = line.launch.container if isinstance(line.launch, Launch) else None
    if container is not None and container.detached and not any(stops_container(value) for value in stops):
        raise UnfitError(
            "the container is started detached, and nothing in the unit stops it",
            wanted="a stop of the unit that stops its container",
            where=where,
            hint=f"set ExecStop={container.client} stop {container.called}, or run it without -d",
        )
    return tuple(
        replace(entry, value=rename_in(entry.value, *renamed)) if entry.key in EXEC_KEYS else entry
        for entry in line.assignments
    )


def _profiler(
    host: Host,
    service: ResolvedService,
    line: UnitLine,
    *,
    version: str | None,
    switch: Switch | None,
    trace_dir: str,
    deadline: Deadline,
) -> ProfilerSwitch | None:
    """Return how the profiler is switched on the way this server wants it, None where the variant has none."""
    if service.profiler is None:
        return None
    engine = ENGINES[service.engine]
    chosen = switch or engine.profiler_switch(version)
    if chosen == "unsure":
        argv = line.launch.argv if isinstance(line.launch, Launch) else ()
        chosen = ask_binary(host, engine, [str(word) for word in argv], deadline=deadline)
    return engine.switch_on(chosen, trace_dir, version=version)


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

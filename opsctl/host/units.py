"""What systemd says of a unit, and what it is told of one, as plain Python values. Knows no binding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from opsctl.errors import HostError
from opsctl.host.protocol import TransientUnit, UnitStatus

_SUFFIXES = (
    ".service",
    ".socket",
    ".target",
    ".timer",
    ".slice",
    ".scope",
    ".path",
    ".mount",
    ".automount",
    ".device",
    ".swap",
)


# D-Bus types of the transient properties whose Python value does not tell (bool b, int t, float d, str s, list as).
_TYPES = {
    "ExecStart": "a(sasb)",
    "ExecStartPre": "a(sasb)",
    "ExecStartPost": "a(sasb)",
    "ExecStop": "a(sasb)",
    "ExecStopPost": "a(sasb)",
    "ExecCondition": "a(sasb)",
    "Nice": "i",
    "OOMScoreAdjust": "i",
    "KillSignal": "i",
    "IOSchedulingPriority": "i",
    "CPUSchedulingPolicy": "i",
    "CPUSchedulingPriority": "i",
    "UMask": "u",
}
_SIMPLE = {bool: "b", int: "t", float: "d", str: "s"}


def full_name(unit: str) -> str:
    """Return the name with its type, as systemctl completes it."""
    return unit if unit.endswith(_SUFFIXES) else f"{unit}.service"


def object_path(unit: str) -> str:
    """Return the D-Bus path of a unit: every byte but letters and digits (a leading digit too) as _xx."""
    escaped = "".join(
        chr(byte)
        if chr(byte).isascii() and chr(byte).isalnum() and not (index == 0 and chr(byte).isdigit())
        else f"_{byte:02x}"
        for index, byte in enumerate(unit.encode())
    )
    return f"/org/freedesktop/systemd1/unit/{escaped or '_'}"


def status_of(unit: str, said: Mapping[str, Any]) -> UnitStatus:
    """Return a reading from GetAll's dictionary: properties by systemd's own names."""
    return UnitStatus(
        name=str(said.get("Id") or unit),
        load_state=str(said.get("LoadState", "")),
        active_state=str(said.get("ActiveState", "")),
        sub_state=str(said.get("SubState", "")),
        result=str(said.get("Result", "")),
        main_pid=int(said.get("MainPID", 0)),
        exec_main_status=int(said.get("ExecMainStatus", 0)),
        n_restarts=int(said.get("NRestarts", 0)),
        invocation_id=bytes(said.get("InvocationID", ())).hex(),
        fragment_path=str(said.get("FragmentPath", "")),
        drop_in_paths=tuple(said.get("DropInPaths", ())),
        need_daemon_reload=bool(said.get("NeedDaemonReload", False)),
        unit_file_state=str(said.get("UnitFileState", "")),
        control_group=str(said.get("ControlGroup", "")),
        slice=str(said.get("Slice", "")),
        exec_start=tuple(tuple(line[1]) for line in said.get("ExecStart", ())),
        environment=tuple(said.get("Environment", ())),
        required_by=tuple(said.get("RequiredBy", ())),
        bound_by=tuple(said.get("BoundBy", ())),
        consists_of=tuple(said.get("ConsistsOf", ())),
        triggered_by=tuple(said.get("TriggeredBy", ())),
        properties=said,
    )


def transient_properties(unit: TransientUnit) -> dict[str, Any]:
    """Return every property of a transient unit by systemd's name; the unit's own ``properties`` win."""
    said: dict[str, Any] = {
        "Description": unit.description or unit.name,
        "Type": "exec",  # a program that cannot be started fails the job, instead of a unit that "started"
        "Slice": unit.slice,
        "RuntimeMaxUSec": round(unit.runtime_max * 1e6),
        "TimeoutStopUSec": round(unit.timeout_stop * 1e6),
        "ExecStart": (absolute(unit.argv),),
        "Environment": [f"{name}={value}" for name, value in unit.environment.items()],
    }
    if unit.working_directory:
        said["WorkingDirectory"] = unit.working_directory
    if unit.stdout_file:
        said["StandardOutputFileToAppend"] = unit.stdout_file
    if unit.stderr_file:
        said["StandardErrorFileToAppend"] = unit.stderr_file
    return said | dict(unit.properties)


def absolute(argv: Iterable[str]) -> tuple[str, ...]:
    """Return argv as systemd takes it: an absolute program (env finds others in PATH), no variable expansion."""
    program, *arguments = argv
    words = [program, *arguments] if program.startswith("/") else ["/usr/bin/env", "--", program, *arguments]
    # Of these, systemd expands $NAME in all but the first; $$ is its way of writing one dollar.
    return (words[0], *(word.replace("$", "$$") for word in words[1:]))


def dbus_typed(name: str, value: object) -> tuple[str, Any]:
    """Return a transient property's D-Bus type and the value in that shape. Raises HostError where none fits."""
    kind = _TYPES.get(name) or _SIMPLE.get(type(value))
    if kind is None and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return "as", list(value)
    if kind == "a(sasb)" and isinstance(value, (list, tuple)):
        return kind, [(argv[0], list(argv), False) for argv in value]
    if kind is None or kind == "a(sasb)":
        raise HostError(
            f"the transient property {name} cannot be sent",
            wanted="str, bool, int, float or list of str (lists of argv for Exec…)",
            seen=repr(value),
        )
    return kind, value

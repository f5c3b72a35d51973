"""Which settings of production a variant keeps, which it must not have, and which it gets. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from opsctl.errors import UnfitError
from opsctl.host.guard import SLICE
from opsctl.serving.launch.execline import ExecCommand, expand, format_exec, literal, quote_word
from opsctl.serving.launch.unitfile import EXEC_KEYS, Assignment, last_value

DROPPED: Mapping[str, str] = {
    "Conflicts": "a variant whose condition fails would still have stopped what it conflicts with (seen)",
    "OnFailure": "a variant that fails is an answer, not an alarm",
    "OnSuccess": "the same",
    "Upholds": "would start other units behind the lease's back",
    "PropagatesStopTo": "would stop other units with the variant",
    "PropagatesReloadTo": "would reload other units with the variant",
    "RefuseManualStart": "a variant is started by hand, so to speak",
    "RefuseManualStop": "and stopped",
    "StopWhenUnneeded": "nothing needs a variant",
    "SuccessAction": "may reboot the host",
    "FailureAction": "may reboot the host",
    "StartLimitAction": "may reboot the host",
    "StartLimitIntervalSec": "set to 0: opsctl starts it as often as a playbook says",
    "StartLimitInterval": "the same",
    "StartLimitBurst": "the same",
    "JobTimeoutAction": "may reboot the host",
    "SourcePath": "it is not this file's source",
    "Restart": "set to no: a loop of loads has wedged hosts",
    "RestartForceExitStatus": "the same",
    "Slice": "set to opsctl's, so that the guard stops it without a list",
    "BusName": "a bus name belongs to production",
    "Sockets": "its sockets belong to production",
    "OOMScoreAdjust": "the guard must outlive a variant",
}
"""Settings that a variant does not take over, and why."""

_OWN = frozenset(
    {
        "Restart",
        "Slice",
        "Type",
        "ExecStart",
        "ExecCondition",
        "KillMode",
        "Conflicts",
        "Environment",
        "User",
    }
)
_SETTING = re.compile(r"[A-Z][A-Za-z0-9]+")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def derived_assignments(
    production: Sequence[Assignment],
    *,
    commands: Sequence[ExecCommand],
    values: Mapping[str, str],
    condition: str,
    env: Mapping[str, str],
    environment_file: str,
    limits: Mapping[str, str],
    trace_dir: str,
    where: str,
) -> list[Assignment]:
    """Return a variant's assignments: production's own, without what is dropped, with what is added at the end.

    ``commands`` hold the words as a unit file needs them; ``values`` are production's specifiers, put in place
    of ``%n`` and its kin, since the variant's name is another. Raises UnfitError for limits that would undo
    what keeps a variant safe.
    """
    kept = [
        _resolved(entry, values)
        for entry in production
        if entry.section != "Install" and entry.key not in DROPPED and entry.key != "ExecStart"
    ]
    if not any(entry.section == "Unit" for entry in kept):
        kept.insert(0, Assignment("Unit", "Description", "A variant of production, made by opsctl"))
    settings = [
        # No empty assignment before it: that would reset production's own conditions.
        ("ExecCondition", condition),
        *(("ExecStart", format_exec(command)) for command in commands),
        *(("Environment", quote_word(f"{name}={literal(value, dollar=False)}")) for name, value in env.items()),
    ]
    if environment_file:
        settings.append(("EnvironmentFile", environment_file))
    if trace_dir and last_value(production, "Service", "ProtectSystem") not in {None, "no", "false", "0", "off"}:
        settings.append(("ReadWritePaths", quote_word(f"-{literal(trace_dir, dollar=False)}")))
    settings += [_limit(key, value, where) for key, value in limits.items()]
    if last_value(production, "Service", "KillMode") in {"process", "none"}:
        # What outlives a stop of production is known and ended; nothing of a variant may outlive its own.
        settings.append(("KillMode", "control-group"))
    settings += [("Restart", "no"), ("Slice", SLICE)]
    added = [
        Assignment("Unit", "StartLimitIntervalSec", "0"),
        *(Assignment("Service", key, value) for key, value in settings),
    ]
    return [*kept, *added]


def _resolved(entry: Assignment, values: Mapping[str, str]) -> Assignment:
    """Return an assignment in which the specifiers of production's name are filled in.

    A name may hold backslashes (``%i`` of an escaped instance), which quoting would eat: settings whose words
    are unquoted get them doubled.
    """
    unquoted = entry.key in EXEC_KEYS or entry.key in {"Environment", "PassEnvironment", "BindPaths", "ReadWritePaths"}
    if unquoted:
        values = {letter: value.replace("\\", "\\\\") for letter, value in values.items()}
    return Assignment(entry.section, entry.key, expand(entry.value, values, escape=True))


def _limit(key: str, value: str, where: str) -> tuple[str, str]:
    """Return one setting of ``limits``, which may set anything under [Service] but what keeps a variant safe."""
    if key in _OWN or key.startswith("Exec") or not _SETTING.fullmatch(key):
        raise UnfitError(
            f"limits cannot set {key}",
            wanted="a setting under [Service], such as LimitMEMLOCK: infinity",
            where=where,
            hint="arguments go to args, environment to env, a program before the server to exec-prefix",
        )
    if "\n" in value or value.endswith("\\"):
        raise UnfitError(f"the value of {key} in limits must be one line", where=where)
    return key, value


def environment_text(env: Mapping[str, str]) -> str:
    """Return variables as an EnvironmentFile holds them (systemd.exec(5)): double quotes, four escapes."""
    lines = []
    for name, value in env.items():
        escaped = re.sub(r'(["\\$`])', r"\\\1", value)
        lines.append(f'{name}="{escaped}"\n')
    return "# Written by opsctl\n" + "".join(lines)


def is_secret(name: str) -> bool:
    """Return whether a variable's name says that its value is secret."""
    return _SECRET.search(name) is not None


def environment_lines(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the difference that variables make, a line each; what looks secret is named and not shown."""
    return tuple(f"+ env {name}={'[redacted]' if is_secret(name) else value}" for name, value in env.items())

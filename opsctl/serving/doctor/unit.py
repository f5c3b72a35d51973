"""Whether a unit is fit to be taken down and brought back. Pure: what was seen in, checks out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.engines import ENGINES
from opsctl.host.protocol import UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.quantities import format_duration, format_size
from opsctl.serving.doctor.checks import Check, ok, stop, unknown, warning
from opsctl.serving.launch.line import Launch, NotSeen
from opsctl.serving.launch.processes import Process, engines_among
from opsctl.serving.launch.words import matches

FOREVER = 2**64 - 1
"""systemd's infinity."""
READY_LEAST = 3600.0


@dataclass(frozen=True)
class UnitFacts:
    """What was seen of one production unit. None: could not be seen."""

    status: UnitStatus
    launch: Launch | NotSeen | None = None
    """What its command starts."""
    processes: tuple[Process, ...] | None = None
    """Every process of the unit."""
    installed_version: str | None = None
    """Of the environment on disk."""
    running_version: str | None = None
    """What the server says of itself."""


def engine_argv(facts: UnitFacts) -> tuple[str, ...]:
    """Return the engine's argv, as far as the unit says it; without an engine, what the unit starts."""
    if isinstance(facts.launch, Launch):
        return facts.launch.argv
    return facts.status.exec_start[0] if facts.status.exec_start else ()


def judge_unit(service: ResolvedService, facts: UnitFacts) -> list[Check]:
    """Judge a production unit."""
    name = f"unit {service.unit}"
    status = facts.status
    if status.load_state != "loaded":
        hint = "see `systemctl list-unit-files`, and unit of the service in the inventory"
        return [stop(name, f"load state {status.load_state}", hint)]
    return [
        _loaded(name, status),
        _same_process(service, facts),
        _same_version(service, facts),
        *_sane(service, status),
        _timeouts(service, status),
        _dependents_of(service, status),
        *_profiled(service, status, engine_argv(facts)),
    ]


def _loaded(name: str, status: UnitStatus) -> Check:
    if status.need_daemon_reload:
        hint = "look at the edit, then `systemctl daemon-reload`: a restore would start something that never ran"
        return stop(name, "edited on disk and not loaded since", hint)
    if status.unit_file_state in {"masked", "bad"}:
        return stop(name, f"its file is {status.unit_file_state}", f"systemctl unmask {status.name}")
    if status.unit_file_state in {"disabled", "static", "indirect"}:
        return warning(name, f"{status.unit_file_state}: a reboot does not start it (the guard would, during a lease)")
    return ok(
        name, f"loaded from {status.fragment_path}, {len(status.drop_in_paths)} drop-ins, {status.unit_file_state}"
    )


def _same_process(service: ResolvedService, facts: UnitFacts) -> Check:
    name = f"process of {service.unit}"
    if not facts.status.active:
        return unknown(name, f"the unit is {facts.status.active_state}")
    if facts.processes is None or facts.launch is None:
        return unknown(name, "its processes cannot be read")
    if isinstance(facts.launch, NotSeen):
        return unknown(name, facts.launch.refusal.reason, facts.launch.refusal.instead)
    engines = engines_among(facts.processes)
    if not engines:
        renamed = next((process.cmdline[0] for process in facts.processes if process.renamed), None)
        words = f"it renamed itself to {renamed}" if renamed else "no process of the unit is the engine"
        return unknown(name, f"{words}, so its arguments cannot be compared")
    for engine in engines:
        if not matches(facts.launch.argv, engine.cmdline):
            return _other_process(name, facts.launch, engine)
        changed = _changed_environment(facts.status, facts.launch, engine)
        if changed:
            hint = "the unit's environment was edited after its start: a restore would start with another one"
            return stop(name, f"runs without this environment of its unit: {', '.join(changed)}", hint)
    return ok(name, f"pid {', '.join(str(engine.pid) for engine in engines)} runs what the unit says")


def _other_process(name: str, launch: Launch, engine: Process) -> Check:
    reason = f"runs {' '.join(engine.argv)[:200]}, the unit says {' '.join(launch.argv)[:200]}"
    if launch.own_environment:
        return unknown(name, f"{reason}; what is around it ({', '.join(launch.wrappers)}) may have changed that")
    hint = "the unit was edited after its start: restart it, or undo the edit. A restore must give back what ran"
    return stop(name, reason, hint)


def _changed_environment(status: UnitStatus, launch: Launch, engine: Process) -> list[str]:
    """Return names of the unit's variables that the engine does not have so. A file, or a shell, may override them."""
    if engine.environ is None or launch.own_environment or status.properties.get("EnvironmentFiles"):
        return []
    entries = (entry.partition("=") for entry in status.environment)
    return [name for name, _, value in entries if engine.environ.get(name) != value]


def _same_version(service: ResolvedService, facts: UnitFacts) -> Check:
    name = f"version of {service.unit}"
    if facts.running_version is None or facts.installed_version is None:
        running = facts.running_version or "unknown"
        return unknown(name, f"running {running}, on disk {facts.installed_version or 'unknown'}")
    if facts.running_version.partition("+")[0] != facts.installed_version.partition("+")[0]:
        reason = f"{facts.running_version} runs, {facts.installed_version} is installed"
        return stop(name, reason, "the environment was changed under the server: a restore would start another version")
    return ok(name, facts.running_version)


def _number(status: UnitStatus, name: str) -> int | None:
    value = status.properties.get(name)
    return value if isinstance(value, int) else None


def _sane(service: ResolvedService, status: UnitStatus) -> list[Check]:
    """Judge what facts about vLLM say of units: KillMode, Restart, LimitMEMLOCK, ready time-out."""
    found: list[Check] = []
    found += _leftovers(service, status)
    if endless := _endless_restarts(status):
        found.append(
            warning(
                f"Restart of {status.name}",
                endless,
                "set StartLimitIntervalSec= and StartLimitBurst= so that loops end",
            )
        )
    locked = _number(status, "LimitMEMLOCK")
    if locked is not None and locked < 2**40 and (service.tensor_parallel or 2) > 1:
        reason = f"LimitMEMLOCK={format_size(locked)}: NCCL and pinned memory want more"
        found.append(warning(f"LimitMEMLOCK of {status.name}", reason, "set LimitMEMLOCK=infinity"))
    variable = ENGINES[service.engine].load_limit
    ready = _environment(status, variable) if variable else None
    if variable and (ready is None or _seconds(ready) < READY_LEAST):
        reason = f"{variable} is {ready or 'not set'}: the server gives up a load that takes longer (600 s by default)"
        found.append(warning(f"ready time-out of {status.name}", reason, f"set Environment={variable}=3600"))
    return found or [ok(f"settings of {status.name}", "fit for a server that loads long, and for a clean stop")]


def _leftovers(service: ResolvedService, status: UnitStatus) -> list[Check]:
    """Judge whether processes can outlive a stop: nothing could then start in their place."""
    name, mode = f"KillMode of {status.name}", str(status.properties.get("KillMode", ""))
    spared = mode in {"process", "mixed", "none"} or status.properties.get("SendSIGKILL") is False
    if spared and not service.stop.end_leftovers:
        hint = f"set KillMode=control-group; or have opsctl end them: {service.name}: {{stop: {{end-leftovers: true}}}}"
        return [stop(name, f"KillMode={mode}: workers may outlive a stop, and keep the GPUs and the port", hint)]
    if spared:
        return [warning(name, f"KillMode={mode}: what outlives a stop is ended by opsctl (stop.end-leftovers)")]
    return []


def _endless_restarts(status: UnitStatus) -> str:
    restart = str(status.properties.get("Restart", "no"))
    interval, burst = _number(status, "StartLimitIntervalUSec"), _number(status, "StartLimitBurst")
    pause = _number(status, "RestartUSec") or 0
    if restart not in {"always", "on-failure", "on-abnormal"} or interval is None or burst is None:
        return ""
    if not interval or not burst or pause * burst >= interval:
        return f"Restart={restart} every {pause / 1e6:g} s never reaches its start limit: a crash loop never ends"
    return ""


def _environment(status: UnitStatus, name: str) -> str | None:
    values = [entry.partition("=")[2] for entry in status.environment if entry.startswith(f"{name}=")]
    return values[-1] if values else None


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _timeouts(service: ResolvedService, status: UnitStatus) -> Check:
    name = f"stop limit of {service.unit}"
    stop_usec = _number(status, "TimeoutStopUSec")
    if stop_usec is None:
        return unknown(name, "TimeoutStopSec is not given")
    if stop_usec >= FOREVER:
        return warning(
            name, "TimeoutStopSec=infinity: a hung server is only killed by opsctl", "set TimeoutStopSec=120"
        )
    seconds = stop_usec / 1e6
    if seconds > service.stop.limit:
        reason = f"TimeoutStopSec={format_duration(seconds)} outlasts stop.limit {format_duration(service.stop.limit)}"
        return warning(name, reason, "raise stop.limit of the service: opsctl would kill before systemd does")
    if seconds < 15:
        return warning(
            name, f"TimeoutStopSec={seconds:g} s is short for workers that free their GPUs", "set TimeoutStopSec=60"
        )
    return ok(name, f"TimeoutStopSec={format_duration(seconds)}")


def _dependents_of(service: ResolvedService, status: UnitStatus) -> Check:
    hung = sorted({*status.required_by, *status.bound_by, *status.consists_of, *status.triggered_by})
    services = [unit for unit in hung if not unit.endswith(".target")]
    if services:
        return warning(
            f"dependents of {service.unit}", f"{', '.join(services)} stop with it and are brought back with it"
        )
    return ok(f"dependents of {service.unit}", "no unit requires it")


def _profiled(service: ResolvedService, status: UnitStatus, argv: Sequence[str]) -> list[Check]:
    """Say when production itself runs with a profiler, or with one that would flush inside a short RPC."""
    environment = dict(entry.split("=", 1) for entry in status.environment if "=" in entry)
    concerns = ENGINES[service.engine].profiler_concerns(argv, environment)
    return [warning(f"{subject} of {service.unit}", reason, hint) for subject, reason, hint in concerns]

"""Everything that is looked at before production is touched. Reads only.

One function for ``run``, ``resume``, ``plan`` and ``doctor``: what a run would refuse, the others refuse first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from opsctl.campaign import limits
from opsctl.campaign.model_config import read_model_config
from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError, PreflightStop, TransportLost, UnitNotFound
from opsctl.estimate import Estimate
from opsctl.host import connect
from opsctl.host.dependents import Hanging, closure, runs, stoppable
from opsctl.host.guard import control
from opsctl.host.guard.control import LeaseView
from opsctl.host.protocol import Host, UnitStatus
from opsctl.plan.facts import HostFacts, IfDown, Resumed, Seen
from opsctl.playbook.inventory import LoadedInventory
from opsctl.playbook.resolved import ResolvedService
from opsctl.runs import durations
from opsctl.runs.events import Recorder
from opsctl.runs.journal import Journal
from opsctl.runs.reading import left_behind
from opsctl.serving import doctor, readiness
from opsctl.serving.doctor import Check
from opsctl.serving.probing import Answer, ProbeOutcome, not_ready
from opsctl.serving.readiness import ServingState

_LOOK = 90.0
_NEVER = {
    ProbeOutcome.UNAUTHORIZED,
    ProbeOutcome.OTHER_MODEL,
    ProbeOutcome.FOREIGN,
    ProbeOutcome.STRANGER,
    ProbeOutcome.UNTRUSTED,
}
"""What no restore mends: the inventory is wrong about this service, whatever --if-down says."""
_SEEN = {"serving": Seen.SERVING, "loading": Seen.LOADING, "down": Seen.DOWN}


@dataclass(frozen=True)
class Preflight:
    """One host, looked at."""

    host: Host
    production: ResolvedService
    found: ServingState
    facts: HostFacts
    checks: tuple[Check, ...]


@contextmanager
def connected(inventory: LoadedInventory, name: str) -> Iterator[Host]:
    """Connect to a host of the inventory for as long as the block runs. Raises HostError."""
    host = connect(name, inventory.host(name), deadline=Deadline(limits.CONNECT, f"connection to {name}"))
    try:
        yield host
    finally:
        host.close()


def look(
    host: Host,
    services: Sequence[ResolvedService],
    journal: Journal,
    *,
    if_down: IfDown = "refuse",
    kill_foreign: bool = False,
    resumed: Resumed | None = None,
) -> Preflight:
    """Look at a host and the services of a run on it, production first. A resumed run holds the host itself.

    Raises HostError when the host cannot be asked; what it finds unfit is in ``facts.refusals``.
    """
    production = services[0]
    notes: list[str] = []
    status = host.systemd().status(production.unit, deadline=_call(host, f"status of {production.unit}"))
    lease = _lease(host, notes)
    seen = {service.name: _observe(host, service) for service in services if service is production or resumed}
    found = seen[production.name]
    units = {name: _unit_state(state) for name, state in seen.items()}
    ours = resumed is not None and resumed.token is not None
    loads = durations.loads(journal, host.name)
    hanging = hanging_on(host, production.unit, before=resumed)
    # Of a host on which another campaign is at work the checks would say nothing but that.
    free = not ours and not (lease is not None and lease.live)
    checks = _checks(host, services, loads, kill_foreign=kill_foreign) if free else ()
    left = left_behind(journal, host.name)
    # If the host is held, no other check runs: the holder may have stopped production. Of a unit that does not exist
    # nothing else is true either: the checks would take production's own processes for foreign ones.
    alone = tuple(_held(host, lease, left)) or tuple(_absent(host, production, found))
    refusals = alone or (
        *_unstoppable(host, status, hanging),
        *_down(host, production, found, if_down, left),
        *_unfit(host, checks),
    )
    facts = HostFacts(
        host=host.name,
        services={name: _SEEN.get(str(state.state)) for name, state in seen.items()},
        units=units,
        engine_version=found.version or (resumed.engine_version if resumed else None),
        loads=loads,
        stops=durations.stops(journal, host.name),
        steps=durations.steps(journal, host.name),
        dependents=hanging.dependents,
        triggers=hanging.triggers,
        model_config=read_model_config(host, production),
        gpus=_gpus(host, notes),
        state_dir=host.state_dir,
        unit_hash=_unit_hash(host, status),
        holder=None if lease is None and notes else lease.describe() if lease is not None and lease.live else "",
        refusals=() if ours else refusals,
        notes=tuple(notes),
        resumed=resumed,
    )
    return Preflight(host, production, found, facts, checks)


def _absent(host: Host, production: ResolvedService, found: ServingState) -> Iterator[OpsctlError]:
    if found.status is not None and found.status.load_state == "not-found":
        yield UnitNotFound(
            f"{host.name} has no unit {production.unit}",
            wanted=f"the unit of service {production.name}",
            seen="systemd does not know it",
            where=f"{host.name} ({host.entry.scope} scope)",
            hint=f"systemctl list-unit-files on {host.name}, then services: {{{production.name}: {{unit: NAME}}}}",
        )


def _held(host: Host, lease: LeaseView | None, left: str | None) -> Iterator[OpsctlError]:
    if lease is not None and lease.live:
        yield control.held_error(host.name, lease, hint=_go_on(host, left) if left == lease.run else "")


def _unstoppable(host: Host, status: UnitStatus, hanging: Hanging) -> Iterator[OpsctlError]:
    """Refuse a production that cannot be stopped, or that is started again by what no campaign may stop."""
    if not stoppable(status):
        yield PreflightStop(
            f"{status.name} cannot be stopped by hand (RefuseManualStop=yes)",
            where=f"{status.name} on {host.name}",
            hint="a campaign has to stop production: set RefuseManualStop=no, then systemctl daemon-reload",
        )
    for unit in hanging.unstoppable:
        yield PreflightStop(
            f"{unit} would start {status.name} again in mid-campaign, and no campaign may stop it",
            seen="it is shared with other units, or cannot be stopped by hand (RefuseManualStop=)",
            where=f"{unit} on {host.name}",
            hint=f"take {status.name} out of its Upholds=, or have a service of its own uphold it",
        )


def _go_on(host: Host, left: str | None) -> str:
    """Return what to type where a run of this controller has production down and nobody at work on it."""
    return f"its controller is gone: opsctl resume {left}, or opsctl rollback {host.name}" if left else ""


def _down(
    host: Host, production: ResolvedService, found: ServingState, if_down: IfDown, left: str | None
) -> Iterator[OpsctlError]:
    if not found.serving and (if_down == "refuse" or found.problem in _NEVER):
        yield NotReadyAsFound(production, found, host, _go_on(host, left))


def _unfit(host: Host, checks: Sequence[Check]) -> Iterator[OpsctlError]:
    stops = [check for check in checks if check.verdict == "stop"]
    if stops:
        yield PreflightStop(
            f"{host.name} is not fit for a campaign: {stops[0].reason}",
            seen="; ".join(f"{check.name}: {check.reason}" for check in stops),
            where=host.name,
            hint=stops[0].hint or f"opsctl doctor {host.name}",
        )


def say(recorder: Recorder, seen: Preflight) -> None:
    """Record what a preflight saw of production and of each check."""
    journal, name, production, found = recorder.journal, seen.host.name, seen.production, seen.found
    journal.host(recorder.run, name, production=production.name, unit=production.unit)
    before = seen.facts.resumed
    if before is None or before.as_found == "unknown":
        journal.update_host(recorder.run, name, as_found=str(found.state))
    hanging = {"dependents": list(seen.facts.dependents or ()), "triggers": list(seen.facts.triggers)}
    journal.update_host(recorder.run, name, **hanging)
    if found.version is not None:
        journal.update_host(recorder.run, name, engine_version=found.version)
    recorder.say(
        "production.found",
        f"production {production.name} on {name}: {found.state} ({found.seen})",
        host=name,
        state=str(found.state),
        service=production.name,
    )
    for check in seen.checks:
        remedy = f"; {check.hint}" if check.hint and check.verdict != "ok" else ""
        words = f"{check.name}: {check.verdict}: {check.reason}{remedy}"
        recorder.say("preflight.check", words, host=name, check=check.name, verdict=str(check.verdict))
    if seen.checks and not seen.facts.refusals:
        recorder.say("preflight.passed", f"{name} is fit: {len(seen.checks)} checks", host=name)


class NotReadyAsFound(PreflightStop):
    """Production was not serving before anything was touched: a restore would have nothing to give back."""

    def __init__(self, production: ResolvedService, found: ServingState, host: Host, go_on: str = "") -> None:
        hint = (
            go_on or "mend it first; or --if-down restore (bring it up at the end) or --if-down leave (leave it down)"
        )
        if not go_on and found.status is not None and found.status.active:
            hint = f"wait until it serves; if it does already, `url` of {production.name} is wrong in the inventory"
        problem = ""
        if found.problem is not None:
            error = not_ready(host, production, Answer(found.problem, found.seen))
            problem = f": {found.problem.value}"
            hint = error.hint or hint if found.problem in _NEVER else hint
        super().__init__(
            f"production {production.name} was not serving before anything was touched{problem}",
            wanted=f"{production.unit} active and answering at {production.url} as {production.model}",
            seen=found.seen,
            where=f"{production.unit} on {host.name}",
            hint=hint,
        )


def hanging_on(host: Host, unit: str, *, before: Resumed | None = None) -> Hanging:
    """Return what stops with production and what starts it, of which the units that run: a restore brings these back.

    ``before``: an earlier controller of the run found these running, and may have stopped them. systemd forgets a unit
    that is down and wanted by nobody, and its relations with it: so they are kept, not looked up.
    """

    def status_of(name: str) -> UnitStatus:
        return host.systemd().status(name, deadline=_call(host, f"status of {name}"))

    found, known = closure(unit, status_of, wanted=runs), before or Resumed()
    return replace(
        found,
        dependents=tuple(dict.fromkeys((*known.dependents, *found.dependents))),
        triggers=tuple(dict.fromkeys((*known.triggers, *found.triggers))),
    )


def _checks(
    host: Host, services: Sequence[ResolvedService], loads: Mapping[str, Estimate], *, kill_foreign: bool
) -> tuple[Check, ...]:
    return doctor.examine(
        host,
        services,
        host.systemd(),
        deadline=Deadline(_LOOK, f"preflight of {host.name}"),
        loads=loads,
        kill_foreign=kill_foreign,
    )


def _observe(host: Host, service: ResolvedService) -> ServingState:
    return readiness.observe(host, service, deadline=Deadline(_LOOK, f"a look at {service.name}"))


def _unit_state(state: ServingState) -> str | None:
    if state.status is None:
        return None
    return "not-found" if state.status.load_state == "not-found" else state.status.active_state


def _unit_hash(host: Host, status: UnitStatus) -> str:
    """Return a hash of the unit's files as they are on the host: a resume skips only what is unchanged."""
    digest = hashlib.sha256()
    for path in (status.fragment_path, *status.drop_in_paths):
        if path:
            digest.update(path.encode() + b"\0" + host.read_file(path, deadline=_call(host, path)))
    return digest.hexdigest()


def _gpus(host: Host, notes: list[str]) -> int | None:
    """Return how many GPUs nvidia-smi lists; where it does not answer, how many the inventory says there are."""
    said = host.entry.gpus
    with _noted("GPUs: nvidia-smi did not answer", notes):
        done = host.run(["nvidia-smi", "-L"], deadline=_call(host, "nvidia-smi"), become=False)
        seen = sum(line.startswith("GPU ") for line in done.text.splitlines())
        if said is not None and said != seen:
            notes.append(f"GPUs: the inventory says {said}, nvidia-smi lists {seen}: {seen} counts")
        return seen
    return said


def _lease(host: Host, notes: list[str]) -> LeaseView | None:
    with _noted("lease", notes):
        return control.show(host, deadline=_call(host, "the lease"))
    return None


@contextmanager
def _noted(what: str, notes: list[str]) -> Iterator[None]:
    """Note what could not be found out; only a lost link is raised."""
    try:
        yield
    except TransportLost:
        raise
    except OpsctlError as error:
        notes.append(f"{what}: {error.message}")


def _call(host: Host, what: str) -> Deadline:
    return Deadline(limits.CALL, f"{what} on {host.name}")

"""Everything that is looked at before production is touched: the link, production as found, the plan of steps.

Reads only. What is found unfit here is exit 2, and nothing was touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.campaign import limits
from opsctl.campaign.definition import Definition
from opsctl.campaign.phases import PlannedPhase
from opsctl.deadline import Deadline
from opsctl.errors import PreflightStop, UnitNotFound
from opsctl.host.guard import control
from opsctl.host.guard.control import LeaseTerms
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import StepResult
from opsctl.runs import durations
from opsctl.runs.events import Recorder
from opsctl.runs.journal import controller_name
from opsctl.serving import doctor, readiness
from opsctl.serving.probing import Answer, ProbeOutcome, not_ready
from opsctl.serving.readiness import ServingState

_LOOK = 90.0
_NEVER = {ProbeOutcome.UNAUTHORIZED, ProbeOutcome.UNTRUSTED, ProbeOutcome.OTHER_MODEL, ProbeOutcome.FOREIGN}
"""What no restore mends: the inventory is wrong about this service, whatever --if-down says."""


@dataclass
class Prepared:
    """One host, looked at and found fit, with its part of the run planned to the last cell."""

    host: Host
    production: ResolvedService
    found: ServingState
    services: dict[str, ResolvedService]
    phases: tuple[PlannedPhase, ...] = ()
    dependents: tuple[str, ...] = ()
    serving: str | None = None
    touched: bool = False
    trace_dir: str = ""
    engine_version: str | None = None
    restore_wanted: bool = True
    strays: tuple[str, ...] = ()
    """Stages of an earlier controller that the playbook does not want any more; stopped first."""
    done: dict[tuple[str, str], StepResult] = field(default_factory=dict)
    """Verified steps of an earlier controller of this run, by id and hash."""

    @property
    def variants(self) -> tuple[ResolvedService, ...]:
        """Every variant that a phase wants to serve."""
        return tuple(service for service in self.services.values() if service.is_variant)


def prepare(definition: Definition, host: Host, recorder: Recorder) -> Prepared:
    """Look at a host: which unit production is, whether it serves, and what hangs on it.

    Raises UnitNotFound, PreflightStop, NotReady (wrong key, another model on the port), HostError.
    """
    production = definition.production(host.name)
    services = definition.services(host.name)
    status = host.systemd().status(production.unit, deadline=Deadline(limits.CALL, f"status of {production.unit}"))
    if status.load_state == "not-found":
        raise UnitNotFound(
            f"{host.name} has no unit {production.unit}",
            wanted=f"the unit of service {production.name}",
            seen="systemd does not know it",
            where=f"{host.name} ({host.entry.scope} scope)",
            hint=f"systemctl list-unit-files on {host.name}, then services: {{{production.name}: {{unit: NAME}}}}",
        )
    found = readiness.observe(host, production, deadline=Deadline(_LOOK, f"a look at {production.name}"))
    recorder.journal.host(recorder.run, host.name, production=production.name, unit=production.unit)
    dependents = active_dependents(host, status)
    recorder.journal.update_host(recorder.run, host.name, as_found=str(found.state), dependents=list(dependents))
    if found.version is not None:
        recorder.journal.update_host(recorder.run, host.name, engine_version=found.version)
    recorder.say(
        "production.found",
        f"production {production.name} on {host.name}: {found.state} ({found.seen})",
        host=host.name,
        state=str(found.state),
        service=production.name,
    )
    return Prepared(
        host=host,
        production=production,
        found=found,
        services=services,
        dependents=dependents,
        serving=production.name if status.active else None,
        # What was found down must be brought up, or left alone: it cannot just be verified.
        touched=not found.serving,
        restore_wanted=found.serving or definition.request.if_down != "leave",
        engine_version=found.version,
        trace_dir=f"{host.state_dir}/runs/{recorder.run}/traces",
    )


def refuse_unfit(prepared: Prepared, definition: Definition, recorder: Recorder) -> None:
    """Stop before anything is touched: somebody else's lease, production that was down before, what the checks say."""
    production, found, host = prepared.production, prepared.found, prepared.host
    control.refuse_held(host, deadline=Deadline(limits.CALL, f"the lease on {host.name}"))
    if not found.serving and (definition.request.if_down == "refuse" or found.problem in _NEVER):
        raise NotReadyAsFound(production, found, host)
    checks = doctor.examine(
        host,
        tuple(prepared.services.values()),
        host.systemd(),
        deadline=Deadline(_LOOK, f"preflight of {host.name}"),
        loads=durations.loads(recorder.journal, prepared.host.name),
        kill_foreign=definition.request.kill_foreign,
    )
    for check in checks:
        remedy = f"; {check.hint}" if check.hint and check.verdict != "ok" else ""
        recorder.say(
            "preflight.check",
            f"{check.name}: {check.verdict}: {check.reason}{remedy}",
            host=host.name,
            check=check.name,
            verdict=str(check.verdict),
        )
    stops = [check for check in checks if check.verdict == "stop"]
    if stops:
        raise PreflightStop(
            f"{host.name} is not fit for a campaign: {stops[0].reason}",
            seen="; ".join(f"{check.name}: {check.reason}" for check in stops),
            where=host.name,
            hint=stops[0].hint or f"opsctl doctor {host.name}",
        )
    recorder.say("preflight.passed", f"{host.name} is fit: {len(checks)} checks", host=host.name)


class NotReadyAsFound(PreflightStop):
    """Production was not serving before anything was touched: a restore would have nothing to give back."""

    def __init__(self, production: ResolvedService, found: ServingState, host: Host) -> None:
        hint = "mend it first; or --if-down restore (bring it up at the end) or --if-down leave (leave it down)"
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


def active_dependents(host: Host, production: UnitStatus) -> tuple[str, ...]:
    """Return the units that stop with production and run now: a restore must bring these back too."""
    names = sorted({*production.required_by, *production.bound_by, *production.consists_of, *production.triggered_by})
    statuses = (host.systemd().status(name, deadline=Deadline(limits.CALL, f"status of {name}")) for name in names)
    return tuple(
        status.name for status in statuses if status.active and not status.name.endswith((".target", ".slice"))
    )


def lease_terms(prepared: Prepared, run: str, ttl: float) -> LeaseTerms:
    """Return what the guard must know to bring production back without us."""
    production = prepared.production
    return LeaseTerms(
        run=run,
        holder=controller_name(),
        ttl=ttl,
        service=production if prepared.restore_wanted else None,
        dependents=prepared.dependents,
        alert=prepared.host.entry.alert,
    )

"""Is this host fit to have its production taken down and brought back? Every answer with its reason.

``examine`` looks, without touching anything; the modules beside it judge what was seen, and are pure. A look
that fails is an unknown check, never a passed one; only the loss of the link is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from opsctl.deadline import Deadline
from opsctl.errors import HostRebooted, OpsctlError, TransportLost, UnfitError
from opsctl.estimate import Estimate
from opsctl.host.guard import control
from opsctl.host.protocol import Host, Systemd
from opsctl.playbook.models import Role
from opsctl.playbook.resolved import ResolvedService
from opsctl.redaction import redact
from opsctl.serving.doctor import looking
from opsctl.serving.doctor.checks import Check, Verdict, ok, stop, unknown, warning
from opsctl.serving.doctor.gpu import judge_gpus, judge_topology
from opsctl.serving.doctor.place import (
    judge_fence,
    judge_kernel_log,
    judge_model,
    judge_port,
    judge_python,
    judge_space,
    judge_tools,
)
from opsctl.serving.doctor.reloads import container_scope, judge_reloads
from opsctl.serving.doctor.unit import engine_argv, judge_unit
from opsctl.serving.launch import variants

TEMPORARY = "/tmp"  # noqa: S108 - the host's, where vLLM writes traces before they are compressed

__all__ = ["Check", "Verdict", "examine", "worst"]


def examine(
    host: Host,
    services: Sequence[ResolvedService],
    systemd: Systemd,
    *,
    deadline: Deadline,
    loads: Mapping[str, Estimate] | None = None,
    kill_foreign: bool = False,
) -> tuple[Check, ...]:
    """Look at a host and at the services on it. ``loads`` are the times of earlier loads, by service.

    Raises TransportLost and HostRebooted only.
    """
    production = [service for service in services if service.role is Role.PRODUCTION]
    variants = [service for service in services if service.role is Role.VARIANT]
    ranks = max((service.tensor_parallel or 0 for service in production), default=0) or None

    def gpus() -> list[Check]:
        seen = looking.gpus(host, deadline)
        scopes = looking.container_scopes(host, production, systemd, deadline)
        ours = [*(service.unit for service in services), "opsctl-*", *scopes]
        holding = sorted({process.unit for process in seen.processes if container_scope(process.unit)})
        return [
            *judge_gpus(
                seen.reading, seen.processes, ours=ours, ranks=ranks, kill_foreign=kill_foreign, all_seen=seen.all_seen
            ),
            *([judge_topology(looking.topology(host, deadline), len(seen.reading.gpus))] if seen.reading.gpus else []),
            *judge_reloads(looking.device_rules(host, holding, deadline)),
        ]

    def place() -> list[Check]:
        profiled = any(service.profiler for service in variants)
        spaces = looking.spaces(host, (host.state_dir, TEMPORARY), deadline)
        return [
            *judge_space(spaces, state_dir=host.state_dir, temporary=TEMPORARY, ranks=ranks or 1, profiled=profiled),
            *judge_kernel_log(looking.kernel_log(host, deadline)),
            *judge_tools(looking.tools(host, deadline)),
        ]

    def fence() -> list[Check]:
        return [judge_fence(control.try_fence(host, deadline=deadline.within(30.0, "trying the fence")))]

    def python() -> list[Check]:
        return [judge_python(host.name, host.entry.python, *looking.python(host, deadline))]

    checks = [*_try("gpus", gpus), *_try("disk and kernel", place), *_try("python", python), *_try("fence", fence)]
    for service in production:
        checks += _certificate(service)
        checks += _try(f"unit {service.unit}", partial(_unit, host, service, systemd, deadline))
        checks.append(_load_time((loads or {}).get(service.name), service))
    for service in variants:
        of = next((one for one in production if one.name == service.of), None)
        checks += _try(f"variant {service.name}", partial(_variant, host, service, of, systemd, deadline))
    return tuple(replace(check, reason=redact(check.reason), hint=redact(check.hint)) for check in checks)


def worst(checks: Sequence[Check]) -> Verdict:
    """Return the verdict that stands for all: stop, else warning, else unknown, else ok."""
    present = {check.verdict for check in checks}
    return next((one for one in (Verdict.STOP, Verdict.WARNING, Verdict.UNKNOWN) if one in present), Verdict.OK)


def _try(name: str, look: Callable[[], list[Check]]) -> list[Check]:
    try:
        return look()
    except (TransportLost, HostRebooted):
        raise
    except OpsctlError as error:
        return [unknown(name, f"could not be looked at: {error.message}", error.hint or "")]


def _unit(host: Host, service: ResolvedService, systemd: Systemd, deadline: Deadline) -> list[Check]:
    facts = looking.unit(host, service, systemd, deadline)
    checks = judge_unit(service, facts)
    if facts.status.load_state == "loaded":
        held = looking.holder(host, service, facts.status.control_group, deadline)
        checks.append(judge_port(service, held, active=facts.status.active))
        model, available = looking.model(host, engine_argv(facts), deadline)
        if model is not None:
            checks.append(judge_model(model, available=available))
        checks += looking.key_file(host, service, deadline)
    return checks


def _certificate(service: ResolvedService) -> list[Check]:
    if service.verify or not service.url.startswith("https:"):
        return []
    reason = f"verify: false: whoever answers at {service.url} gets the API key and counts as production"
    hint = f"set ca-file of {service.name} to the certificate that signed the server's"
    return [Check(f"certificate of {service.name}", Verdict.WARNING, reason, hint, alarming=True)]


def _variant(
    host: Host, service: ResolvedService, of: ResolvedService | None, systemd: Systemd, deadline: Deadline
) -> list[Check]:
    """Derive a variant as a run would, without writing it; the version's own question costs a run alone."""
    checks = _program(host, service, deadline)
    if of is None:
        return checks
    name = f"launch line of {service.name}"
    status = systemd.status(of.unit, deadline=deadline)
    try:
        found = variants.derive(host, service, status, token=0, run="none", switch="argument", deadline=deadline)
    except UnfitError as error:
        return [*checks, stop(name, "; ".join(filter(None, (error.message, error.seen))), error.hint or "")]
    place = next((line for line in found.differences if line.startswith("in ")), "in ExecStart:")
    return [*checks, ok(name, f"its differences can be put {place.rstrip(':')}")]


def _program(host: Host, service: ResolvedService, deadline: Deadline) -> list[Check]:
    if not service.exec_prefix:
        return []
    name, program = f"variant {service.name}", service.exec_prefix[0]
    if looking.has_program(host, program, deadline):
        return [ok(name, f"{program} is on the host")]
    return [warning(name, f"{program} is not on the host", f"install it, or leave out exec-prefix of {service.name}")]


def _load_time(estimate: Estimate | None, service: ResolvedService) -> Check:
    name = f"load time of {service.name}"
    if estimate is None:
        return unknown(name, "no earlier load of it on this host")
    if estimate.slowest > service.readiness.limit:
        reason = f"{estimate}, the slowest beyond readiness.limit"
        return warning(name, reason, f"raise readiness.limit of {service.name}")
    return ok(name, str(estimate))

"""One look at a service: serving, loading, down, or unknown. Unknown is never shown as good."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from opsctl.deadline import Deadline
from opsctl.errors import HostError, NotReady
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.listening import Holding
from opsctl.serving.probing import Answer, ProbeOutcome, ServerProbe, request_limit, stranger
from opsctl.serving.unitstate import active_seconds, describe_unit
from opsctl.serving.waits import evidence


class Serving(StrEnum):
    """What a server was seen to do, in one look."""

    SERVING = "serving"
    LOADING = "loading"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ServingState:
    """One look at a service. ``problem`` is the outcome that was not good, where the server was asked."""

    state: Serving
    seen: str
    status: UnitStatus | None = None
    version: str | None = None
    models: tuple[str, ...] = ()
    problem: ProbeOutcome | None = None
    evidence: tuple[Evidence, ...] = ()

    @property
    def serving(self) -> bool:
        """Whether tokens were seen."""
        return self.state is Serving.SERVING


def observe(host: Host, service: ResolvedService, *, deadline: Deadline) -> ServingState:
    """Look once at a service. A server that is down is an answer, not an error; what cannot be seen is unknown."""
    try:
        status = host.systemd().status(service.unit, deadline=deadline)
    except HostError as error:
        return ServingState(Serving.UNKNOWN, f"{service.unit} could not be read: {error.message}")
    if status.load_state == "not-found":
        return ServingState(Serving.DOWN, f"{host.name} has no unit {service.unit}", status)
    if not status.active:
        kind = Serving.LOADING if status.active_state in {"activating", "reloading"} else Serving.DOWN
        return ServingState(kind, describe_unit(status), status)
    try:
        return _ask_once(host, service, status, deadline)
    except HostError as error:
        return ServingState(Serving.UNKNOWN, f"{service.url} could not be asked: {error.message}", status)
    except NotReady as error:
        return ServingState(Serving.UNKNOWN, error.message, status, problem=ProbeOutcome.UNAUTHORIZED)


def _ask_once(host: Host, service: ResolvedService, status: UnitStatus, deadline: Deadline) -> ServingState:
    probe = ServerProbe(host, service, deadline=deadline)
    try:
        listed = probe.models(limit=request_limit(service, deadline, most=10.0))
        names = listed.data if isinstance(listed.data, tuple) else ()
        if not listed.good:
            kind = _unlisted(host, service, status, listed, deadline)
            return ServingState(kind, f"{describe_unit(status)}; {listed.seen}", status, None, names, listed.outcome)
        version = probe.version(limit=request_limit(service, deadline, most=10.0))
        answer = probe.completion(limit=request_limit(service, deadline))
        held = probe.holder()
    finally:
        probe.close()
    proofs = (
        evidence(f"systemd: state of {service.unit}", describe_unit(status)),
        evidence("GET /v1/models", listed.seen),
        evidence("POST /v1/completions", answer.seen),
        evidence(f"who listens at {service.url}", held.seen),
    )
    if held.holding is Holding.OTHER:
        answer = stranger(held)
    if answer.good:
        return ServingState(Serving.SERVING, answer.seen, status, version, names, None, proofs)
    seen = f"{describe_unit(status)}; {answer.seen}"
    return ServingState(Serving.UNKNOWN, seen, status, version, names, answer.outcome, proofs)


def _unlisted(host: Host, service: ResolvedService, status: UnitStatus, answer: Answer, deadline: Deadline) -> Serving:
    """Say what an active unit is that does not list its model: loading, unless it has had the time to be up."""
    if answer.outcome not in {ProbeOutcome.REFUSED, ProbeOutcome.BUSY}:
        return Serving.UNKNOWN
    age = active_seconds(host, status, deadline=deadline)
    return Serving.LOADING if age <= service.readiness.limit else Serving.DOWN

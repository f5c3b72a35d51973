"""When a model server serves: what is asked, in which order, and every way in which the wait ends.

Serving means: the unit is active and settled, it was not restarted, ``/v1/models`` lists the served name, and
real completions with tokens came N times in a row (``/health`` is 200 with dead workers: facts of vLLM). The
wait for it ends in ``Ready``, or at once in an error that says why it never will.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from opsctl.deadline import Deadline
from opsctl.engines.phases import LoadPhase
from opsctl.errors import CommandFailed, NotReady
from opsctl.host.outage import ride_out
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.listening import Holding, PortHolder
from opsctl.serving.load.progress import LoadProgress
from opsctl.serving.load.stalls import StallLimits
from opsctl.serving.load.waiting import Load
from opsctl.serving.observation import Serving, ServingState, observe
from opsctl.serving.probing import ProbeOutcome, ServerProbe, not_ready, request_limit, stranger
from opsctl.serving.unitstate import active_seconds, active_status, describe_unit
from opsctl.serving.waits import CALL_LIMIT, evidence, never, pause

__all__ = ["Ready", "Serving", "ServingState", "await_ready", "journal_mark", "observe", "verify_serving"]


@dataclass(frozen=True)
class Ready:
    """A server that serves, and what proves it. ``seconds`` and ``phases`` are those of the wait."""

    evidence: tuple[Evidence, ...]
    version: str | None
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    invocation_id: str = ""
    n_restarts: int = 0
    held: PortHolder | None = None
    """Who held the port after the completions."""

    @property
    def load_known(self) -> bool:
        """Whether ``seconds`` are those of a load of this very service, so that later loads may be held against them.

        Its own unit, or who was there when the lease was armed, has the socket; or, where that cannot be judged, the
        unit's own log showed the weights, and the server named its version.
        """
        if self.held is not None and self.held.holding.proven:
            return True
        unknown = self.held is not None and self.held.holding is Holding.UNKNOWN
        return unknown and self.version is not None and LoadPhase.WEIGHTS in self.phases


def journal_mark(host: Host, service: ResolvedService, *, deadline: Deadline) -> str | None:
    """Return the journal's cursor of now, to be taken before a start; None where the journal cannot be read."""
    try:
        return host.journal(service.unit, after=None, deadline=deadline.within(CALL_LIMIT, "the journal")).cursor
    except CommandFailed:
        return None


def await_ready(
    host: Host,
    service: ResolvedService,
    *,
    deadline: Deadline,
    started: UnitStatus | None,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
    cancelled: Callable[[], bool] = never,
    journal_after: str | None = None,
    stalls: StallLimits | None = None,
) -> Ready:
    """Wait until a service that was just started serves.

    ``started`` is its status right after the start (restarts are counted from it); ``journal_after`` the
    ``journal_mark`` of before. ``on_progress`` is called when something moved, and once a second.

    Raises LoadFailed (it died, crash loop, fatal line), LoadStalled (nothing moved for longer than its phase
    may take), NotReady (key refused, something else on the port, another model), DeadlineExceeded,
    Interrupted, HostRebooted, and TransportLost once the link's own budget is spent.
    """
    with Load(
        host,
        service,
        deadline=deadline,
        started=started,
        on_progress=on_progress,
        cancelled=cancelled,
        journal_after=journal_after,
        stalls=stalls or StallLimits.for_service(service),
    ) as load:
        load.run()
        status = load.status
    return Ready(
        load.evidence, load.version, load.seconds, load.phases, status.invocation_id, status.n_restarts, load.held
    )


def verify_serving(
    host: Host,
    service: ResolvedService,
    *,
    deadline: Deadline,
    cancelled: Callable[[], bool] = never,
) -> Ready:
    """Prove that a server that should be serving does: the same questions as after a load, without patience for one.

    Completions that fail because the server is busy are asked again until the deadline. Raises NotReady
    with what was seen, UnitNotFound, HostError.
    """
    began = time.monotonic()
    before = ride_out(host, lambda: active_status(host, service.unit, deadline=deadline), deadline=deadline)
    probe = ride_out(host, lambda: ServerProbe(host, service, deadline=deadline), deadline=deadline)
    try:
        proofs = [evidence(f"systemd: state of {service.unit}", describe_unit(before))]
        listed = probe.models(limit=request_limit(service, deadline))
        if not listed.good:
            raise not_ready(host, service, listed)
        proofs.append(evidence("GET /v1/models", listed.seen))
        proofs += _completions(host, service, probe, deadline, cancelled)
        version = probe.version(limit=min(10.0, request_limit(service, deadline)))
        held = ride_out(host, probe.holder, deadline=deadline)
        if held.holding is Holding.OTHER:
            raise not_ready(host, service, stranger(held))
        proofs.append(evidence(f"who listens at {service.url}", held.seen))
    finally:
        probe.close()
    age = ride_out(host, lambda: active_seconds(host, before, deadline=deadline), deadline=deadline)
    settling = service.readiness.settle - age - (time.monotonic() - began)
    pause(max(0.0, settling), deadline=deadline, cancelled=cancelled, what=f"verifying {service.name}")
    after = ride_out(host, lambda: active_status(host, service.unit, deadline=deadline), deadline=deadline)
    if (after.invocation_id, after.n_restarts) != (before.invocation_id, before.n_restarts):
        raise NotReady(
            f"{service.unit} was restarted while it was being verified",
            seen=f"{describe_unit(before)}, then {describe_unit(after)}",
            where=f"host {host.name}",
            hint=f"journalctl -u {service.unit}",
        )
    proofs.append(evidence("systemd: the same process after the completions", describe_unit(after)))
    return Ready(tuple(proofs), version, time.monotonic() - began, {}, after.invocation_id, after.n_restarts, held)


def _completions(
    host: Host,
    service: ResolvedService,
    probe: ServerProbe,
    deadline: Deadline,
    cancelled: Callable[[], bool],
) -> list[Evidence]:
    """Ask until enough completions came in a row; a busy server is asked again, any other fault is final."""
    proofs: list[Evidence] = []
    while len(proofs) < service.readiness.completions:
        answer = probe.completion(limit=request_limit(service, deadline))
        if answer.good:
            proofs.append(evidence("POST /v1/completions", answer.seen))
        elif answer.outcome in {ProbeOutcome.BUSY, ProbeOutcome.CROWDED} and deadline.remaining() > 1:
            proofs.clear()
            pause(0.5, deadline=deadline, cancelled=cancelled, what=f"verifying {service.name}")
        else:
            raise not_ready(host, service, answer)
    return proofs

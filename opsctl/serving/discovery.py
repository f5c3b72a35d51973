"""What a host serves, found by looking: units whose command line starts a model server, and what they answer.

Reads only. For ``opsctl init``; a campaign never guesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES, recognise
from opsctl.errors import OpsctlError
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.probing import ProbeOutcome, ServerProbe

_CALL = 15.0
_ANYWHERE = {"0.0.0.0", "::", "[::]", ""}  # noqa: S104 - what a server binds to, not what we bind to
_MOST_UNITS = 400


@dataclass(frozen=True)
class FoundServer:
    """A unit that starts a model server, as its command line says, and what the server answered."""

    unit: str
    engine: str
    """Name of the engine, as the inventory spells it."""
    active: bool
    url: str
    model: str
    tensor_parallel: int
    python: str | None = None
    """The Python beside the server's own program, where one was found."""
    answered: str = ""
    """What /v1/models said, in words."""
    serving: bool = False
    needs_key: bool = False


@dataclass(frozen=True)
class HostFound:
    """All that was found on a host. ``notes`` says what could not be found, and why."""

    servers: tuple[FoundServer, ...]
    gpus: int | None
    notes: tuple[str, ...] = field(default=())


def discover(host: Host, *, deadline: Deadline) -> HostFound:
    """Look at every service unit of a host. Raises HostError when the host cannot be asked at all."""
    notes: list[str] = []
    systemd = host.systemd()
    units = systemd.list_units("*.service", deadline=deadline.within(_CALL, "the list of units"))
    servers = []
    for listed in units[:_MOST_UNITS]:
        status = systemd.status(listed.name, deadline=deadline.within(_CALL, f"status of {listed.name}"))
        found = server_of(status)
        if found is not None:
            servers.append(_asked(host, found, deadline))
    if len(units) > _MOST_UNITS:
        notes.append(f"only {_MOST_UNITS} of {len(units)} units were looked at")
    if not servers:
        known = ", ".join(engine.title for engine in ENGINES.values())
        notes.append(f"no unit's command line starts a server that is known ({known}): write the service by hand")
    return HostFound(tuple(servers), _gpus(host, deadline, notes), tuple(notes))


def server_of(status: UnitStatus) -> FoundServer | None:
    """Return the model server that a unit's command line starts, or None. Pure."""
    for argv in status.exec_start:
        engine = recognise(argv)
        launch = engine.launch(argv) if engine else None
        if engine is None or launch is None:
            continue
        address = "127.0.0.1" if (launch.address or "") in _ANYWHERE else launch.address
        return FoundServer(
            unit=status.name,
            engine=engine.name,
            active=status.active,
            url=f"http://{address}:{launch.port}",
            model=launch.model,
            tensor_parallel=launch.tensor_parallel,
            python=launch.python,
        )
    return None


def _asked(host: Host, found: FoundServer, deadline: Deadline) -> FoundServer:
    """Return the server with what it answered. Nothing is sent to one that does not run."""
    if not found.active:
        return found
    service = ResolvedService(
        name=found.unit, host=host.name, unit=found.unit, url=found.url, model=found.model, engine=found.engine
    )
    probe = ServerProbe(host, service, deadline=deadline.within(_CALL, f"a question to {found.unit}"))
    try:
        answer = probe.models(limit=_CALL)
    finally:
        probe.close()
    names = answer.data if answer.outcome in {ProbeOutcome.GOOD, ProbeOutcome.OTHER_MODEL} else ()
    return FoundServer(
        unit=found.unit,
        engine=found.engine,
        active=True,
        url=found.url,
        model=names[0] if answer.outcome is ProbeOutcome.OTHER_MODEL and names else found.model,
        tensor_parallel=found.tensor_parallel,
        python=found.python,
        answered=answer.seen,
        serving=bool(names),
        needs_key=answer.outcome is ProbeOutcome.UNAUTHORIZED,
    )


def _gpus(host: Host, deadline: Deadline, notes: list[str]) -> int | None:
    try:
        done = host.run(["nvidia-smi", "-L"], deadline=deadline.within(_CALL, "nvidia-smi"), become=False)
    except OpsctlError as error:
        notes.append(f"the number of GPUs: {error.message}")
        return None
    return sum(line.startswith("GPU ") for line in done.text.splitlines())

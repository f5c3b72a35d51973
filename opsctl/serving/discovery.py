"""What a host serves, found by looking: units whose command line starts a model server, and what they answer.

Reads only. For ``opsctl init``; a campaign never guesses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from opsctl.deadline import Deadline
from opsctl.engines import ENGINES
from opsctl.engines.argv import flag_value
from opsctl.errors import HostError, OpsctlError
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.launch.line import Launch, NotSeen, Surroundings
from opsctl.serving.launch.processes import engine_processes
from opsctl.serving.launch.unit_line import first_launch, surroundings, whole_arguments
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
    understood: str = ""
    """Where and behind what its engine is started, in words."""
    refused: str = ""
    """Why no variant can be made of it, and what to write instead; "" where one can."""


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
        # A distribution's own units start no model server: their programs are not read.
        vendor = status.fragment_path.startswith(("/usr/lib/", "/lib/"))
        limit = deadline.within(_CALL, f"the launch line of {listed.name}")
        around = None if vendor else surroundings(host, status, (), copies="", deadline=limit)
        found = server_of(status, around)
        if found is not None:
            servers.append(_asked(host, found, deadline))
    if len(units) > _MOST_UNITS:
        notes.append(f"only {_MOST_UNITS} of {len(units)} units were looked at")
    if not servers:
        known = ", ".join(engine.title for engine in ENGINES.values())
        notes.append(f"no unit's launch line starts a server that is known ({known}): see docs/launch-lines.md")
    return HostFound(tuple(servers), _gpus(host, deadline, notes), tuple(notes))


def server_of(status: UnitStatus, around: Surroundings | None = None) -> FoundServer | None:
    """Return the model server that a unit starts, or None. Pure but for what ``around`` reads."""
    around = around or Surroundings()
    launch = first_launch(status, around)
    said = None if isinstance(launch, NotSeen) else launch.engine.launch(whole_arguments(launch, around))
    if isinstance(launch, NotSeen) or said is None:
        return None
    address, port = said.address or "", str(said.port)
    if launch.container is not None:
        address, port = "", launch.container.host_port(port)
    return FoundServer(
        unit=status.name,
        engine=launch.engine.name,
        active=status.active,
        url=f"http://{'127.0.0.1' if address in _ANYWHERE else address}:{port}",
        model=said.model,
        tensor_parallel=said.tensor_parallel,
        python=said.python or _activated(launch),
        understood=describe(launch),
        refused=f"{launch.refusal.reason}: {launch.refusal.instead}" if launch.refusal else "",
    )


def describe(launch: Launch) -> str:
    """Return in words where a unit's engine is started, and what stands around it."""
    words = f"started in {launch.place}"
    if launch.container is not None:
        words += f" in {launch.container.described}"
    elif launch.wrappers:
        words += f", behind {', '.join(launch.wrappers)}"
    if named := flag_value(launch.argv, "config", launch.engine.flag):
        words += f"; more arguments in {named}"
    return " ".join(words.split())


def _activated(launch: Launch) -> str | None:
    """Return the Python of an environment that the launch line activates."""
    found = (re.fullmatch(r"reads (/\S+/bin)/activate", change) for change in launch.environment)
    return next((f"{match[1]}/python" for match in found if match), None)


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
    return replace(
        found,
        model=names[0] if answer.outcome is ProbeOutcome.OTHER_MODEL and names else found.model,
        python=_running_python(host, found.unit, deadline) or found.python,
        answered=answer.seen,
        serving=bool(names),
        needs_key=answer.outcome is ProbeOutcome.UNAUTHORIZED,
    )


def _running_python(host: Host, unit: str, deadline: Deadline) -> str | None:
    """Return the Python that a unit's engine runs with, where its process shows it."""
    try:
        engines = engine_processes(host, unit, deadline=deadline.within(_CALL, f"the processes of {unit}"))
    except HostError:
        return None
    return next((one.cmdline[0] for one in engines if re.fullmatch(r"/\S*/python[\d.]*", one.cmdline[0])), None)


def _gpus(host: Host, deadline: Deadline, notes: list[str]) -> int | None:
    try:
        done = host.run(["nvidia-smi", "-L"], deadline=deadline.within(_CALL, "nvidia-smi"), become=False)
    except OpsctlError as error:
        notes.append(f"the number of GPUs: {error.message}")
        return None
    return sum(line.startswith("GPU ") for line in done.text.splitlines())

"""What a host serves, found by looking: units whose command line starts a model server, and what they answer.

Reads only. For ``opsctl init``; a campaign never guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError
from opsctl.host.protocol import Host, UnitStatus
from opsctl.playbook.models import Engine
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.launch.arguments import flag_value
from opsctl.serving.probing import ProbeOutcome, ServerProbe

_CALL = 15.0
_PORTS = {Engine.VLLM: 8000, Engine.SGLANG: 30000}
_ANYWHERE = {"0.0.0.0", "::", "[::]", ""}  # noqa: S104 - what a server binds to, not what we bind to
_MOST_UNITS = 400


@dataclass(frozen=True)
class FoundServer:
    """A unit that starts a model server, as its command line says, and what the server answered."""

    unit: str
    engine: Engine
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
        notes.append("no unit's command line starts vLLM or SGLang: write the service by hand")
    return HostFound(tuple(servers), _gpus(host, deadline, notes), tuple(notes))


def server_of(status: UnitStatus) -> FoundServer | None:
    """Return the model server that a unit's command line starts, or None. Pure."""
    for argv in status.exec_start:
        engine = _engine_of(argv)
        if engine is None:
            continue
        address = flag_value(argv, "host", engine) or ""
        port = flag_value(argv, "port", engine) or str(_PORTS[engine])
        return FoundServer(
            unit=status.name,
            engine=engine,
            active=status.active,
            url=f"http://{'127.0.0.1' if address in _ANYWHERE else address}:{port}",
            model=_model_of(argv, engine),
            tensor_parallel=_whole_number(flag_value(argv, "tensor-parallel-size", engine)),
            python=_python_of(argv),
        )
    return None


def _engine_of(argv: Sequence[str]) -> Engine | None:
    names = [PurePosixPath(word).name for word in argv]
    for position, name in enumerate(names):
        if (name == "vllm" and "serve" in names[position + 1 :]) or argv[position].startswith("vllm.entrypoints."):
            return Engine.VLLM
        if argv[position] == "sglang.launch_server" or name == "sglang":
            return Engine.SGLANG
    return None


def _model_of(argv: Sequence[str], engine: Engine) -> str:
    """Return the served name: --served-model-name, else the model itself; "" where neither is there."""
    named = flag_value(argv, "served-model-name", engine)
    if named:
        return named.split()[0]
    path = flag_value(argv, "model-path" if engine is Engine.SGLANG else "model", engine)
    if path:
        return path
    after_serve = list(argv[argv.index("serve") + 1 :]) if "serve" in argv else []
    return after_serve[0] if after_serve and not after_serve[0].startswith("-") else ""


def _python_of(argv: Sequence[str]) -> str | None:
    """Return the Python that a command line runs, or the one beside its program: the serving environment's."""
    for word in argv:
        path = PurePosixPath(word)
        if path.is_absolute() and path.name.startswith("python"):
            return word
        if path.is_absolute() and path.name in {"vllm", "sglang"}:
            return str(path.parent / "python")
    return None


def _whole_number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and int(text) > 0 else 1


def _asked(host: Host, found: FoundServer, deadline: Deadline) -> FoundServer:
    """Return the server with what it answered. Nothing is sent to one that does not run."""
    if not found.active:
        return found
    service = ResolvedService(name=found.unit, host=host.name, unit=found.unit, url=found.url, model=found.model)
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

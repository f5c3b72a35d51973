"""What the user writes in an inventory: hosts, groups, services."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from opsctl.engines import DEFAULT, ENGINES
from opsctl.options import Model
from opsctl.quantities import Duration

NOTHING = "nothing"
"""What `serve:` calls free GPUs; no service may have this name."""


class Role(StrEnum):
    """What a service is to its host."""

    PRODUCTION = "production"
    VARIANT = "variant"


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        expected = " or ".join(f"'{known}'" for known in ENGINES)
        raise PydanticCustomError("enum", "Input should be {expected}", {"expected": expected})
    return name


EngineName = Annotated[
    str,
    AfterValidator(_known_engine),
    WithJsonSchema({"type": "string", "enum": list(ENGINES), "title": "EngineName"}),
]
"""Which server it is: log lines, profiler routes and flags differ."""


class HostEntry(Model):
    """One host of the inventory."""

    address: str = "localhost"
    """Name or address, as ssh takes it; an alias of your ssh_config is fine."""
    user: str | None = None
    """User to log in as; default: what ssh_config says, else your own name."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """SSH port; default: what ssh_config says, else 22."""
    transport: Literal["ssh", "local"] = "ssh"
    """local: opsctl runs on the serving host itself."""
    become: bool = False
    """Use `sudo -n` for what needs root. With scope system and a user other than root this is needed."""
    scope: Literal["system", "user"] = "system"
    """Whose systemd runs the services. user needs lingering to be enabled for that user."""
    python: str = "/usr/bin/python3"
    """Python of the serving environment on the host: the stages run with it, and find torch and vLLM there."""
    identity_file: str | None = None
    """Private key on the controller; default: agent and ssh_config."""
    known_hosts: str | None = None
    """File of known host keys on the controller; default: ~/.ssh/known_hosts."""
    gpus: int | None = Field(default=None, ge=0)
    """Number of GPUs; default: what nvidia-smi says."""
    alert: tuple[str, ...] = ()
    """argv run on the host when a restore failed three times; tried with --test when a lease is armed."""
    production: tuple[str, ...] = ()
    """Production services that a campaign takes down here and brings back. Needed only where several share the host."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Override a playbook's vars on this host."""


class Readiness(Model):
    """When a service counts as serving."""

    limit: Duration = 45 * 60.0
    """Longest time from start to ready."""
    completions: int = Field(default=3, ge=1)
    """Real completions with tokens, in a row, that are needed."""
    settle: Duration = 3.0
    """Time over which the unit must stay active with no restart."""
    request_limit: Duration = 60.0
    """Longest time for one completion."""
    stall: Duration | None = None
    """Longest silence within one phase of the load; default: from earlier loads, else generous."""


class Stopping(Model):
    """How a service is taken down."""

    drain: Duration = 0.0
    """Wait this long for running requests to end before SIGTERM."""
    limit: Duration = 5 * 60.0
    """Longest time until the unit is inactive; the unit's own TimeoutStopSec acts first."""
    gpu_limit: Duration = 2 * 60.0
    """Longest time until the GPUs' memory is free after the unit is inactive."""
    end_leftovers: bool = False
    """End processes of the unit that outlive its stop (KillMode=process): they hold GPUs and port, so that no restore
    could succeed. Without it such a unit is refused before the outage."""


class Traffic(Model):
    """Commands on the host, as argv, that take production out of the load balancer and put it back."""

    out: tuple[str, ...] = ()
    """Run before production stops."""
    in_: tuple[str, ...] = ()
    """Run after production was restored and verified; the guard runs it too."""
    check: tuple[str, ...] = ()
    """Exit status 0 says that production is in the load balancer."""
    limit: Duration = 60.0
    """Longest time for each of them."""


class ArgumentEdits(Model):
    """How a variant's command line differs from production's."""

    add: tuple[str, ...] = ()
    """Arguments appended."""
    remove: tuple[str, ...] = ()
    """Flags removed, with their values."""
    replace: dict[str, str | int | float] = Field(default_factory=dict)
    """Flags whose value is replaced (added where absent)."""


class ServiceEntry(Model):
    """One unit that serves a model."""

    on: str | None = None
    """Host or group that has it; default: every host of the inventory, for a variant those of its production."""
    role: Role = Role.PRODUCTION
    """Default: variant where `of` is given, else production."""
    unit: str | None = None
    """systemd unit; default: the service's name with .service."""
    engine: EngineName = DEFAULT
    """The server's program. A variant inherits it."""
    url: str | None = None
    """Where it listens, as seen on the host, such as http://127.0.0.1:8000. A variant inherits it."""
    model: str | None = None
    """Served model name, as /v1/models lists it. A variant inherits it."""
    api_key_file: str | None = None
    """Path on the host of a file that holds the API key. The key itself is never stored, printed or put in argv."""
    ca_file: str | None = None
    """https: path on the host of a file with the certificates to trust, in PEM; default: the system's store."""
    verify: bool = True
    """https: check the server's certificate and its name. false trusts whoever answers on the port."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """Ranks; default: read from the unit's command line."""
    readiness: Readiness = Readiness()
    """When it counts as serving. A variant inherits what it does not say itself."""
    stop: Stopping = Stopping()
    """How it is taken down. A variant inherits what it does not say itself."""
    traffic: Traffic = Traffic()
    """Production: how it leaves the load balancer and comes back."""
    of: str | None = None
    """Variants: the production service that it derives from."""
    profiler: Literal["torch"] | None = None
    """Variants: switch the server's own profiler on, the way its version wants it."""
    args: ArgumentEdits = ArgumentEdits()
    """Variants: how the command line differs from production's."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variants: environment added to the unit's."""
    exec_prefix: tuple[str, ...] = ()
    """Variants: argv put before the command, such as nsys profile."""
    limits: dict[str, str] = Field(default_factory=dict)
    """Variants: unit settings added under [Service], such as LimitMEMLOCK: infinity."""


class Inventory(Model):
    """Hosts, groups and services, resolved: what `inventory.yml` holds."""

    vars: dict[str, Any] = Field(default_factory=dict)
    """Override a playbook's vars on every host."""
    hosts: dict[str, HostEntry] = Field(min_length=1)
    """Hosts by name."""
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Groups by name: hosts and other groups."""
    services: dict[str, ServiceEntry] = Field(default_factory=dict)
    """Services by name: a playbook's `serve:` names one of these."""
    notify: tuple[str, ...] = ()
    """Where to say what happened: Apprise URLs, or file:PATH of a file that holds them."""


def unit_name(name: str, service: ServiceEntry) -> str:
    """Return the systemd unit of a service: `unit` where given, else the service's own name."""
    unit = service.unit or name
    return unit if "." in unit.rsplit("@", 1)[-1] and unit.endswith(".service") else f"{unit}.service"

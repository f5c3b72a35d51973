"""A service as it stands on one host: names filled in, a variant's inheritance carried out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from opsctl.playbook.models import ArgumentEdits, Engine, Model, Readiness, Role, Stopping, Traffic


class ResolvedService(Model):
    """One service on one host. A variant has what it inherits from its production filled in."""

    name: str
    host: str
    unit: str
    """systemd unit, with its suffix."""
    role: Role = Role.PRODUCTION
    engine: Engine = Engine.VLLM
    url: str
    """Where it listens, as seen on the host."""
    model: str
    """Served model name, as /v1/models lists it."""
    api_key_file: str | None = None
    tensor_parallel: int | None = None
    readiness: Readiness = Readiness()
    stop: Stopping = Stopping()
    traffic: Traffic = Traffic()
    of: str | None = None
    """Variants: the name of the production service."""
    profiler: Literal["torch"] | None = None
    args: ArgumentEdits = ArgumentEdits()
    env: dict[str, str] = Field(default_factory=dict)
    exec_prefix: tuple[str, ...] = ()
    limits: dict[str, str] = Field(default_factory=dict)

"""What the user writes in a playbook: phases and steps. A stage's options are in its file of ``opsctl/stages/``."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from opsctl.options import Model
from opsctl.quantities import Duration

SHORTEST_TTL = 10.0
"""Seconds. A renewal may take a tenth of the ttl, and less than a second for it is too little."""


class Step(Model):
    """One measuring step: a stage and its options, under the stage's name as key in YAML."""

    id: str
    """Stable: phase slug/number-stage, such as `kernels/1-gemm`. Made by the loader."""
    stage: str
    name: str
    options: Any
    """An instance of STAGES[stage].options."""


class Phase(Model):
    """Which service must serve while its steps run."""

    name: str
    """What reports call it; steps are named after it."""
    serve: str
    """A service of the inventory, or `nothing`."""
    steps: tuple[Step, ...] = ()
    """What is measured while the service serves."""
    optional: bool = False
    """When it fails the campaign goes on with the next phase; the exit code still says that it failed."""


class Lease(Model):
    """The lease on production."""

    ttl: Duration = 5 * 60.0
    """The guard restores production this long after the last sign of life of the controller. At least 10s."""


class Load(Model):
    """How loads are tried."""

    attempts: int = Field(default=2, ge=1)
    """A load that died of something transient is tried again once the GPUs are free; a fatal cause never."""


class Rounds(Model):
    """Repeat the phases in turn, so that drift of the host falls on all of them alike."""

    count: int = Field(default=1, ge=1)
    """How many times."""


class Playbook(Model):
    """A campaign: phases, in order."""

    name: str
    """What runs of it are called."""
    description: str = ""
    """What it is for."""
    hosts: str
    """A host or a group of the inventory."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Defaults; the inventory and --var override them."""
    lease: Lease = Lease()
    """How long the guard waits for a sign of life."""
    load: Load = Load()
    """How often a load is tried."""
    rounds: Rounds = Rounds()
    """Repeat all phases in turn."""
    limit: Duration = 12 * 60 * 60.0
    """Longest time for all phases together; the restore has a budget of its own."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    """In order; after the last one production is restored, always."""
    notify: tuple[str, ...] = ()
    """Where to say what happened, beside the inventory's: Apprise URLs, or file:PATH of a file that holds them."""

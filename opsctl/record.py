"""A run as data: what the journal gives back, and all that reports, history and status read.

Times are UTC, ISO 8601 with a zone. Nothing here knows SQLite or a host.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, computed_field

from opsctl.results import Evidence, State, StepResult

REFUSED = frozenset({"not fit", "held by someone else"})
"""Outcomes of runs that touched nothing."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StepRecord(_Record):
    """One step of one phase."""

    id: str
    stage: str
    name: str
    state: State
    options: dict[str, Any] = Field(default_factory=dict)
    started: str | None = None
    ended: str | None = None
    result: StepResult | None = None
    """None until the stage ended; planned cells stand in it from the start with state pending."""


class LoadRecord(_Record):
    """One load of a model server: start to ready."""

    service: str
    unit: str
    version: str | None = None
    started: str
    ready: str | None = None
    seconds: float | None = None
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase of the load: spawned, engine init, weights, after weights, HTTP up, first tokens."""
    usual: float | None = None
    """Seconds that loads of it took on this host before this one: their median."""
    attempt: int = 1
    outcome: str = ""


class PhaseRecord(_Record):
    """One phase on one host."""

    name: str
    serve: str
    host: str
    state: State
    reason: str = ""
    started: str | None = None
    ended: str | None = None
    steps: tuple[StepRecord, ...] = ()
    round: int = 1


class ActionRecord(_Record):
    """One action of the plan of a run on a host, as it was printed, executed and observed."""

    host: str
    plan: int
    """1, and one more for each resume of the run."""
    id: str
    kind: str
    branch: str
    """main, retry or restore."""
    phase: int | None = None
    sentence: str
    state: State
    reason: str = ""
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    evidence: tuple[Evidence, ...] = ()


class HoldRecord(_Record):
    """Who held the GPUs of a host, from when to when: the timeline of the report. `holder` "" is no one."""

    host: str
    holder: str
    role: str
    """production, variant, stage, nobody, loading, stopping."""
    started: str
    ended: str | None = None


class Standing(StrEnum):
    """What the journal's evidence says of production of a host."""

    VERIFIED = "verified"
    UNTOUCHED = "not touched"
    LEFT_DOWN = "left down"
    """It was down, and a person asked to leave it so."""
    AT_WORK = "at work"
    """The run goes on."""
    UNVERIFIED = "not verified"


class ProductionRecord(_Record):
    """Production of one host before and after the run."""

    host: str
    service: str
    unit: str
    as_found: str
    """serving, down, or what else was seen before anything was touched."""
    standing: Standing
    evidence: tuple[Evidence, ...] = ()
    down_since: str | None = None
    back_at: str | None = None
    downtime_seconds: float | None = None
    restored_by: str = ""
    """controller, guard, rollback, or "" where it never went down."""
    last_seen: str | None = None
    """Where the run's controller is gone: when it last recorded anything. What is so since, this record cannot say."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verified(self) -> bool:
        """Whether production was seen to serve after all that was done."""
        return self.standing is Standing.VERIFIED


class EventRecord(_Record):
    """One event of the run, as `--json` prints it."""

    time: str
    event: str
    host: str = ""
    phase: str = ""
    step: str = ""
    message: str = ""
    data: dict[str, Any] = Field(default_factory=dict)


class RunRecord(_Record):
    """A run with all that belongs to it."""

    run: str
    playbook: str
    playbook_file: str = ""
    hosts: tuple[str, ...] = ()
    controller: str = ""
    opsctl_version: str = ""
    started: str
    ended: str | None = None
    outcome: str = ""
    """running, verified, failed, inconclusive, interrupted, controller died, left, production not verified."""
    exit_code: int | None = None
    reason: str = ""
    phases: tuple[PhaseRecord, ...] = ()
    actions: tuple[ActionRecord, ...] = ()
    """In order of host, plan and place in the plan; empty for runs of opsctl 0.1."""
    loads: tuple[LoadRecord, ...] = ()
    holds: tuple[HoldRecord, ...] = ()
    production: tuple[ProductionRecord, ...] = ()
    environment: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """By host: hardware, driver, versions, topology, allow-listed variables."""
    variants: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By variant service: how its command line and environment differ from production's, a line each."""
    events: tuple[EventRecord, ...] = ()
    folder: str = ""
    """Where the artifacts lie on the controller."""

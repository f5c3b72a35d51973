"""What a step found: cells, figures and evidence. The stages write these; journal, reports and history read them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from opsctl.errors import Defect


class State(StrEnum):
    """The life of an action, a phase, a step and each cell. Nothing is *done*: it is verified, by evidence."""

    PENDING = "pending"
    RUNNING = "running"
    VERIFYING = "verifying"
    VERIFIED = "verified"
    FAILED = "failed"
    INCONCLUSIVE = "inconclusive"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self in _FINAL


_FINAL = frozenset({State.VERIFIED, State.FAILED, State.INCONCLUSIVE, State.SKIPPED})
_NEXT: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.RUNNING, State.SKIPPED}),
    State.RUNNING: frozenset({State.RUNNING, State.VERIFYING, *_FINAL}),
    State.VERIFYING: _FINAL,
}


def moved(before: State, after: State, *, again: bool = False) -> State:
    """Return the state that follows: the one transition function of actions, phases and steps.

    ``again`` says that what ended is taken up once more: a branch of the plan that is repeated, a run that is resumed,
    results that are judged anew. Raises Defect where the states do not follow each other.
    """
    if after in _NEXT.get(before, frozenset()) or (again and before.final):
        return after
    raise Defect(f"a state that was {before} cannot become {after}")


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_DECIDES = 0.25


class Evidence(_Record):
    """One observation that a verdict rests on: what was asked, what was observed, when (UTC, ISO 8601)."""

    asked: str
    observed: str
    time: str


class Figure(_Record):
    """A number with all that is needed to believe it.

    ``name`` is dotted (``tpot.p50``, ``gemm.time``); ``unit`` is one of s, ms, us, tok/s, req/s, GB/s,
    TFLOP/s, ratio, count, B, W, C. ``spread`` is a standard deviation in the same unit over ``samples``;
    ``low`` and ``high`` are a 95 % interval where one was computed, ``least`` and ``most`` the range of the values
    that it was computed from.
    """

    name: str
    value: float
    unit: str
    samples: int = 1
    spread: float | None = None
    low: float | None = None
    high: float | None = None
    formula: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def half_width(self) -> float | None:
        """Half of its 95 % interval, where one was computed."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def conclusive(self) -> bool | None:
        """Whether its interval is narrow enough to carry a decision; None where it has none.

        At most a quarter of the value on either side: an interval that reaches 0 or below says nothing of a time or
        a rate, and differences that people decide on are smaller than a half.
        """
        half = self.half_width
        return None if half is None else half <= _DECIDES * abs(self.value)


class Cell(_Record):
    """One planned measurement: a concurrency, a GEMM shape × tokens, a message size × protocol.

    ``id`` is stable and readable (``concurrency=8``; ``w13/M=8/marlin``), unique in its step. ``axes``
    are what vary; ``detail`` is whatever the stage keeps beside the figures.
    """

    id: str
    axes: dict[str, str | int | float] = Field(default_factory=dict)
    state: State = State.PENDING
    reason: str = ""
    figures: tuple[Figure, ...] = ()
    detail: dict[str, Any] = Field(default_factory=dict)

    def figure(self, name: str) -> Figure | None:
        """Return the figure of that name, or None."""
        return next((figure for figure in self.figures if figure.name == name), None)


def stays_below(path: str) -> bool:
    """Return whether a relative path that a host sent leads to a file below the folder it is taken from."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and path.isprintable()


def _below(path: str) -> str:
    if not stays_below(path):
        msg = f"wanted a path below the run's folder, found {path[:200]!r}"
        raise ValueError(msg)
    return path


class Artifact(_Record):
    """A file in the run's folder, by relative path, with what proves that it is complete.

    A host named the file, so a path that leads out of the folder is no artifact's.
    """

    path: Annotated[str, AfterValidator(_below)]
    size: int
    sha256: str
    kind: str = ""


class StepResult(_Record):
    """What a stage says of one step."""

    stage: str
    state: State
    reason: str = ""
    cells: tuple[Cell, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    environment: dict[str, Any] = Field(default_factory=dict)
    profiled: bool = False
    """Profiled numbers are slow numbers: they never enter history as performance."""
    detail: dict[str, Any] = Field(default_factory=dict)

    @property
    def applying(self) -> tuple[Cell, ...]:
        """The cells that could be measured: one that a stage at work skipped does not apply to its host."""
        whole = self.state is State.SKIPPED
        return tuple(cell for cell in self.cells if whole or cell.state is not State.SKIPPED)

    @property
    def apart(self) -> bool:
        """Whether it was seen that nothing of the step applies to its host; ``reason`` says why."""
        return self.state is State.VERIFIED and bool(self.cells) and not self.applying

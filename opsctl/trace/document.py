"""The document of a trace analysis: one set of types from the reader to the report.

``opsctl trace --json`` and a run's ``trace-*.json`` are these types in JSON (:mod:`opsctl.trace.codec`). Times are in
µs with three decimals, shares are 0…1. What is not known is None. *Busy* is exclusive: a moment belongs to one
category, so categories add up. *Overlapped* is what ran while the moment belonged to another category.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple

from opsctl.trace.codec import from_json, to_json

FORMAT = 2
"""Grows when a field changes its meaning; a document of another format is refused by name."""


@dataclass(frozen=True)
class Times:
    """A figure in µs over several steps: median, mean, coefficient of variation."""

    p50: float
    mean: float
    cv: float


def mean_of(times: Optional[Times]) -> Optional[float]:
    """Return the mean in µs, None where there is none."""
    return None if times is None else times.mean


@dataclass(frozen=True)
class Batch:
    """Steps of one batch size beside those that figures rest on."""

    batch: Optional[int]
    count: int
    wall_us: Times


@dataclass(frozen=True)
class Phase:
    """A part of a training step (forward, backward, optimizer): union of each step's own work, in µs a step."""

    name: str
    busy_us_per_step: float


@dataclass(frozen=True)
class Steps:
    """The steps of one kind; of the kind that figures rest on (``used`` > 0) with busy, sum and idle time."""

    count: int = 0
    batch: Optional[int] = None
    wall_us: Optional[Times] = None
    wall_is: str = ""
    timed: int = 0
    used: int = 0
    dropped: int = 0
    dropped_because: str = ""
    busy_us: Optional[Times] = None
    sum_us: Optional[Times] = None
    idle_us: Optional[Times] = None
    other_steps_us: Optional[Times] = None
    """Of the busy time, what work of other steps (or of none) did inside this step's wall time."""
    verdict: str = ""
    """``steady``: the mean can be believed; ``inconclusive``: ``verdict_because`` says why not."""
    verdict_because: str = ""
    phases: Tuple[Phase, ...] = ()
    other_batches: Tuple[Batch, ...] = ()


@dataclass(frozen=True)
class RankFile:
    """One file. ``role`` is ``rank``, or ``front end`` for an API server's own file, which is no rank."""

    file: str
    rank: Optional[int] = None
    role: str = "rank"
    label: str = ""
    """The coordinates that the file's name tells, such as ``TP 1 DP 0``."""
    events: int = 0
    device: Optional[str] = None
    """The device whose work is in the file; None where there is work of the host only."""
    device_named: Optional[str] = None
    whole: bool = False
    problems: Tuple[str, ...] = ()
    repairs: Tuple[str, ...] = ()
    device_events: int = 0
    kernels: int = 0
    streams: int = 0
    world_size: Optional[int] = None
    server: Optional[str] = None
    layout: str = ""
    text_bytes: int = 0
    steps: int = 0
    clock_offset_us: Optional[float] = None
    busy_us: float = 0.0
    sum_us: float = 0.0
    window_us: float = 0.0
    busy_share: float = 0.0
    busy_us_per_step: Optional[float] = None
    exposed_communication_us_per_step: Optional[float] = None


@dataclass(frozen=True)
class LeftOut:
    """A file of the folder that was not analysed, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Category:
    """A kind of work in a step. Of communication, busy is *exposed* and the rest is *overlapped*."""

    name: str
    busy_us_per_step: float
    sum_us_per_step: float
    share_of_busy: float
    union_us_per_step: float = 0.0
    overlapped_us_per_step: float = 0.0
    cv: float = 0.0
    share_of_busy_by_rank: Tuple[Optional[float], ...] = ()


@dataclass(frozen=True)
class OtherName:
    """A name that no category takes."""

    name: str
    share_of_sum: float


@dataclass(frozen=True)
class Kernel:
    """One kernel (or operator of the host): over the whole file, and in a steady step."""

    name: str
    category: str
    calls: int
    sum_us: float
    mean_us: float
    share_of_sum: float
    calls_per_step: Optional[float] = None
    sum_us_per_step: Optional[float] = None
    cv_per_step: Optional[float] = None


@dataclass(frozen=True)
class LastToArrive:
    """The rank that most often arrived last at a collective, and at what share of all calls."""

    rank: int
    share_of_calls: float


@dataclass(frozen=True)
class MessageSize:
    """One kind of message of a collective, over the whole file. ``mean_us`` is a call's, waiting included."""

    calls: int
    message_bytes: Optional[int]
    dtype: str
    group: str
    group_size: Optional[int]
    mean_us: float
    bus_bandwidth_gbs: Optional[float]


@dataclass(frozen=True)
class Collective:
    """One operation: over the whole file of the reference rank, and in a steady step over all ranks."""

    op: str
    calls: int = 0
    sum_us: float = 0.0
    calls_per_step: Optional[float] = None
    expected_per_step: Optional[float] = None
    as_expected: Optional[bool] = None
    communication_us_per_step: Optional[float] = None
    straggler_wait_us_per_step: Optional[float] = None
    start_skew_us: Optional[float] = None
    """Mean over calls of the time between the first and the last rank's start, clocks aligned."""
    last_to_arrive: Optional[LastToArrive] = None
    algorithms: Tuple[str, ...] = ()
    kernels: Tuple[str, ...] = ()
    message_bytes: Optional[int] = None
    message_from: Optional[str] = None
    message_dtype: Optional[str] = None
    messages: Tuple[MessageSize, ...] = ()


@dataclass(frozen=True)
class BesideTheClock:
    """TPOT of a client beside the step of the trace, in µs, with what explains the difference."""

    source: str
    tpot_off_us: Optional[float] = None
    tpot_armed_us: Optional[float] = None
    tpot_capturing_us: Optional[float] = None
    step_wall_us: Optional[float] = None
    step_busy_us: Optional[float] = None
    step_sum_us: Optional[float] = None
    explanation: Tuple[str, ...] = ()


@dataclass(frozen=True)
class TraceAnalysis:
    """What the traces of one window of one server say. Figures of one rank rest on ``reference_rank``.

    ``problems`` are what is wrong or odd with the files and their matching; that a window is too short to be believed
    is no problem but its verdict. ``notes`` are what a reader should know and need not mend.
    """

    format: int = FORMAT
    ranks: Tuple[RankFile, ...] = ()
    left_out: Tuple[LeftOut, ...] = ()
    reference_rank: Optional[int] = None
    basis: str = ""
    method: str = ""
    """How steps were told apart."""
    steps: Dict[str, Steps] = field(default_factory=dict)
    categories: Tuple[Category, ...] = ()
    other: Tuple[OtherName, ...] = ()
    kernels: Tuple[Kernel, ...] = ()
    collectives: Tuple[Collective, ...] = ()
    beside_the_clock: Optional[BesideTheClock] = None
    busy_us: float = 0.0
    sum_us: float = 0.0
    idle_us: float = 0.0
    window_us: float = 0.0
    problems: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of step that figures rest on; "" where no steps could be told apart."""
        return next((kind for kind, steps in self.steps.items() if steps.used), "")

    @property
    def main(self) -> Steps:
        """The steps that figures rest on; blank where no steps could be told apart."""
        return self.steps.get(self.kind, Steps())

    @property
    def whole_ranks(self) -> Tuple[RankFile, ...]:
        """The files that are ranks."""
        return tuple(rank for rank in self.ranks if rank.role == "rank")

    @property
    def on_device(self) -> bool:
        """Whether this is work of a device, not operators of a CPU."""
        return any(rank.device is not None for rank in self.ranks)

    @property
    def busy_us_per_step(self) -> Optional[float]:
        """µs of a step in which at least one kernel ran: the categories' busy times add up to it."""
        return sum(row.busy_us_per_step for row in self.categories) if self.categories else None

    @property
    def sum_us_per_step(self) -> Optional[float]:
        """µs of kernels of a step, overlap counted twice."""
        return sum(row.sum_us_per_step for row in self.categories) if self.categories else None

    def to_json(self) -> Dict[str, Any]:
        """Return the document as ``json.dumps`` takes it."""
        document: Dict[str, Any] = to_json(self)
        return document

    @classmethod
    def from_json(cls, data: Any) -> TraceAnalysis:
        """Return the analysis that a JSON document holds. Raises TraceError where it is none, or of another format."""
        return from_json(cls, data)


@dataclass(frozen=True)
class Change:
    """One figure before and after, in µs a step, with the standard error of the difference.

    ``verdict`` is ``new``, ``gone``, ``slower``, ``faster``, ``same`` (within 5 %, three standard errors
    included), ``cannot tell`` or ``unknown`` (a side has too few steps).
    """

    name: str
    verdict: str
    before_us_per_step: float
    after_us_per_step: float
    difference_us_per_step: float
    difference_share: Optional[float]
    standard_error_us: float
    calls_per_step_before: Optional[float] = None
    calls_per_step_after: Optional[float] = None


@dataclass(frozen=True)
class CountChange:
    """A collective of which a step has another number than before."""

    op: str
    calls_per_step_before: float
    calls_per_step_after: float


@dataclass(frozen=True)
class Comparison:
    """What changed from one analysis to another, per steady step of their reference ranks."""

    steps: Tuple[Change, ...] = ()
    categories: Tuple[Change, ...] = ()
    kernels: Tuple[Change, ...] = ()
    counts: Tuple[CountChange, ...] = ()
    problems: Tuple[str, ...] = ()

    def to_json(self) -> Dict[str, Any]:
        """Return the document as ``json.dumps`` takes it."""
        document: Dict[str, Any] = to_json(self)
        return document

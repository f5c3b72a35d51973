"""Where a load stands, read from what the server logs. Pure: lines and times in, a picture out.

A load is six phases, each with a clock: spawned → engine init → weights → after weights → HTTP up → first
tokens. Lines come as the journal gives them: carriage returns between updates of a progress bar, ranks
interleaved, colour codes, vLLM 0.6 to 0.33 or SGLang. A line that is not in the table is ignored, never fatal.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from opsctl.host.protocol import JournalLine
from opsctl.serving.load.diagnosis import Autopsy, FatalLine


class LoadPhase(StrEnum):
    """The phases of a load, in their order."""

    SPAWNED = "spawned"
    ENGINE_INIT = "engine init"
    WEIGHTS = "weights"
    AFTER_WEIGHTS = "after weights"
    HTTP_UP = "HTTP up"
    FIRST_TOKENS = "first tokens"

    @property
    def rank(self) -> int:
        """Position in the order, from 0."""
        return tuple(LoadPhase).index(self)


@dataclass(frozen=True)
class LoadProgress:
    """A load at one moment. Times are seconds; ``None`` is unknown, never 0."""

    phase: LoadPhase = LoadPhase.SPAWNED
    shards_done: int | None = None
    shards_total: int | None = None
    rate: float | None = None
    """Shards a second, over the last few updates."""
    eta: float | None = None
    """Seconds until the last shard, at that rate."""
    gib: float | None = None
    """Size of the checkpoint, or of the model in one GPU's memory once it is loaded."""
    seconds_by_phase: Mapping[str, float] = field(default_factory=dict)
    """Of the phases seen so far; the last one is still running."""
    last_mark: str = ""
    """The last thing that moved, in words."""
    moved: float | None = None
    """Host time of it."""
    version: str | None = None
    fatal: FatalLine | None = None

    @property
    def text(self) -> str:
        """One line for a person: ``weights 29/64 shards, 0.09/s, 6m 20s left``."""
        from opsctl.quantities import format_duration  # noqa: PLC0415

        parts = [self.phase.value]
        if self.phase is LoadPhase.WEIGHTS and self.shards_total:
            parts[0] += f" {self.shards_done}/{self.shards_total} shards"
            parts += [f"{self.rate:.3g} shards/s"] if self.rate else []
            parts += [f"{format_duration(self.eta)} left"] if self.eta is not None else []
            parts += [self.last_mark] if self.last_mark.endswith("read") else []
        elif self.last_mark:
            parts.append(self.last_mark)
        return ", ".join(parts)


@dataclass(frozen=True)
class _Mark:
    phase: LoadPhase
    text: str
    pattern: re.Pattern[str]
    weak: bool
    """The line proves movement once its phase runs, but does not prove the phase: configurations hold the words too."""


def _mark(phase: LoadPhase, text: str, pattern: str, *, weak: bool = False) -> _Mark:
    return _Mark(phase, text, re.compile(pattern), weak)


_MARKS: tuple[_Mark, ...] = (
    _mark(
        LoadPhase.ENGINE_INIT,
        "configuration read",
        r"non-default args|server_args=ServerArgs|vLLM API server version|\bargs: Namespace\(",
    ),
    _mark(LoadPhase.ENGINE_INIT, "engine starts", r"Initializing an? (?:V\d )?LLM engine"),
    _mark(
        LoadPhase.ENGINE_INIT,
        "ranks meet",
        r"world_size=\d+ rank=\d+|rank \d+ in world size \d+|Init"
        r" torch distributed (?:begin|ends)|vLLM is using nccl==",
    ),
    _mark(LoadPhase.WEIGHTS, "weights begin", r"Starting to load model|Load weight begin|Loading model weights"),
    _mark(LoadPhase.AFTER_WEIGHTS, "weights read", r"Loading weights took [\d.]+ s"),
    _mark(
        LoadPhase.AFTER_WEIGHTS,
        "model loaded",
        r"Model loading took|Loading model weights took|Load weight end|Loading drafter model",
    ),
    _mark(
        LoadPhase.AFTER_WEIGHTS,
        "compiling",
        r"Dynamo bytecode transform|torch\.compile takes|Compiling a graph|Directly load(?:ing)? the .*(?:graph|AOT)"
        r"|Cache the graph|Using cache directory: .*torch\.compile|torch\.compile took|Computation graph .*cached",
    ),
    _mark(
        LoadPhase.AFTER_WEIGHTS,
        "KV cache",
        r"Available KV cache memory|KV cache size: [\d,]+ tokens|# (?:GPU|CPU|cuda|cpu) blocks:|KV Cache is allocated"
        r"|Memory pool end|GiB for KV cache|Memory profiling (?:takes|results)|Maximum concurrency for",
    ),
    _mark(
        LoadPhase.AFTER_WEIGHTS,
        "capturing graphs",
        r"Capturing the model for CUDA graphs|Capturing cudagraphs"
        r"|Capture cuda graph begin|Capturing (?:CUDA graph|batches)",
    ),
    _mark(LoadPhase.AFTER_WEIGHTS, "graphs captured", r"Graph capturing finished|Capture (?:draft )?cuda graph end"),
    _mark(LoadPhase.AFTER_WEIGHTS, "engine ready", r"init engine \(profile|max_total_num_tokens="),
    _mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"\bautotun|[Ww]arming up|[Ww]armup", weak=True),
    _mark(
        LoadPhase.HTTP_UP,
        "HTTP server starts",
        r"Starting vLLM (?:API )?server|Started server process|Waiting for application startup",
    ),
    _mark(
        LoadPhase.HTTP_UP,
        "HTTP server answers",
        r"Application startup complete|Uvicorn running on|The server is fired up and ready to roll",
    ),
)

LONGEST = 4000
"""Characters of a line that are looked at: configurations are dumped in lines of any length."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_SHARDS = re.compile(
    r"(?:Loading \w+ (?:checkpoint )?shards|Multi-thread loading shards|Loading safetensors using [^:]+)"
    r"[^:|]*:\s+\d+%[^|]*\|[^|]*?(?:\|\s*)?(?P<done>\d+)/(?P<total>\d+) \["
)
_CAPTURE = re.compile(r"Captur\w+ [^%]*:\s+\d+%.*?(?P<done>\d+)/(?P<total>\d+) \[")
_CHECKPOINT = re.compile(r"Checkpoint size: (?P<gib>[\d.]+) GiB")
_MODEL_SIZE = re.compile(
    r"(?:Model loading took|Loading model weights took) (?P<gib>[\d.]+) ?G|Load weight end.*mem usage=(?P<gb>[\d.]+)"
)
_VERSION = re.compile(r"(?:LLM engine \(v|vLLM API server version |\bversion )(?P<version>\d+\.\d+[\w.+]*)")


def clean(text: str) -> tuple[str, ...]:
    """Return the lines that a terminal would have shown one after the other, without colours."""
    return tuple(part.strip()[:LONGEST] for part in _ANSI.sub("", text).replace("\n", "\r").split("\r") if part.strip())


class LoadParser:
    """Takes log lines as they come; ``state`` is where the load stands.

    ``started`` is the host's time of the start (seconds since the epoch); phases are timed from it.
    """

    WINDOW = 8
    """Updates of the progress bar over which the rate is taken."""

    def __init__(self, started: float) -> None:
        self.started = started
        self._phase = LoadPhase.SPAWNED
        self._entered: dict[LoadPhase, float] = {LoadPhase.SPAWNED: started}
        self._ended: float | None = None
        self._now = started
        self._shards: tuple[int, int] | None = None
        self._updates: deque[tuple[float, int]] = deque(maxlen=self.WINDOW)
        self._captured = 0
        self._gib: float | None = None
        self._version: str | None = None
        self._seen: set[str] = set()
        self._mark = ""
        self._moved = started
        self.autopsy = Autopsy()

    def feed(self, line: JournalLine | str, time: float | None = None) -> None:
        """Take one entry of the journal. ``time`` is needed with text and overrides an entry's own."""
        text = line if isinstance(line, str) else line.message
        when = time if time is not None else self._now if isinstance(line, str) else line.time
        self._now = max(self._now, when)
        for part in clean(text):
            self._feed_clean(part, self._now)

    def reached(self, phase: LoadPhase, when: float, mark: str = "") -> None:
        """Say that a phase was reached by what was seen elsewhere (HTTP answered, first token came)."""
        if phase.rank > self._phase.rank:
            self._phase = phase
            self._entered[phase] = max(when, self._moved)
            self._move(mark or phase.value, when)

    def touch(self, when: float, mark: str) -> None:
        """Say that something moved that the log does not show, such as bytes read from the disk."""
        self._move(mark, when)

    def finish(self, when: float) -> None:
        """Stop the clock of the last phase."""
        self._ended = max(when, self._now)

    def tick(self, when: float) -> None:
        """Let time pass without a line."""
        self._now = max(self._now, when)

    @property
    def state(self) -> LoadProgress:
        """The load at this moment."""
        done, total = self._shards or (None, None)
        rate = self._rate()
        return LoadProgress(
            phase=self._phase,
            shards_done=done,
            shards_total=total,
            rate=rate,
            eta=(total - done) / rate if rate and done is not None and total is not None else None,
            gib=self._gib,
            seconds_by_phase=self._seconds(),
            last_mark=self._mark,
            moved=self._moved,
            version=self._version,
            fatal=self.autopsy.verdict,
        )

    def _feed_clean(self, line: str, when: float) -> None:
        self.autopsy.feed(line, when)
        if self._version is None and (version := _VERSION.search(line)):
            self._version = version["version"].rstrip(".")
        if size := _CHECKPOINT.search(line) or _MODEL_SIZE.search(line):
            groups = size.groupdict()
            self._gib = float(groups.get("gib") or groups.get("gb") or 0) or self._gib
        if shards := _SHARDS.search(line):
            self._feed_shards(int(shards["done"]), int(shards["total"]), when)
            return
        if (capture := _CAPTURE.search(line)) and int(capture["done"]) > self._captured:
            self._captured = int(capture["done"])
            self._enter(LoadPhase.AFTER_WEIGHTS, when)
            self._move(f"capturing graphs {capture['done']}/{capture['total']}", when)
            return
        for mark in _MARKS:
            if mark.pattern.search(line):
                if mark.weak and self._phase is not mark.phase:
                    continue
                self._enter(mark.phase, when)
                if mark.text not in self._seen:
                    self._seen.add(mark.text)
                    self._move(mark.text, when)
                return

    def _feed_shards(self, done: int, total: int, when: float) -> None:
        """Take one update of the bar. Ranks print bars of their own in old versions: the furthest counts.

        A second bar of another length is a second model (speculative decoding): it moves, the phase stays.
        """
        self._enter(LoadPhase.WEIGHTS, when)
        if self._shards is not None and self._shards[1] == total and done <= self._shards[0]:
            return
        if self._shards is not None and self._shards[1] != total:
            self._updates.clear()
        self._shards = (done, total)
        self._updates.append((when, done))
        self._move(f"shard {done} of {total}", when)

    def _rate(self) -> float | None:
        """Return shards a second over the last updates; None until two of them lie apart in time."""
        if len(self._updates) < 2:
            return None
        (first, before), (last, after) = self._updates[0], self._updates[-1]
        return (after - before) / (last - first) if last > first and after > before else None

    def _enter(self, phase: LoadPhase, when: float) -> None:
        """Go forward to a phase; a rank that lags behind never takes the load back."""
        if phase.rank > self._phase.rank:
            self._phase = phase
            self._entered[phase] = when

    def _move(self, mark: str, when: float) -> None:
        self._mark = mark
        self._moved = max(self._moved, when)

    def _seconds(self) -> dict[str, float]:
        """Return seconds by phase, in order; phases that were passed over are not in it."""
        entered = sorted(self._entered.items(), key=lambda item: item[0].rank)
        ends = [*(when for _, when in entered[1:]), self._ended if self._ended is not None else self._now]
        return {phase.value: max(0.0, end - when) for (phase, when), end in zip(entered, ends, strict=True)}

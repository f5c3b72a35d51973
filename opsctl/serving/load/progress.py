"""Where a load stands, read from what the server logs. Pure: lines and times in, progress out.

A load is six phases, each with a clock: spawned → engine init → weights → after weights → HTTP up → first
tokens. Lines come as the journal gives them: carriage returns between updates of a progress bar, ranks
interleaved, colour codes, vLLM 0.6 to 0.33 or SGLang. A line that is not in the table is ignored, never fatal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from opsctl.engines import Engine
from opsctl.engines.lines import Level, parse, split
from opsctl.engines.phases import BARS, LoadPhase
from opsctl.host.protocol import JournalLine
from opsctl.serving.load.bars import Bar, Bars
from opsctl.serving.load.diagnosis import FatalLine, Judge


@dataclass(frozen=True)
class LoadProgress:
    """A load at one moment. Times are seconds; ``None`` is unknown, never 0."""

    phase: LoadPhase = LoadPhase.SPAWNED
    shards_done: int | None = None
    shards_total: int | None = None
    rate: float | None = None
    """Steps a second of the progress bar that moved last (shards, captured batches, tuned kernels)."""
    eta: float | None = None
    """Seconds until that bar is full, at that rate."""
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
    """What the log suggests, once a line came after which no server was seen to go on."""

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
            parts += [self.last_mark, *([f"{format_duration(self.eta)} left"] if self.eta else [])]
        return ", ".join(parts)


_CHECKPOINT = re.compile(r"Checkpoint size: (?P<gib>[\d.]+) GiB")
_MODEL_SIZE = re.compile(
    r"(?:Model loading took|Loading model weights took) (?P<gib>[\d.]+) ?G|Load weight end.*mem usage=(?P<gb>[\d.]+)"
)
_VERSION = re.compile(r"(?:LLM engine \(v|API server version )(?P<version>\d+\.\d+[\w.+]*)")
_SHARDS = BARS[0]


class LoadParser:
    """Takes log lines as they come; ``state`` is where the load stands.

    ``started`` is the host's time of the start (seconds since the epoch); phases are timed from it.
    """

    def __init__(self, started: float, engine: Engine) -> None:
        self.started = started
        self._marks = engine.marks
        self._phase = LoadPhase.SPAWNED
        self._entered: dict[LoadPhase, float] = {LoadPhase.SPAWNED: started}
        self._ended: float | None = None
        self._now = started
        self._bars = Bars()
        self._bar: Bar | None = None
        self._shards: Bar | None = None
        self._gib: float | None = None
        self._version: str | None = None
        self._seen: set[str] = set()
        self._mark = ""
        self._moved = started
        self.judge = Judge(engine.tables)
        self.heard = started
        """Host time of the last line that does not speak of an end; silence is counted from it."""

    def feed(self, line: JournalLine | str, time: float | None = None) -> None:
        """Take one entry of the journal. ``time`` is needed with text and overrides an entry's own."""
        text = line if isinstance(line, str) else line.message
        when = time if time is not None else self._now if isinstance(line, str) else line.time
        self._now = max(self._now, when)
        for part in split(text):
            self._feed_line(part, self._now)

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
        shards, bar = self._shards, self._bar
        return LoadProgress(
            phase=self._phase,
            shards_done=round(shards.done) if shards else None,
            shards_total=round(shards.total) if shards else None,
            rate=bar.rate if bar else None,
            eta=bar.eta if bar else None,
            gib=self._gib,
            seconds_by_phase=self._seconds(),
            last_mark=self._mark,
            moved=self._moved,
            version=self._version,
            fatal=self.judge.finding() if self.judge.suggestion else None,
        )

    def _feed_line(self, text: str, when: float) -> None:
        line = parse(text)
        if not self.judge.feed(line, when) and not line.echo:
            self.heard = max(self.heard, when)
        if line.echo and line.level is Level.PLAIN and "server_args=" not in line.text:
            return
        if self._version is None and (version := _VERSION.search(line.text)):
            self._version = version["version"].rstrip(".")
        if size := _CHECKPOINT.search(line.text) or _MODEL_SIZE.search(line.text):
            groups = size.groupdict()
            self._gib = float(groups.get("gib") or groups.get("gb") or 0) or self._gib
        if found := self._bars.feed(line.text, when):
            self._feed_bar(*found, when)
            return
        for mark in self._marks:
            if mark.pattern.search(line.text):
                if mark.weak and self._phase is not mark.phase:
                    continue
                self._enter(mark.phase, when)
                key = line.text if mark.each else mark.text
                if key not in self._seen:
                    self._seen.add(key)
                    self._bar = None
                    self._move(line.text[:120] if mark.each else mark.text, when)
                return

    def _feed_bar(self, bar: Bar, moved: bool, when: float) -> None:  # noqa: FBT001 - what the bars said
        """Take one update of a bar. A second bar of shards is a second model: it moves, the phase stays."""
        named = next((mark for mark in BARS if mark.pattern.search(bar.label)), None)
        if named is not None:
            self._enter(named.phase, when)
        if not moved:
            return
        self._bar = bar
        if named is _SHARDS:
            self._shards = bar
            self._move(f"shard {bar.done:g} of {bar.total:g}", when)
        else:
            self._move(bar.text, when)

    def _enter(self, phase: LoadPhase, when: float) -> None:
        """Go forward to a phase; a rank that lags behind never takes the load back."""
        if phase.rank > self._phase.rank:
            self._phase = phase
            self._entered[phase] = when
            self.judge.refute()

    def _move(self, mark: str, when: float) -> None:
        self._mark = mark
        self._moved = max(self._moved, when)

    def _seconds(self) -> dict[str, float]:
        """Return seconds by phase, in order; phases that were passed over are not in it."""
        entered = sorted(self._entered.items(), key=lambda item: item[0].rank)
        ends = [*(when for _, when in entered[1:]), self._ended if self._ended is not None else self._now]
        return {phase.value: max(0.0, end - when) for (phase, when), end in zip(entered, ends, strict=True)}

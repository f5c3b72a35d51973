"""A saved log of a load, explained without a host: phases, what was taken as movement, and why it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from opsctl.engines import ENGINES, Engine
from opsctl.engines.lines import parse, split
from opsctl.engines.phases import LoadPhase
from opsctl.serving.load.diagnosis import FatalLine
from opsctl.serving.load.progress import LoadParser

Verdict = Literal["serves", "stopped", "ends", "loading"]

_STOP = re.compile(
    r"^Shutting down$|\[shutdown\] .*(?:shutdown triggered|signal=SIGTERM)|(?:SIGTERM|SIGINT|signal) received\b"
)
"""What a server logs that was told to stop; the errors after it are those of a stop."""


@dataclass(frozen=True)
class Movement:
    """Something that moved, at a line of the file (from 1). ``seconds`` since the first stamped line; None unknown."""

    line: int
    seconds: float | None
    phase: LoadPhase
    text: str


@dataclass(frozen=True)
class Explanation:
    """What a log says of its load."""

    engine: str
    verdict: Verdict
    version: str | None
    phases: tuple[str, ...]
    """Those that were seen, in order."""
    movements: tuple[Movement, ...]
    state: str
    """Where the load stood at the end of the log."""
    eta: float | None
    """Seconds that the bar which moved last would have needed; None without one, or once it is full."""
    cause: FatalLine | None
    quoted: tuple[str, ...]


def explain(text: str, engine: Engine | None = None) -> Explanation:
    """Run the judge over a log. Without an engine the one is taken that knows most of its lines."""
    lines = [(number, part) for number, raw in enumerate(text.split("\n"), start=1) for part in split(raw)]
    chosen = engine or max(ENGINES.values(), key=lambda one: _known(one, lines))
    parser = LoadParser(0.0, chosen)
    first: float | None = None
    when = 0.0
    stopped = False
    movements: list[Movement] = []
    for number, part in lines:
        line = parse(part)
        if _STOP.search(line.text) and parser.judge.suggestion is None:
            stopped = True
            break
        stamp = line.time
        if stamp is not None:
            first = stamp if first is None else first
            when = max(when, stamp - first)
        before = parser.state.last_mark
        parser.feed(part, when)
        state = parser.state
        if state.last_mark != before:
            movements.append(Movement(number, None if first is None else when, state.phase, state.last_mark))
    state = parser.state
    finding = parser.judge.finding()
    # A log whose last words are a cause or an exception is that of a server that died of it.
    died = finding is not None and bool(lines) and parser.judge.last == parse(lines[-1][1]).text
    return Explanation(
        engine=chosen.name,
        verdict=_verdict(state.phase, stopped=stopped, ended=died or parser.judge.suggestion is not None),
        version=state.version,
        phases=tuple(state.seconds_by_phase),
        movements=tuple(movements),
        state=state.text,
        eta=state.eta,
        cause=finding,
        quoted=parser.judge.quoted(),
    )


def _verdict(phase: LoadPhase, *, stopped: bool, ended: bool) -> Verdict:
    if ended or stopped:
        return "ends" if ended else "stopped"
    return "serves" if phase.rank >= LoadPhase.HTTP_UP.rank else "loading"


def _known(engine: Engine, lines: list[tuple[int, str]]) -> int:
    texts = [parse(part).text for _, part in lines[:2000]]
    return sum(any(mark.pattern.search(text) for mark in engine.marks) for text in texts)

"""Progress bars in a log: any label, any length; each that grows is movement."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

WINDOW = 8
"""Updates over which a bar's rate is taken."""

_BAR = re.compile(
    r"(?P<label>.*?):?\s*\b\d+%(?: Completed)?\s*\|(?:[^|]*\|)?\s*"
    r"(?P<done>\d+(?:\.\d+)?)(?P<unit>[kMGT]?)i?B?/(?P<total>\d+(?:\.\d+)?)(?P<of>[kMGT]?)i?B? \["
    r"(?:[\d:]+<(?P<left>\d+(?::\d\d)+))?"
)
_FACTOR = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass
class Bar:
    """One bar. Each rank prints its own in some versions: bars of one label and length are one, the furthest counts."""

    label: str
    total: float
    done: float = -1.0
    left: float | None = None
    """Seconds until the end, as the bar says itself."""
    updates: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def rate(self) -> float | None:
        """Units a second over the last updates; None until two of them lie apart in time."""
        if len(self.updates) < 2:
            return None
        (first, before), (last, after) = self.updates[0], self.updates[-1]
        return (after - before) / (last - first) if last > first and after > before else None

    @property
    def eta(self) -> float | None:
        """Seconds until the end, at that rate, or as the bar says where no rate is known. None once it is full."""
        if self.done >= self.total:
            return None
        return (self.total - self.done) / self.rate if self.rate else self.left

    @property
    def text(self) -> str:
        """``Capturing CUDA graphs (decode, FULL) 17/35``."""
        return f"{self.label} {self.done:g}/{self.total:g}".strip()


class Bars:
    """The bars of one log."""

    def __init__(self) -> None:
        self._bars: dict[tuple[str, float], Bar] = {}

    def feed(self, text: str, when: float) -> tuple[Bar, bool] | None:
        """Return (bar, whether it moved) for a line that shows one; None for any other line.

        A bar that was full and starts again smaller is a new one, and so is one of another length.
        """
        match = _BAR.match(text)
        if match is None:
            return None
        done = float(match["done"]) * _FACTOR[match["unit"]]
        total = float(match["total"]) * _FACTOR[match["of"]]
        label = match["label"].strip(" :")
        bar = self._bars.setdefault((label, total), Bar(label, total))
        again = bar.done >= bar.total and done < bar.done and done <= 1
        if again:
            bar.updates.clear()
        if done <= bar.done and not again:
            return bar, False
        bar.done = done
        bar.left = _seconds(match["left"])
        bar.updates.append((when, done))
        return bar, True


def _seconds(clock: str | None) -> float | None:
    """Return the seconds of ``1:02:03``."""
    if clock is None:
        return None
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds

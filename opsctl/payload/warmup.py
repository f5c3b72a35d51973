"""Warm-up of a cell: waves of requests at the cell's own concurrency, until one takes as long as the one before.

A server compiles or captures what a batch width needs when it first sees that width. Two requests would leave that
to the first round, which would then be slow without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

STEADY = 0.1  # two waves are alike when they differ by at most this share of the longer one
_SLACK = 0.05  # seconds by which waves may always differ: what a client and a scheduler cost
MOST_WAVES = 6
MOST_STREAMS = 256
_TURNS = 2  # requests a stream in a wave: the second one joins a batch that is decoding


@dataclass(frozen=True)
class WarmUp:
    """What a warm-up was. ``seconds`` are those of each wave."""

    seconds: tuple[float, ...] = ()
    requests: int = 0
    steady: bool = True
    pace: float = 0.0
    """Requests a second of the last wave; 0 where there was none."""

    @property
    def total(self) -> float:
        """Seconds of all waves."""
        return sum(self.seconds)

    def __str__(self) -> str:
        ending = "steady" if self.steady else "not steady yet"
        return f"{len(self.seconds)} waves, {self.requests} requests, {self.total:.1f} s, {ending}"


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether the last two waves took equally long."""
    if len(seconds) < 2:
        return False
    before, last = seconds[-2:]
    return abs(last - before) <= max(STEADY * max(last, before), _SLACK)


def streams_of(rate: float, latency: float) -> int:
    """Return how many requests of an open loop are in flight: arrivals a second × seconds a request (Little's law)."""
    return max(1, min(MOST_STREAMS, ceil(rate * latency)))


def warm_up(
    send: Callable[[int, int], float], streams: int, *, at_least: int, time_left: Callable[[], float]
) -> WarmUp:
    """Send waves until they are steady, ``MOST_WAVES`` were sent, or no time is left for another.

    ``send(streams, count)`` sends a wave and returns its seconds. ``at_least`` is the fewest requests of a wave.
    Raises what ``send`` raises.
    """
    count = max(_TURNS * streams, at_least)
    seconds: list[float] = []
    while not is_steady(seconds) and len(seconds) < MOST_WAVES and (not seconds or time_left() > seconds[-1]):
        seconds.append(send(streams, count))
    pace = count / max(seconds[-1], 1e-3)
    return WarmUp(tuple(seconds), count * len(seconds), is_steady(seconds), pace)

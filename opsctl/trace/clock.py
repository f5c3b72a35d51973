"""The trace beside the clock: why the time in a trace is not the time that a user waits for a token."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.trace.document import BesideTheClock, Steps, mean_of


@dataclass(frozen=True)
class Tpot:
    """Time per output token in µs as a client measured it: without the profiler, with it armed, during capture.

    ``source`` says where the figures come from (a campaign's run, a person). None: not measured.
    """

    off_us: float | None = None
    armed_us: float | None = None
    capturing_us: float | None = None
    source: str = "given by hand"


def beside_the_clock(tpot: Tpot, steps: Steps) -> BesideTheClock | None:
    """Return the figures beside each other and what explains their differences, None where no TPOT is known."""
    wall_us, busy_us, sum_us = (mean_of(times) for times in (steps.wall_us, steps.busy_us, steps.sum_us))
    if (tpot.off_us, tpot.armed_us, tpot.capturing_us) == (None, None, None):
        return None
    lines = []
    if sum_us is not None and busy_us is not None and sum_us > busy_us:
        lines.append(
            f"{_ms(sum_us)} is the sum of kernels, {_ms(busy_us)} the time in which at least one ran: "
            f"{_ms(sum_us - busy_us)} of the sum ran at the same moment as something else, on another stream"
        )
    if wall_us is not None and busy_us is not None:
        lines.append(
            f"of the {_ms(wall_us)} between two steps in the trace the device was idle for {_ms(wall_us - busy_us)}"
        )
    if tpot.off_us is not None and tpot.armed_us is not None:
        lines.append(_cost("having the profiler armed", tpot.off_us, tpot.armed_us))
    if tpot.off_us is not None and tpot.capturing_us is not None:
        lines.append(_cost("capturing", tpot.off_us, tpot.capturing_us))
    if tpot.off_us is not None and wall_us is not None:
        lines.append(
            f"TPOT without the profiler is {_ms(tpot.off_us)}, a step in the trace {_ms(wall_us)}: "
            "use the trace for shares and counts, the benchmark for time"
        )
    if tpot.off_us is not None and busy_us is not None and busy_us > tpot.off_us:
        lines.append(
            f"the device is busy for longer in the trace ({_ms(busy_us)}) than a whole token takes without it "
            f"({_ms(tpot.off_us)}): kernels themselves ran slower under capture"
        )
    return BesideTheClock(
        source=tpot.source,
        tpot_off_us=tpot.off_us,
        tpot_armed_us=tpot.armed_us,
        tpot_capturing_us=tpot.capturing_us,
        step_wall_us=wall_us,
        step_busy_us=busy_us,
        step_sum_us=sum_us,
        explanation=tuple(lines),
    )


def _cost(what: str, before: float, after: float) -> str:
    return f"{what} changes TPOT by {(after - before) / before * 100:+.1f} % ({_ms(before)} to {_ms(after)})"


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1000:.3f} ms"

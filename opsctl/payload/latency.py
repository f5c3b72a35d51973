"""From exchanges to figures, by the definitions of ``vllm bench serve``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.payload.records import Figure
from opsctl.payload.sse import Exchange
from opsctl.payload.statistics import figure, mean, percentile, std

FORMULAS = {
    "ttft": "first chunk with a choice − send, a request",
    "tpot": "(E2EL − TTFT) / (output tokens − 1), a request with at least 2 output tokens",
    "itl": "gaps between chunks with a choice, all requests",
    "e2el": "last chunk with a choice − send, a request",
    "send_lag": "sent − (arrival, or the moment the slot fell free)",
}
_PERCENTILES = (50, 90, 95, 99)
STATISTICS = ("mean", "std", *(f"p{share}" for share in _PERCENTILES))


@dataclass(frozen=True)
class Window:
    """The part of a round in which the load was what was asked, in perf_counter seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return max(0.0, self.end - self.start)


def series(exchanges: Sequence[Exchange]) -> dict[str, list[float]]:
    """Return TTFT, TPOT, ITL and E2EL in milliseconds, from exchanges that completed."""
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "itl": [], "e2el": []}
    for exchange in exchanges:
        ttft, e2el = exchange.first - exchange.sent, exchange.last - exchange.sent
        found["ttft"].append(ttft * 1e3)
        found["e2el"].append(e2el * 1e3)
        found["itl"].extend(gap * 1e3 for gap in exchange.gaps)
        if exchange.output_tokens is not None and exchange.output_tokens > 1:
            found["tpot"].append((e2el - ttft) * 1e3 / (exchange.output_tokens - 1))
    return found


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Return mean, std (of the population, as vLLM) and percentiles of a series that is not empty."""
    return {"mean": mean(values), "std": std(values), **{f"p{p}": percentile(values, p) for p in _PERCENTILES}}


def steady_window(exchanges: Sequence[Exchange], concurrency: int) -> Window | None:
    """Return the time from the first moment with ``concurrency`` in flight to the last one; None if it never was.

    For a closed loop. What lies outside is ramp and drain.
    """
    changes = sorted(
        [(exchange.sent, 1) for exchange in exchanges] + [(exchange.ended, -1) for exchange in exchanges],
        key=lambda change: (change[0], change[1]),
    )
    flying, start, end = 0, None, None
    for moment, step in changes:
        if flying >= concurrency:
            end = moment
        flying += step
        if flying >= concurrency and start is None:
            start = moment
    return Window(start, end) if start is not None and end is not None and end > start else None


def tokens_within(exchange: Exchange, window: Window) -> float:
    """Return output tokens of an exchange that came inside a window: chunks there × tokens a chunk."""
    if not exchange.first or not exchange.output_tokens:
        return 0.0
    moment, inside = exchange.first, 0
    for gap in (0.0, *exchange.gaps):
        moment += gap
        inside += window.start <= moment <= window.end
    return exchange.output_tokens * inside / exchange.chunks


@dataclass(frozen=True)
class RoundResult:
    """One round in numbers. Latencies are milliseconds."""

    statistics: Mapping[str, Mapping[str, float]]
    rates: Mapping[str, float]
    pooled: Mapping[str, Sequence[float]]
    completed: int
    failed: int
    duration: float
    input_tokens: int
    output_tokens: int
    short: int
    """Requests with fewer output tokens than asked."""


def good(exchange: Exchange, slo: Mapping[str, float]) -> bool:
    """Whether a request met every limit. ``slo`` is in seconds, by figure (ttft, tpot, e2el; itl is its worst gap)."""
    found = series([exchange])
    return all(max(found[name], default=0.0) <= limit * 1e3 for name, limit in slo.items())


def measure_round(
    exchanges: Sequence[Exchange],
    *,
    started: float,
    asked_output: int,
    concurrency: int = 0,
    slo: Mapping[str, float] | None = None,
) -> RoundResult:
    """Turn one round into numbers. Throughput counts from the first send to the last end, as vLLM does.

    ``steady.*`` leaves ramp and drain out (closed loop, and only when it was ever steady).
    """
    completed = [exchange for exchange in exchanges if not exchange.error]
    begin = min((exchange.sent for exchange in exchanges), default=started)
    end = max((exchange.ended for exchange in exchanges), default=started)
    duration = max(1e-9, end - begin)
    outputs = sum(exchange.output_tokens or 0 for exchange in completed)
    inputs = sum(exchange.prompt_tokens or 0 for exchange in completed)
    pooled: dict[str, list[float]] = series(completed)
    pooled["send_lag"] = [max(0.0, exchange.sent - exchange.scheduled) * 1e3 for exchange in exchanges]
    rates = {
        "request_throughput": len(completed) / duration,
        "output_throughput": outputs / duration,
        "total_throughput": (inputs + outputs) / duration,
        "achieved_concurrency": sum(exchange.ended - exchange.sent for exchange in exchanges) / duration,
    }
    if slo:
        rates["goodput"] = sum(good(exchange, slo) for exchange in completed) / duration
    window = steady_window(exchanges, concurrency) if concurrency else None
    if window is not None and window.seconds > 0:
        rates["steady.output_throughput"] = sum(tokens_within(each, window) for each in completed) / window.seconds
        rates["steady.achieved_concurrency"] = (
            sum(max(0.0, min(each.ended, window.end) - max(each.sent, window.start)) for each in exchanges)
            / window.seconds
        )
        inside = [each for each in completed if each.sent > window.start and each.ended <= window.end]
        for name, values in series(inside).items():
            if values:
                pooled[f"steady.{name}"] = values
    return RoundResult(
        statistics={name: summarise(values) for name, values in pooled.items() if values},
        rates=rates,
        pooled=pooled,
        completed=len(completed),
        failed=len(exchanges) - len(completed),
        duration=duration,
        input_tokens=inputs,
        output_tokens=outputs,
        short=sum((exchange.output_tokens or 0) < asked_output for exchange in completed),
    )


def _unit(name: str) -> str:
    if name.endswith("concurrency"):
        return "count"
    return "tok/s" if name.endswith(("output_throughput", "total_throughput")) else "req/s"


def figures(rounds: Sequence[RoundResult]) -> list[Figure]:
    """Return the figures of a cell: the mean over rounds of each round's statistic, with its 95 % interval."""
    made = []
    for name in dict.fromkeys(name for each in rounds for name in each.statistics):
        have = [each for each in rounds if name in each.statistics]
        samples = sum(len(each.pooled[name]) for each in have)
        spread = std([value for each in have for value in each.pooled[name]])
        base = name.removeprefix("steady.")
        where = ", sent and ended while the load was steady" if base != name else ""
        for statistic in STATISTICS if base != "send_lag" else ("p50", "p99"):
            values = [each.statistics[name][statistic] for each in have]
            made.append(
                figure(
                    f"{name}.{statistic}",
                    mean(values),
                    "ms",
                    samples=samples,
                    spread=spread if statistic == "mean" else None,
                    over=values,
                    formula=f"{statistic} of {FORMULAS[base]}{where}; mean over {len(values)} rounds",
                )
            )
    for name in dict.fromkeys(name for each in rounds for name in each.rates):
        values = [each.rates[name] for each in rounds if name in each.rates]
        made.append(figure(name, mean(values), _unit(name), samples=len(values), over=values, formula=_RATES[name]))
    return made


_RATES = {
    "request_throughput": "completed requests / (last end − first send)",
    "output_throughput": "output tokens of completed requests (usage) / (last end − first send)",
    "total_throughput": "input and output tokens of completed requests / (last end − first send)",
    "achieved_concurrency": "sum of request times / (last end − first send)",
    "goodput": "completed requests that met every limit / (last end − first send)",
    "steady.output_throughput": "output tokens that came while the asked concurrency was in flight / that time",
    "steady.achieved_concurrency": "sum of request times while the asked concurrency was in flight / that time",
}

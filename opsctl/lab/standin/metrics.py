"""``/metrics`` in Prometheus' text format, with vLLM's names, labels and buckets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

_COUNTERS = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "request_success")
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_COARSE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_HISTOGRAMS = {
    "time_to_first_token_seconds": (0.001, 0.005, *_FINE),
    "inter_token_latency_seconds": _FINE,
    "e2e_request_latency_seconds": _COARSE,
}


@dataclass
class _Histogram:
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        self.counts = self.counts or [0] * len(self.bounds)
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self.counts[index] += 1
        self.total += value
        self.count += 1


class Metrics:
    """Counters, gauges and histograms of one model. Names are given without ``vllm:`` and ``_total``."""

    def __init__(self, model: str, version: tuple[int, int]) -> None:
        self._labels = f'engine="0",model_name="{model}"'
        self._numbers: defaultdict[str, float] = defaultdict(float)
        self._histograms = {name: _Histogram(bounds) for name, bounds in _HISTOGRAMS.items()}
        # Before 0.20 the gap between tokens had another name.
        self._shown_as = {"inter_token_latency_seconds": "time_per_output_token_seconds"} if version < (0, 20) else {}

    def count(self, name: str, amount: float) -> None:
        """Add to a counter."""
        self._numbers[name] += amount

    def gauge(self, name: str, value: float) -> None:
        """Set a gauge."""
        self._numbers[name] = value

    def observe(self, name: str, value: float) -> None:
        """Add to a histogram."""
        self._histograms[name].observe(value)

    def text(self) -> str:
        """Return the page."""
        lines: list[str] = []
        for name in _GAUGES:
            lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{self._labels}}} {self._numbers[name]}"]
        for name in _COUNTERS:
            lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{self._labels}}} {self._numbers[name]}"]
        for name, histogram in self._histograms.items():
            shown = f"vllm:{self._shown_as.get(name, name)}"
            lines.append(f"# TYPE {shown} histogram")
            for bound, count in zip(histogram.bounds, histogram.counts or [0] * len(histogram.bounds), strict=True):
                lines.append(f'{shown}_bucket{{{self._labels},le="{bound}"}} {count}')
            lines.append(f'{shown}_bucket{{{self._labels},le="+Inf"}} {histogram.count}')
            lines.append(f"{shown}_sum{{{self._labels}}} {histogram.total}")
            lines.append(f"{shown}_count{{{self._labels}}} {histogram.count}")
        return "\n".join(lines) + "\n"

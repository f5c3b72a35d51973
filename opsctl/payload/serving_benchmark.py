"""serving-benchmark: load on a model server, one cell a concurrency or request rate, with warm-up and rounds."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from opsctl.payload.errors import CellFailed, PayloadError
from opsctl.payload.idle_wait import Disturbed, NeverQuiet, QuietWatch
from opsctl.payload.latency import RoundResult, figures, measure_round, series, summarise
from opsctl.payload.load import Load, Offer, offer_load, poisson_arrivals
from opsctl.payload.output import Output
from opsctl.payload.prompts import PromptSource
from opsctl.payload.server import Server
from opsctl.payload.serving_spec import CellSpec, Metrics, Spec
from opsctl.payload.statistics import figure
from opsctl.payload.tls import Trust
from opsctl.payload.warmup import STEADY, WarmUp, streams_of, warm_up

#: Above this share of a core the client measures itself: in an M/M/1 queue the wait is then over 5 × the work.
SATURATED = 0.85
_BODIES = 256 << 20  # bytes of prompts that a round keeps ready at most
_BYTES_A_TOKEN = 6
FAILED_SHARE = 0.05
#: Above this share of answers that ended early a cell is inconclusive: it was measured, at another load than asked.
SHORT_SHARE = 0.05


def request_body(model: str, prompt: str, output_tokens: int) -> bytes:
    """Return the body of a streamed completion of exactly ``output_tokens`` tokens, with usage."""
    return json.dumps(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def default_requests(concurrency: int) -> int:
    """Return how many requests a round has where the playbook does not say: four waves, at least 8."""
    return max(8, 4 * concurrency)


def hit_rate(names: Metrics, before: Mapping[str, float], after: Mapping[str, float]) -> float | None:
    """Return the share of prompt tokens that the prefix cache gave between two readings; None where unknown."""
    for hits, queries in zip(names.cache_hits, names.cache_queries):
        asked = after.get(queries, 0.0) - before.get(queries, 0.0)
        if asked > 0:
            return (after.get(hits, 0.0) - before.get(hits, 0.0)) / asked
    return None


class _Cell:
    """One concurrency or request rate."""

    def __init__(self, spec: Spec, cell: CellSpec, server: Server, output: Output) -> None:
        self.spec = spec
        self.name = cell.id
        self.concurrency = cell.concurrency or 0
        self.rate = cell.request_rate or 0.0
        self.server = server
        self.output = output
        self.quiet = QuietWatch(spec.quiet, spec.metrics, server, output)
        self.sent = 0
        self.processes = 1
        self.prompts = PromptSource(spec.input_tokens, count=lambda text: server.count_tokens(spec.model, text))
        self.requests = max(spec.requests or default_requests(self.concurrency or 16), self.concurrency)
        self.deadline = time.monotonic() + spec.limit

    def _bodies(self, count: int) -> list[bytes]:
        tokens = self.spec.output_tokens
        return [request_body(self.spec.model, self.prompts.next_exact(), tokens) for _ in range(count)]

    def _offer(
        self, count: int, *, streams: int = 0, arrivals: list[float] | None = None, duration: float | None = None
    ) -> Offer:
        return Offer(
            self.server.url,
            self._bodies(count),
            concurrency=0 if arrivals else streams or max(1, self.concurrency),
            arrivals=arrivals or (),
            duration=duration,
            request_limit=self.spec.request_limit,
            headers=self.server.headers,
            trust=self.server.trust,
        )

    def _run(self, offer: Offer, text: str) -> Load:
        remaining = self.deadline - time.monotonic()

        def progress(done: int, of: int) -> None:
            self.output.progress(f"{self.name}, {text}", done, of, every=2.0)
            self.quiet.look(self.concurrency)

        load = offer_load(offer, processes=self.processes, limit=max(1.0, remaining), progress=progress)
        self.sent += len(load.exchanges)
        return load

    def warm_up(self) -> WarmUp:
        """Warm the server up at this cell's own load. Raises CellFailed when nothing came of a wave."""
        least = self.spec.warmup_requests
        if least == 0:
            return WarmUp()
        end = min(self.deadline, time.monotonic() + self.spec.warmup_limit)
        streams = self.concurrency or streams_of(self.rate, self._wave(1, least) / least)
        return warm_up(self._wave, streams, at_least=least, time_left=lambda: end - time.monotonic())

    def _wave(self, streams: int, count: int) -> float:
        """Send one wave of the warm-up and return its seconds."""
        load = self._run(self._offer(count, streams=streams), f"warm-up with {streams} in flight")
        failed = [exchange for exchange in load.exchanges if exchange.error]
        if len(failed) == len(load.exchanges):
            msg = f"every warm-up request failed: {failed[0].error}"
            raise CellFailed(msg)
        return max(exchange.ended for exchange in load.exchanges) - load.started

    def one_round(self, number: int, pace: float) -> tuple[RoundResult, Load]:
        """Offer one round; again with twice the processes while the client is its own bottleneck."""
        while True:
            arrivals = duration = None
            count = self.requests
            if self.rate:
                if self.spec.duration:
                    count = max(1, round(self.rate * self.spec.duration))
                # Every round has arrivals of its own, and the same ones in every run of this seed.
                arrivals = poisson_arrivals(self.rate, count, seed=self.spec.seed * 1000 + number)
            elif self.spec.duration:
                duration = self.spec.duration
                # At the pace of the warm-up (a request a second of each stream without one), with room to speed up.
                wanted = int(duration * (pace or self.concurrency) * 2)
                count = max(4 * self.concurrency, min(wanted, _BODIES // (_BYTES_A_TOKEN * self.prompts.tokens)))
            load = self._run(self._offer(count, arrivals=arrivals, duration=duration), f"round {number + 1}")
            if load.client_cpu <= SATURATED:
                break
            if self.processes >= len(os.sched_getaffinity(0)) or self.processes >= (self.concurrency or count):
                msg = (
                    f"the client was saturated: {load.client_cpu:.0%} of a core in the busiest of {load.processes} "
                    "processes, so it would have measured itself"
                )
                raise CellFailed(msg)
            self.processes *= 2
        result = measure_round(
            load.exchanges,
            started=load.started,
            asked_output=self.spec.output_tokens,
            concurrency=self.concurrency,
            slo=self.spec.slo,
        )
        if result.completed == 0:
            why = load.exchanges[0].error if load.exchanges else "none was sent"
            msg = f"round {number + 1}: no request completed: {why}"
            raise CellFailed(msg)
        return result, load

    def measure(self) -> str:
        """Measure the cell and record it. Return its state."""
        self.prompts.prepare()
        self.quiet.begin()
        warmed = self.warm_up()
        if warmed.seconds:
            self.output.evidence(f"{self.name}: warm-up at its own load", str(warmed))
        before = self.server.metrics()
        rounds: list[RoundResult] = []
        loads: list[Load] = []
        for number in range(self.spec.rounds):
            result, load = self.one_round(number, warmed.pace)
            rounds.append(result)
            loads.append(load)
        self.quiet.end(self.sent)
        return self._record(rounds, loads, warmed, hit_rate(self.spec.metrics, before, self.server.metrics()))

    def _record(self, rounds: list[RoundResult], loads: list[Load], warmed: WarmUp, hits: float | None) -> str:
        made = figures(rounds)
        if warmed.seconds:
            formula = f"until two waves differed by at most {STEADY:.0%}"
            made.append(figure("warmup.time", warmed.total, "s", samples=len(warmed.seconds), formula=formula))
        cpu = max(load.client_cpu for load in loads)
        made.append(figure("client_cpu", cpu, "ratio", samples=len(loads), formula="CPU time / wall, busiest process"))
        lag = max(load.lag_p99 for load in loads) * 1e3
        made.append(
            figure("client_lag.p99", lag, "ms", samples=len(loads), formula="lateness of the client's event loop")
        )
        if hits is not None:
            formula = "prefix cache hits / queries of /metrics, over all rounds"
            made.append(figure("prefix_cache_hit_rate", hits, "ratio", formula=formula))
        completed, failed = sum(each.completed for each in rounds), sum(each.failed for each in rounds)
        self._write_requests(loads)
        exhausted = sum(load.exhausted for load in loads)
        reason, state = self._verdict(rounds, completed, failed, exhausted)
        if not warmed.steady:
            reason = "; ".join(part for part in (reason, f"warm-up: {warmed}") if part)
        detail = self._detail(rounds, loads, completed, failed, hits)
        self.output.cell(self.name, state, reason=reason, figures=made, detail={**detail, "warmup": str(warmed)})
        self.output.evidence(
            f"{self.name}: requests that returned tokens",
            f"{completed} of {completed + failed} over {len(rounds)} rounds",
        )
        return state

    def _verdict(self, rounds: list[RoundResult], completed: int, failed: int, exhausted: int) -> tuple[str, str]:
        notes = []
        if exhausted:
            notes.append(f"{exhausted} of {len(rounds)} rounds ran out of prompts before their time")
        if failed:
            notes.append(f"{failed} of {completed + failed} requests failed")
        short = sum(each.short for each in rounds)
        if short:
            got = sum(each.output_tokens for each in rounds) / max(1, completed)
            notes.append(
                f"{short} of {completed} requests ended before {self.spec.output_tokens} tokens, with {got:.1f} on "
                "average: this is not the load that was asked"
            )
        if failed > FAILED_SHARE * (completed + failed):
            return "; ".join(notes), "failed"
        return "; ".join(notes), "inconclusive" if short > SHORT_SHARE * completed else "verified"

    def _detail(
        self, rounds: list[RoundResult], loads: list[Load], completed: int, failed: int, hits: float | None
    ) -> dict[str, Any]:
        pooled = series([each for load in loads for each in load.exchanges if not each.error])
        errors: dict[str, int] = {}
        for load in loads:
            for exchange in load.exchanges:
                if exchange.error:
                    errors[exchange.error] = errors.get(exchange.error, 0) + 1
        return {
            "rounds": [
                {"duration": each.duration, "completed": each.completed, "failed": each.failed, **each.rates}
                for each in rounds
            ],
            "pooled": {name: summarise(values) for name, values in pooled.items() if values},
            "duration": sum(each.duration for each in rounds),
            "completed": completed,
            "failed": failed,
            "errors": dict(sorted(errors.items(), key=lambda item: -item[1])[:5]),
            "total_input_tokens": sum(each.input_tokens for each in rounds),
            "total_output_tokens": sum(each.output_tokens for each in rounds),
            "prompts": self.prompts.method,
            "prefix_cache": "unknown: /metrics has no prefix cache counters" if hits is None else f"{hits:.4f}",
            "processes": max(load.processes for load in loads),
            "max_concurrency": self.concurrency or None,
            "request_rate": self.rate or None,
            "exhausted": any(load.exhausted for load in loads),
        }

    def _write_requests(self, loads: list[Load]) -> None:
        path = self.output.folder / f"requests-{slug(self.name)}.jsonl.gz"
        with gzip.open(path, "wt", compresslevel=5) as file:
            for number, load in enumerate(loads):
                for exchange in load.exchanges:
                    record = {"round": number + 1, **asdict(exchange)}
                    for stamp in ("scheduled", "sent", "first", "last", "ended"):
                        # Seconds from the round's start, or null for what never was.
                        record[stamp] = round(record[stamp] - load.started, 6) if record[stamp] else None
                    record["gaps"] = [round(gap, 6) for gap in exchange.gaps]
                    file.write(json.dumps(record, separators=(",", ":")) + "\n")
        self.output.artifact(path, "requests")


def slug(name: str) -> str:
    """Return a cell's id as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Measure every cell. Returns the state and reason of the ``end`` record."""
    cells = spec.cells
    with Server(spec.url, api_key_file=spec.api_key_file, trust=Trust(spec.ca_file, spec.verify)) as server:
        served = server.models()
        output.evidence("GET /v1/models", ", ".join(served))
        if spec.model not in served:
            msg = f"{spec.model} is not served at {server.url}: it serves {', '.join(served) or 'nothing'}"
            raise PayloadError(msg)
        output.environment({"engine": {"url": server.url, "version": server.version(spec.version), "models": served}})
        try:
            QuietWatch(spec.quiet, spec.metrics, server, output).await_quiet()
        except NeverQuiet as error:
            return _leave(output, cells, str(error))
        states: list[str] = []
        for place, cell in enumerate(cells):
            if cell.id in output.verified:
                states.append("verified")
                continue
            output.progress(cell.id, place, len(cells))
            output.cell(cell.id, "running")
            try:
                states.append(_Cell(spec, cell, server, output).measure())
            except Disturbed as error:
                output.cell(cell.id, "inconclusive", reason=str(error))
                return _leave(output, cells[place + 1 :], str(error))
            except PayloadError as error:
                output.cell(cell.id, "failed", reason=str(error))
                states.append("failed")
    return verdict(states)


def _leave(output: Output, cells: Sequence[CellSpec], reason: str) -> tuple[str, str]:
    """Skip the cells that are left: production is in use. Returns the state and reason of the ``end`` record."""
    for cell in cells:
        if cell.id not in output.verified:
            output.cell(cell.id, "skipped", reason=reason)
    return "inconclusive", reason


def verdict(states: Sequence[str]) -> tuple[str, str]:
    """Return the state and reason of a stage from those of its cells: how many of how many."""
    state = next((each for each in ("failed", "inconclusive") if each in states), "verified")
    return state, f"{states.count('verified')} of {len(states)} cells measured"

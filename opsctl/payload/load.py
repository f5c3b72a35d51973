"""Offering load: closed loop (so many in flight) or open loop (arrivals at given times), from one or more processes.

The load leaves from child processes, so that the parent can watch, write progress and take a SIGTERM. Each child
has an event loop of its own and its share of the streams; all clocks are CLOCK_MONOTONIC, so stamps compare.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Any

from opsctl.payload.errors import PayloadError
from opsctl.payload.sse import Exchange, StreamClient
from opsctl.payload.statistics import percentile
from opsctl.payload.tls import Trust

_LAG_PERIOD = 0.02
_HEAD_START = 0.15  # seconds from the fork to the first request: every child is up by then


@dataclass(frozen=True)
class Offer:
    """One round of load. ``bodies`` are request bodies, one a request, never used twice.

    Closed loop: ``concurrency`` requests in flight until the bodies, or ``duration`` seconds, are used up.
    Open loop: ``arrivals`` are seconds from the start, one a body.
    """

    url: str
    bodies: Sequence[bytes]
    concurrency: int = 0
    arrivals: Sequence[float] = ()
    duration: float | None = None
    request_limit: float = 600.0
    headers: dict[str, str] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)


@dataclass
class Load:
    """What a round gave: every exchange, and how hard the client worked."""

    exchanges: list[Exchange]
    started: float
    client_cpu: float
    """Share of one core, of the busiest process."""
    processes: int
    lag_p99: float
    """Seconds by which the client's event loop was late: how far its stamps can be off."""
    exhausted: bool = False
    """Whether a round of given duration ran out of prompts before its time."""


def poisson_arrivals(rate: float, count: int, seed: int) -> list[float]:
    """Return arrival times in seconds: gaps exponentially distributed with mean 1/rate, the first at 0."""
    chance = random.Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += chance.expovariate(rate)
    return times


def _deal(offer: Offer, processes: int) -> list[Offer]:
    """Split an offer into one a process: streams as evenly as they go, bodies in proportion."""
    if offer.arrivals:
        parts = range(processes)
        return [replace(offer, bodies=offer.bodies[p::processes], arrivals=offer.arrivals[p::processes]) for p in parts]
    shares = [offer.concurrency // processes + (part < offer.concurrency % processes) for part in range(processes)]
    dealt: list[list[bytes]] = [[] for _ in range(processes)]
    turns = [part for slot in range(max(shares)) for part in range(processes) if slot < shares[part]]
    for place, body in enumerate(offer.bodies):
        dealt[turns[place % len(turns)]].append(body)
    return [replace(offer, bodies=bodies, concurrency=share) for bodies, share in zip(dealt, shares)]


class _Round:
    """One child's part of a round."""

    def __init__(self, offer: Offer, pipe: Pipe, start: float) -> None:
        self.offer = offer
        self.pipe = pipe
        self.start = start
        self.client = StreamClient(offer.url, headers=offer.headers, trust=offer.trust)
        self.finished: list[Exchange] = []
        self.lags: list[float] = []
        self.exhausted = False

    async def run(self) -> None:
        await asyncio.sleep(max(0.0, self.start - time.perf_counter()))
        watch = asyncio.get_running_loop().create_task(self._watch())
        try:
            await (self._open() if self.offer.arrivals else self._closed())
        finally:
            watch.cancel()
            self.client.close()

    async def _one(self, body: bytes, exchange: Exchange) -> None:
        await self.client.complete(body, exchange, limit=self.offer.request_limit)
        self.finished.append(exchange)

    async def _closed(self) -> None:
        waiting: Iterator[tuple[int, bytes]] = iter(enumerate(self.offer.bodies))
        end = self.start + self.offer.duration if self.offer.duration else None

        async def stream() -> None:
            free = self.start
            while end is None or time.perf_counter() < end:
                index, body = next(waiting, (-1, b""))
                if index < 0:
                    self.exhausted = end is not None
                    return
                exchange = Exchange(index, scheduled=free)
                await self._one(body, exchange)
                free = exchange.ended
                if exchange.error:
                    await asyncio.sleep(0.1)  # a server that refuses at once must not be hammered

        await asyncio.gather(*(stream() for _ in range(self.offer.concurrency)))

    async def _open(self) -> None:
        tasks = []
        for index, (arrival, body) in enumerate(zip(self.offer.arrivals, self.offer.bodies)):
            due = self.start + arrival
            ahead = due - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            exchange = Exchange(index, scheduled=due)
            tasks.append(asyncio.get_running_loop().create_task(self._one(body, exchange)))
        await asyncio.gather(*tasks)

    async def _watch(self) -> None:
        said = 0
        while True:
            due = time.perf_counter() + _LAG_PERIOD
            await asyncio.sleep(_LAG_PERIOD)
            self.lags.append(max(0.0, time.perf_counter() - due))
            if len(self.finished) - said >= max(1, len(self.offer.bodies) // 50):
                said = len(self.finished)
                self.pipe.send(("progress", said))


def _child(offer: Offer, pipe: Pipe, start: float) -> None:
    # A collection in the middle of a round would be a pause of every stream.
    gc.disable()
    part = _Round(offer, pipe, start)
    began = time.process_time()
    try:
        asyncio.run(part.run())
    except KeyboardInterrupt:
        os._exit(1)
    wall = max(1e-9, time.perf_counter() - start)
    pipe.send(
        (
            "done",
            {
                "exchanges": part.finished,
                "cpu": (time.process_time() - began) / wall,
                "lag": percentile(part.lags, 99) if part.lags else 0.0,
                "exhausted": part.exhausted,
            },
        )
    )
    pipe.close()


def offer_load(
    offer: Offer,
    *,
    processes: int = 1,
    limit: float,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Load:
    """Offer one round and return what came of it. Raises PayloadError when a child dies or the limit passes."""
    processes = max(1, min(processes, offer.concurrency or len(offer.bodies), len(offer.bodies) or 1))
    # fork: the bodies are there already, and nothing of the parent (one thread, no event loop) can be caught halfway.
    context = multiprocessing.get_context("fork")
    start = time.perf_counter() + _HEAD_START
    children: dict[Pipe, Any] = {}
    done = dict.fromkeys(range(processes), 0)
    results: list[dict[str, Any]] = []
    places: dict[Pipe, int] = {}
    try:
        for place, part in enumerate(_deal(offer, processes)):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_child, args=(part, theirs, start), daemon=True)
            child.start()
            theirs.close()
            children[ours], places[ours] = child, place
        end = time.perf_counter() + limit
        while children:
            ready = wait(list(children), timeout=max(0.0, end - time.perf_counter()))
            if not ready:
                msg = f"the round did not end within {limit:g} s"
                raise PayloadError(msg)
            for pipe in ready:
                _take(pipe, children, results, done, places)  # type: ignore[arg-type]
            progress(sum(done.values()), len(offer.bodies))
    finally:
        for pipe, child in children.items():
            child.kill()
            child.join()
            pipe.close()
    exchanges = [exchange for result in results for exchange in result["exchanges"]]
    exchanges.sort(key=lambda exchange: exchange.sent)
    return Load(
        exchanges=exchanges,
        started=start,
        client_cpu=max(result["cpu"] for result in results),
        processes=processes,
        lag_p99=max(result["lag"] for result in results),
        exhausted=any(result["exhausted"] for result in results),
    )


def _take(
    pipe: Pipe, children: dict[Pipe, Any], results: list[dict[str, Any]], done: dict[int, int], places: dict[Pipe, int]
) -> None:
    try:
        kind, value = pipe.recv()
    except EOFError:
        child = children.pop(pipe)
        child.join()
        pipe.close()
        msg = f"a load process died with status {child.exitcode}"
        raise PayloadError(msg) from None
    if kind == "progress":
        done[places[pipe]] = value
        return
    results.append(value)
    done[places[pipe]] = len(value["exchanges"])
    child = children.pop(pipe)
    child.join()
    pipe.close()

"""Continuous batching: every step takes in waiting requests and gives each running one its next token."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from opsctl.lab.standin.executor import EngineDeadError, Executor, Step
from opsctl.lab.standin.metrics import Metrics

EOS = 257
_BLOCK = 16
_MOST_PREFILLS = 8


@dataclass
class Request:
    """One completion on its way."""

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool
    arrived: float
    produced: int = 0
    last_token: int = 0
    last_time: float = 0.0
    tokens: asyncio.Queue[int | None] = field(default_factory=asyncio.Queue)
    """Token after token; None at the end."""
    dropped: bool = False


class Scheduler:
    """Runs steps as long as there are requests. One executor thread: a step, or a profiler call, at a time."""

    def __init__(self, executor: Executor, metrics: Metrics, *, on_death: Callable[[], None]) -> None:
        self._executor = executor
        self._metrics = metrics
        self._on_death = on_death
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting: deque[Request] = deque()
        self._running: dict[int, Request] = {}
        self._finished: list[int] = []
        self._wake = asyncio.Event()
        self._numbers = itertools.count(1)
        self._blocks: set[int] = set()
        self._chance = random.Random(7)  # noqa: S311 - when a text ends
        self.dead = False

    async def call(self, function: Callable[[], None]) -> None:
        """Run something else on the engine's thread, between steps."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def generate(self, prompt: tuple[int, ...], max_tokens: int, *, ignore_eos: bool) -> AsyncIterator[int]:
        """Yield the tokens of one completion. Raises EngineDeadError."""
        if self.dead:
            raise EngineDeadError
        request = Request(next(self._numbers), prompt, max_tokens, ignore_eos, time.monotonic())
        self._waiting.append(request)
        self._show_load()
        self._wake.set()
        try:
            while (token := await request.tokens.get()) is not None:
                yield token
            if self.dead:
                raise EngineDeadError
        finally:
            request.dropped = True

    async def run(self) -> None:
        """Run steps without end; when the engine fails, end every request with an error."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting and not self._running:
                self._wake.clear()
                await self._wake.wait()
            step = self._next_step()
            try:
                tokens = await loop.run_in_executor(self._thread, self._executor.step, step)
            except EngineDeadError:
                self.die()
                return
            self._hand_out(tokens)
            self._show_load()

    def die(self) -> None:
        """End every request with an error."""
        self.dead = True
        for request in (*self._running.values(), *self._waiting):
            request.tokens.put_nowait(None)
        self._on_death()

    def _next_step(self) -> Step:
        for number, request in list(self._running.items()):
            if request.dropped:
                self._finish(number)
        taken: list[Request] = []
        cached = 0
        while self._waiting and len(taken) < _MOST_PREFILLS:
            request = self._waiting.popleft()
            if not request.dropped:
                taken.append(request)
                cached += self._look_up_prefix(request.prompt)
        step = Step(
            prefills=tuple((request.number, request.prompt) for request in taken),
            decodes=tuple((number, request.last_token) for number, request in self._running.items()),
            finished=tuple(self._finished),
            cached=cached,
        )
        self._finished.clear()
        self._running |= {request.number: request for request in taken}
        return step

    def _look_up_prefix(self, prompt: tuple[int, ...]) -> int:
        """Return how many leading tokens an earlier prompt shared, in blocks of 16, and remember this one."""
        hits, running = 0, 0
        for start in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
            running = hash((running, prompt[start : start + _BLOCK]))
            if running in self._blocks and hits == start:
                hits += _BLOCK
            self._blocks.add(running)
        self._metrics.count("prefix_cache_queries", len(prompt))
        self._metrics.count("prefix_cache_hits", hits)
        self._metrics.count("prompt_tokens", len(prompt))
        return hits

    def _hand_out(self, tokens: dict[int, int]) -> None:
        now = time.monotonic()
        for number, token in tokens.items():
            request = self._running.get(number)
            if request is None:
                continue
            ended = token == EOS or self._chance.random() < 1 / 64
            if request.produced == 0:
                self._metrics.observe("time_to_first_token_seconds", now - request.arrived)
            else:
                self._metrics.observe("inter_token_latency_seconds", now - request.last_time)
            request.produced += 1
            request.last_token, request.last_time = token, now
            self._metrics.count("generation_tokens", 1)
            request.tokens.put_nowait(token)
            if request.produced >= request.max_tokens or (ended and not request.ignore_eos):
                self._metrics.observe("e2e_request_latency_seconds", now - request.arrived)
                request.tokens.put_nowait(None)
                self._finish(number)

    def _finish(self, number: int) -> None:
        del self._running[number]
        self._finished.append(number)

    def _show_load(self) -> None:
        self._metrics.gauge("num_requests_running", len(self._running))
        self._metrics.gauge("num_requests_waiting", len(self._waiting))
        self._metrics.gauge("kv_cache_usage_perc", min(1.0, 0.001 * len(self._running)))

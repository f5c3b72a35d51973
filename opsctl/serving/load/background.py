"""Readings that go on in the background, so that a hung request never blinds the wait to a dying unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Generic, TypeVar

from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService
from opsctl.results import Evidence
from opsctl.serving.listening import Holding, PortHolder
from opsctl.serving.probing import Answer, ServerProbe, request_limit, stranger
from opsctl.serving.waits import evidence

Reading = TypeVar("Reading")


class Background(Generic[Reading]):
    """One reading at a time, in a thread of its own; ``collect`` never waits."""

    def __init__(self, read: Callable[[], Reading], name: str) -> None:
        self._read = read
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"opsctl-{name}")
        self._asked: Future[Reading] | None = None
        self._due = 0.0

    def collect(self, every: float) -> Reading | None:
        """Return what was read, if a reading has ended; another begins ``every`` seconds later. Raises its error."""
        if self._asked is None:
            if time.monotonic() >= self._due:
                self._asked = self._pool.submit(self._read)
            return None
        if not self._asked.done():
            return None
        return self._take(every)

    def now(self) -> Reading:
        """Return a fresh reading, waiting for one. Raises its error."""
        if self._asked is None:
            self._asked = self._pool.submit(self._read)
        return self._take(0.0)

    def pause(self, seconds: float) -> None:
        """Wait at most so long: until the reading at work has ended, or the next is due."""
        if self._asked is not None:
            wait([self._asked], timeout=seconds)
        else:
            time.sleep(min(seconds, max(0.0, self._due - time.monotonic())))

    def _take(self, every: float) -> Reading:
        asked, self._asked = self._asked, None
        assert asked is not None  # noqa: S101 - both callers have just seen one
        self._due = time.monotonic() + every
        return asked.result()

    def close(self) -> None:
        """Wait for the thread; whoever closes has ended what the reading waits for."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class BackgroundProbe:
    """Asks a server for its models, and once they are listed for a row of completions, in the background."""

    def __init__(self, host: Host, service: ResolvedService, *, deadline: Deadline) -> None:
        self._host = host
        self._service = service
        self._deadline = deadline
        self._probe: ServerProbe | None = None
        self._background = Background(self._ask, "outcome")
        self._closed = False
        self.listed: Evidence | None = None
        """That the model was listed, once it was."""
        self.tokens: tuple[Evidence, ...] = ()
        """The completions in a row that came so far."""
        self.held: PortHolder | None = None
        """Who held the port after the last of them."""

    def close(self) -> None:
        """End the question in flight and the thread that asks it."""
        self._closed = True
        self._forget()
        self._background.close()

    def renew(self) -> None:
        """Forget the connections of a link that was lost."""
        self._forget()

    def _forget(self) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            with suppress(Exception):
                probe.close()

    def collect(self, every: float) -> Answer | None:
        """Return the last answer of a round, if one has ended. Raises HostError, NotReady (key file).

        A round is the list of models, and completions in a row after it; it ends at the first answer that is
        not good, or when there were enough.
        """
        return self._background.collect(every)

    def pause(self, seconds: float) -> None:
        """Wait at most so long for a round to end."""
        self._background.pause(seconds)

    def version(self) -> str | None:
        """Ask for the version, in the caller's own thread, once the server serves."""
        return self._ready_probe().version(limit=request_limit(self._service, self._deadline, most=10.0))

    def _ready_probe(self) -> ServerProbe:
        if self._probe is None:
            self._probe = ServerProbe(self._host, self._service, deadline=self._deadline)
        return self._probe

    def _ask(self) -> Answer:
        probe = self._ready_probe()
        answer = probe.models(limit=request_limit(self._service, self._deadline, most=10.0))
        self.tokens = ()
        if not answer.good:
            return answer
        self.listed = evidence("GET /v1/models", answer.seen)
        while len(self.tokens) < self._service.readiness.completions and not self._closed:
            answer = probe.completion(limit=request_limit(self._service, self._deadline))
            if not answer.good:
                self.tokens = ()
                return answer
            self.tokens = (*self.tokens, evidence("POST /v1/completions", answer.seen))
        self.held = probe.holder()
        if self.held.holding is Holding.OTHER:
            self.tokens, self.listed = (), None
            return stranger(self.held)
        return answer


class Every:
    """Says when something is due again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def due(self, seconds: float) -> bool:
        """Return whether ``seconds`` passed since this last said so."""
        now = self._clock()
        if self._last is not None and now - self._last < seconds:
            return False
        self._last = now
        return True

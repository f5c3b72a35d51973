"""Knocks at a server in the background, so that a hung request never blinds the wait to a dying unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from opsctl.deadline import Deadline
from opsctl.host.protocol import Host
from opsctl.playbook.resolved import ResolvedService
from opsctl.serving.probing import Answer, ServerProbe, request_limit


class Knocker:
    """One question in flight at a time: the models first, then completions once the model was listed.

    ``collect`` returns an answer when there is one, else None. An error of the link is raised there.
    """

    def __init__(self, host: Host, service: ResolvedService, *, deadline: Deadline) -> None:
        self.listed = False
        self._host = host
        self._service = service
        self._deadline = deadline
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="opsctl-knock")
        self._probe: ServerProbe | None = None
        self._asked: Future[tuple[str, Answer]] | None = None
        self._due = 0.0

    def close(self) -> None:
        """End the question in flight and the thread that asks it."""
        if self._probe is not None:
            self._probe.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._asked is not None and self._asked.done() and not self._asked.cancelled():
            self._asked.exception()

    def renew(self) -> None:
        """Forget the connections of a link that was lost."""
        if self._probe is not None:
            with suppress(Exception):
                self._probe.close()
        self._probe, self._asked = None, None

    def collect(self, every: float) -> tuple[str, Answer] | None:
        """Return (what was asked, the answer) if one has come. Ask again ``every`` seconds after the last answer.

        After a good answer the next question follows at once. Raises HostError, NotReady (key file).
        """
        if self._asked is not None:
            if not self._asked.done():
                return None
            asked, self._asked = self._asked, None
            path, answer = asked.result()
            self.listed = answer.good if path == "/v1/models" else self.listed
            self._due = time.monotonic() + (0.0 if answer.good else every)
            return path, answer
        if time.monotonic() >= self._due:
            self._asked = self._pool.submit(self._completion if self.listed else self._models)
        return None

    def version(self) -> str | None:
        """Ask for the version, in the caller's own thread, once the server serves."""
        return self._ready_probe().version(limit=min(10.0, request_limit(self._service, self._deadline)))

    def _ready_probe(self) -> ServerProbe:
        if self._probe is None:
            self._probe = ServerProbe(self._host, self._service, deadline=self._deadline)
        return self._probe

    def _models(self) -> tuple[str, Answer]:
        return "/v1/models", self._ready_probe().models(limit=request_limit(self._service, self._deadline, most=10.0))

    def _completion(self) -> tuple[str, Answer]:
        return "/v1/completions", self._ready_probe().completion(limit=request_limit(self._service, self._deadline))


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

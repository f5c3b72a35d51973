"""Noticing that a link is dead: paramiko sends keepalives but never judges them, so a cut cable can hang an hour."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from paramiko import SSHException

INTERVAL = 4.0
"""Seconds of silence after which the host is asked whether it is there."""
LIMIT = 8.0
"""Seconds in which anything at all must come back. A dead link is closed after INTERVAL + LIMIT at the latest."""


class HeardSocket:
    """A socket (or channel of a jump host) that remembers when it last brought bytes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.last = time.monotonic()

    def recv(self, count: int) -> bytes:
        """Receive, and note the time."""
        data: bytes = self._inner.recv(count)
        if data:
            self.last = time.monotonic()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Liveness:
    """Asks over a transport that is silent, and closes it when nothing comes back. One thread, ended by ``stop``.

    Bytes of any kind count as life: an answer may queue behind a large file on a slow line.
    """

    def __init__(self, transport: Any, heard: HeardSocket, *, interval: float = INTERVAL, limit: float = LIMIT) -> None:
        self._transport = transport
        self._heard = heard
        self._interval, self._limit = interval, limit
        self._stop = threading.Event()
        self.died = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="opsctl-liveness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The transport is closed first, or a question in flight is waited for."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(self._limit)

    def _watch(self) -> None:
        while self._transport.is_active():
            asked = time.monotonic()
            if (quiet := self._heard.last + self._interval - asked) > 0:
                if self._stop.wait(quiet):
                    return
                continue
            judged = threading.Thread(target=self._judge, args=(asked,), name="opsctl-judge", daemon=True)
            answered = self._answered = threading.Event()
            judged.start()
            with contextlib.suppress(
                SSHException, EOFError, OSError
            ):  # a transport that closes meanwhile: the loop's condition sees it
                self._transport.global_request("keepalive@openssh.com", wait=True)
            answered.set()
            judged.join(self._limit)

    def _judge(self, asked: float) -> None:
        """Close the transport when the question stays without any byte; the asker may itself hang in send."""
        answered = self._answered
        while not answered.wait(self._limit):
            if self._heard.last < max(asked, time.monotonic() - self._limit):
                self.died.set()
                self._transport.close()
                return

"""The hot path: HTTP/1.1 with server-sent events on bare asyncio, a stamp for each chunk and nothing else.

Chosen by measurement (``benchmarks/load_generator.py``): at 64 streams of 100 tokens a second the parsing of a
general client costs more than the streams themselves, and TTFT is the first figure to suffer. Everything that
is not a stream goes through httpx (``server.py``).
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from opsctl.payload.tls import Trust

_NO_CHOICES = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"(\w+)"')
#: Ways in which a server ends a request that it did not complete, whatever the status of the answer was.
_UNFINISHED = {"abort", "aborted", "error", "cancel", "cancelled", "canceled"}
_ERROR_BODY = 4096  # bytes of an error's body that are kept
_HEAD_LIMIT = 65536


@dataclass
class Exchange:
    """One streamed completion as the client saw it. Times are ``time.perf_counter`` seconds."""

    index: int
    scheduled: float = 0.0
    """When it should have been sent: the arrival in an open loop, the moment a slot fell free in a closed one."""
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Seconds between chunks that carry a choice: the inter-token latencies."""
    status: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """Both from the server's ``usage``, never from counting chunks."""
    finish: str = ""
    """The server's ``finish_reason``; "" where it gave none."""
    error: str = ""

    @property
    def chunks(self) -> int:
        """How many chunks carried a choice."""
        return len(self.gaps) + 1 if self.first else 0


def _data_of(event: bytes) -> bytes:
    """Return the data of an event: its data lines joined, comments and other fields left out (WHATWG HTML 9.2.6)."""
    lines = (line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(lines)


class Connection(asyncio.Protocol):
    """One connection that carries one exchange after another."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.usable = True
        self.fresh = True
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._pending = b""
        self._events = b""
        self._after_cr = False
        self._state = "head"
        self._left = 0
        self._keep = True
        self._error_body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport that asyncio made."""
        self.transport = transport  # type: ignore[assignment]

    def send(self, request: bytes, exchange: Exchange) -> asyncio.Future[None]:
        """Write a request and stamp it. The future ends with the response, whatever became of it."""
        transport = self.transport
        if transport is None:
            msg = "a request was sent before the connection was made"
            raise RuntimeError(msg)
        self._exchange = exchange
        self._done = asyncio.get_running_loop().create_future()
        exchange.sent = time.perf_counter()
        transport.write(request)
        return self._done

    def abort(self, why: str) -> None:
        """Give up on the exchange in flight."""
        self.usable = False
        if self._exchange is not None and not self._exchange.error:
            self._exchange.error = why
        self._finish()
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close an idle connection."""
        self.usable = False
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """End the exchange in flight: complete if its length was *until close*, failed otherwise."""
        self.usable = False
        exchange = self._exchange
        if exchange is None:
            return
        if self._state != "until-close" and not exchange.error:
            seen = "nothing was answered" if self._state == "head" else "the answer was cut short"
            exchange.error = f"the server closed the connection: {seen}{f' ({error})' if error else ''}"
        self._finish()

    def data_received(self, data: bytes) -> None:
        """Stamp what came and take it apart. Called once a read of the socket."""
        now = time.perf_counter()
        exchange = self._exchange
        if exchange is None:
            self.close()  # bytes that were not asked for: never reuse this connection
            return
        try:
            self._take(self._pending + data if self._pending else data, exchange, now)
        except (ValueError, IndexError) as error:
            self.abort(f"the answer is not HTTP/1.1 as it should be: {error}")

    def _take(self, buffer: bytes, exchange: Exchange, now: float) -> None:
        position, size = 0, len(buffer)
        while True:
            if self._state == "chunk-size":
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    break
                self._left = int(buffer[position:end].split(b";", 1)[0], 16)
                position = end + 2
                self._state = "chunk" if self._left else "trailer"
            elif self._state == "chunk":
                if size - position < self._left + 2:
                    break
                self._body(buffer[position : position + self._left], exchange, now)
                position += self._left + 2
                self._state = "chunk-size"
            elif self._state == "trailer":
                end = buffer.find(b"\r\n", position)
                if end < 0:
                    break
                if end == position:
                    self._finish()
                    return
                position = end + 2
            elif self._state == "head":
                end = buffer.find(b"\r\n\r\n", position)
                if end < 0:
                    if size > _HEAD_LIMIT:
                        msg = "a head of more than 64 KiB"
                        raise ValueError(msg)
                    break
                self._head(buffer[position:end], exchange)
                position = end + 4
            elif self._state == "length":
                part = buffer[position : position + self._left]
                self._left -= len(part)
                position += len(part)
                self._body(part, exchange, now)
                if self._left == 0:
                    self._finish()
                    return
                break
            else:  # until-close
                self._body(buffer[position:], exchange, now)
                position = size
                break
        self._pending = buffer[position:]

    def _head(self, head: bytes, exchange: Exchange) -> None:
        lines = head.decode("latin-1").split("\r\n")
        exchange.status = int(lines[0].split(" ", 2)[1])
        if exchange.status == 100:
            return
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        self._keep = headers.get("connection", "") != "close"
        if headers.get("transfer-encoding", "").endswith("chunked"):
            self._state = "chunk-size"
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
            self._state = "length"
        else:
            self._state, self._keep = "until-close", False

    def _body(self, body: bytes, exchange: Exchange, now: float) -> None:
        if exchange.status != 200:
            self._error_body = (self._error_body + body)[:_ERROR_BODY]
            return
        if self._after_cr and body:
            # The CR at the end of what came before ended its line: an LF after it is part of the same ending.
            self._after_cr = False
            body = body[1:] if body.startswith(b"\n") else body
        if b"\r" in body:
            self._after_cr = body.endswith(b"\r")
            body = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._events:
            body = self._events + body
            self._events = b""
        if body.endswith(b"\n\n"):
            for event in body[:-2].split(b"\n\n"):
                self._event(event, exchange, now)
            return
        *events, self._events = body.split(b"\n\n")
        for event in events:
            self._event(event, exchange, now)

    def _event(self, event: bytes, exchange: Exchange, now: float) -> None:
        # The common event is one line of data, and not parsed: a choice is there, so a token was produced, whatever
        # its text (it can be empty). Inside a JSON string quotes would be escaped, so this cannot be fooled.
        data = event[5:] if event.startswith(b"data:") and b"\n" not in event else _data_of(event)
        if b'"choices"' in data and not _NO_CHOICES.search(data):
            if exchange.first:
                exchange.gaps.append(now - exchange.last)
            else:
                exchange.first = now
            exchange.last = now
            finish = _FINISH.search(data)
            if finish:
                exchange.finish = finish[1].decode()
            if not _USAGE.search(data):
                return
        self._data(data.strip(), exchange)

    def _data(self, data: bytes, exchange: Exchange) -> None:
        if data == b"[DONE]" or not data:
            return
        message: Any = json.loads(data)
        if not isinstance(message, dict):
            return
        usage = message.get("usage")
        if isinstance(usage, dict):
            exchange.prompt_tokens = usage.get("prompt_tokens", exchange.prompt_tokens)
            exchange.output_tokens = usage.get("completion_tokens", exchange.output_tokens)
        if message.get("error"):
            exchange.error = f"the server reported an error in the stream: {str(message['error'])[:300]}"

    def _finish(self) -> None:
        exchange, done = self._exchange, self._done
        self._exchange = self._done = None
        if exchange is not None:
            exchange.ended = time.perf_counter()
            if exchange.status not in {0, 200} and not exchange.error:
                exchange.error = f"status {exchange.status}: {self._error_body.decode(errors='replace')[:300]}"
            elif not exchange.error and exchange.finish in _UNFINISHED:
                exchange.error = f"the server gave the request up: finish_reason {exchange.finish}"
            elif not exchange.error and (not exchange.first or exchange.output_tokens == 0):
                exchange.error = "the answer held no token"
            elif not exchange.error and exchange.output_tokens is None:
                exchange.error = "the server sent no usage: the number of tokens is unknown"
        if not self._keep:
            self.usable = False
        self._reset()
        self.fresh = False
        if done is not None and not done.done():
            done.set_result(None)
        if not self.usable and self.transport is not None:
            self.transport.close()


class StreamClient:
    """A pool of connections to one server. ``headers`` must hold no line breaks."""

    def __init__(
        self,
        url: str,
        *,
        path: str = "/v1/completions",
        headers: dict[str, str] | None = None,
        trust: Trust | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self._tls = (trust or Trust()).context() if parts.scheme == "https" else None
        self.port = parts.port or (443 if self._tls else 80)
        lines = {
            "Host": parts.netloc.rsplit("@", 1)[-1],
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **(headers or {}),
        }
        target = parts.path.rstrip("/") + path
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._head = f"POST {target} HTTP/1.1\r\n{head}Content-Length: ".encode("latin-1")
        self._idle: list[Connection] = []

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self.host, self.port, ssl=self._tls)
        return connection

    async def complete(self, body: bytes, exchange: Exchange, *, limit: float) -> None:
        """Stream one completion into ``exchange``; after ``limit`` seconds it is given up. Raises nothing of its own.

        The connection is made before the stamp of sending: TTFT is first token − send.
        """
        request = self._head + str(len(body)).encode() + b"\r\n\r\n" + body
        try:
            async with asyncio_timeout(limit):
                connection = self._pick() or await self._connect()
        except (OSError, TimeoutError) as error:
            exchange.sent = exchange.ended = time.perf_counter()
            exchange.error = f"no connection to {self.host}:{self.port}: {error or 'no answer in time'}"
            return
        reused = not connection.fresh
        await self._exchange(connection, request, exchange, limit)
        if reused and exchange.status == 0 and "nothing was answered" in exchange.error:
            # The server closed an idle connection just as we took it: no request was lost, send it anew.
            exchange.error = ""
            await self.complete(body, exchange, limit=limit)

    async def _exchange(self, connection: Connection, request: bytes, exchange: Exchange, limit: float) -> None:
        done = connection.send(request, exchange)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(limit, connection.abort, f"no end within {limit:g} s")
        try:
            await done
        finally:
            timer.cancel()
        if connection.usable:
            self._idle.append(connection)

    def _pick(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


class asyncio_timeout:  # noqa: N801 - asyncio.timeout came with Python 3.11
    """The part of ``asyncio.timeout`` that is needed here, for Python 3.9 and 3.10."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            msg = "a limit wants a task"
            raise RuntimeError(msg)
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire, task)

    def _expire(self, task: asyncio.Task[Any]) -> None:
        self._expired = True
        task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._expired and kind is asyncio.CancelledError:
            raise TimeoutError

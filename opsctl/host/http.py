"""HTTP from the host: httpx over direct-tcpip channels, so that a server on the host's loopback is reached.

Errors of HTTP itself stay httpx's (ConnectError is what a loading server gives); a link that dies is
TransportLost, and a request that outlasts its total limit is DeadlineExceeded. The total is what httpx lacks:
its read limit starts anew with every byte. It is given with a request::

    client.post(url, json=…, extensions={"deadline": deadline})
"""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import httpcore
import httpx

from opsctl.deadline import Deadline
from opsctl.host.error_mapping import link_lost, ssh_errors
from opsctl.host.tls import TlsStream, Trust

CONNECT, READ, WRITE = 10.0, 60.0, 30.0
TOTAL = 120.0
"""Seconds for a request whose caller gives no deadline."""
_CONNECT_FAILED = 2  # RFC 4254: SSH_OPEN_CONNECT_FAILED

_request = threading.local()


def client(
    backend: Callable[[], httpcore.NetworkBackend],
    base_url: str,
    *,
    headers: Mapping[str, str] | None = None,
    trust: Trust | None = None,
) -> httpx.Client:
    """Return a client. ``backend`` is asked at every new connection, so that it outlives a reconnect.

    Raises UnfitError where ``trust`` names certificates that cannot be used.
    """
    # Loading the system's certificates takes 20 ms: only where the url needs them.
    wanted = trust or Trust()
    context = (wanted if base_url.startswith("https:") else Trust(verify=False)).context()
    return httpx.Client(
        base_url=base_url,
        headers=dict(headers or {}),
        timeout=httpx.Timeout(connect=CONNECT, read=READ, write=WRITE, pool=CONNECT),
        transport=_HostTransport(_LimitedBackend(backend), context),
        trust_env=False,
    )


class _HostTransport(httpx.HTTPTransport):
    """httpx's own transport on a pool of ours."""

    def __init__(self, backend: httpcore.NetworkBackend, context: ssl.SSLContext) -> None:
        super().__init__(verify=context)
        self._pool.close()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            network_backend=backend,
            max_connections=200,
            max_keepalive_connections=20,
            keepalive_expiry=5.0,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request under its deadline; the body is read under it too."""
        deadline = request.extensions.get("deadline") or Deadline(TOTAL, f"{request.method} {request.url.path}")
        with _under(deadline):
            response = super().handle_request(request)
        assert isinstance(response.stream, httpx.SyncByteStream)  # noqa: S101 - a sync transport's always is
        response.stream = _LimitedBody(response.stream, deadline)
        return response


@contextlib.contextmanager
def _under(deadline: Deadline) -> Iterator[None]:
    """Make the streams below know which request this thread works on: httpcore tells them a phase's limit only."""
    deadline.check()
    before = getattr(_request, "deadline", None)
    _request.deadline = deadline
    try:
        yield
    finally:
        _request.deadline = before


class _LimitedBody(httpx.SyncByteStream):
    def __init__(self, inner: httpx.SyncByteStream, deadline: Deadline) -> None:
        self._inner, self._deadline = inner, deadline

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._inner)
        while True:
            with _under(self._deadline):
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        self._inner.close()


class _LimitedBackend(httpcore.NetworkBackend):
    """Cuts every phase's limit down to what is left of the request."""

    def __init__(self, inner: Callable[[], httpcore.NetworkBackend]) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        with _phase(timeout) as limit:
            return _LimitedStream(self._inner().connect_tcp(host, port, limit, local_address, socket_options))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _LimitedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _phase(timeout) as limit:
            return self._inner.read(max_bytes, limit)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _phase(timeout) as limit:
            self._inner.write(buffer, limit)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        with _phase(timeout) as limit:
            return _LimitedStream(self._inner.start_tls(ssl_context, server_hostname, limit))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


@contextlib.contextmanager
def _phase(timeout: float | None) -> Iterator[float]:
    """Give the shorter of a phase's limit and the request's; say which of the two ran out."""
    deadline: Deadline | None = getattr(_request, "deadline", None)
    left = deadline.remaining() if deadline is not None else READ
    limit = left if timeout is None else min(timeout, left)
    try:
        yield max(0.001, limit)
    except httpcore.TimeoutException:
        if deadline is not None:
            deadline.check(seen="no answer, or only a part of one")
        raise


class ChannelBackend(httpcore.NetworkBackend):
    """TCP connections that leave from the far end of an SSH transport."""

    def __init__(self, transport: Any, where: str) -> None:
        self._transport, self._where = transport, where

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002 - the interface's
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002 - the interface's
    ) -> httpcore.NetworkStream:
        """Open a direct-tcpip channel. Refused by the host's own kernel: ConnectError, as over plain TCP."""
        from paramiko import ChannelException, SSHException  # noqa: PLC0415 - local hosts need none

        with ssh_errors(self._where):
            try:
                channel = self._transport.open_channel(
                    "direct-tcpip",
                    (host, port),
                    ("127.0.0.1", 0),
                    timeout=CONNECT if timeout is None else timeout,
                )
            except ChannelException as error:
                if error.code == _CONNECT_FAILED:
                    raise httpcore.ConnectError(f"{host}:{port} on {self._where}: {error.text}") from error
                raise
            except SSHException as error:
                if self._transport.is_active():
                    raise httpcore.ConnectTimeout(f"{host}:{port} on {self._where}") from error
                raise
        return _ChannelStream(channel, self._where)

    def sleep(self, seconds: float) -> None:
        """Wait between httpcore's own attempts (none are asked for)."""
        time.sleep(seconds)


class _ChannelStream(httpcore.NetworkStream):
    def __init__(self, channel: Any, where: str) -> None:
        self._channel, self._where = channel, where

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._channel.settimeout(timeout)
            data: bytes = self._channel.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout(str(error)) from error
        except OSError as error:
            raise self._error(error, httpcore.ReadError) from error
        if not data and not self._alive():
            raise link_lost(self._where, "the connection closed in the middle of an answer")
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._channel.settimeout(timeout)
            self._channel.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except (OSError, EOFError) as error:
            raise self._error(error, httpcore.WriteError) from error

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return TlsStream(self, ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        """Say, as httpcore asks, whether an idle connection became readable, which means that it was closed."""
        if info == "is_readable":
            return self._channel.closed or self._channel.eof_received or self._channel.recv_ready()
        return None

    def _alive(self) -> bool:
        transport = self._channel.get_transport()
        return transport is not None and transport.is_active()

    def _error(self, error: Exception, otherwise: type[Exception]) -> Exception:
        return otherwise(str(error)) if self._alive() else link_lost(self._where, str(error))

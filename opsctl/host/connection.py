"""One SSH connection: Fabric and paramiko with limits of our own, checked host keys and a judged keepalive."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import paramiko

from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError
from opsctl.host.bridge import ChannelBridge, StderrFilter
from opsctl.host.cutoff import cut_at
from opsctl.host.error_mapping import link_lost, ssh_errors
from opsctl.host.handshake import close_hop, open_hops
from opsctl.host.link import Ended
from opsctl.host.liveness import HeardSocket, Liveness
from opsctl.host.quoting import quote_argv
from opsctl.host.ssh_config import Route

_CHUNK = 1 << 15
_PROGRAMS = 6
"""Programs at once on one connection: sshd refuses the eleventh session (MaxSessions 10), and bridges are some."""


def open_link(route: Route, *, deadline: Deadline) -> SshLink:
    """Connect and authenticate, through jump hosts where ssh_config says so.

    Raises HostUnreachable, HostKeyRejected, AuthenticationFailed, DeadlineExceeded.
    """
    hops, heard = open_hops(route, deadline=deadline)
    return SshLink(route, hops, heard)


class SshLink:
    """A link over SSH, through connections that stand (the jump hosts', then its own)."""

    def __init__(self, route: Route, hops: list[Any], heard: HeardSocket) -> None:
        self._where = route.hostname
        self._hops = hops
        self._transport = hops[-1].transport
        self._places = threading.BoundedSemaphore(_PROGRAMS)
        self._liveness = Liveness(self._transport, heard)

    @property
    def alive(self) -> bool:
        """Whether the transport still stands."""
        return bool(self._transport.is_active())

    def execute(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
    ) -> Ended:
        """Run a program over a channel of its own, without a terminal. See ``Link.execute``."""
        started = time.monotonic()
        with self._errors(), self._place(deadline), self._channel(argv, deadline) as channel:
            stderr = _converse(channel, iter(stdin), stdout, deadline, self._where)
            if not self.alive:
                raise self._lost()
            status = channel.exit_status if channel.exit_status_ready() else -1
            return Ended(int(status), stderr, time.monotonic() - started)

    def open_bridge(self, argv: Sequence[str], *, stderr_filter: StderrFilter, deadline: Deadline) -> ChannelBridge:
        """Start a program and join it to a local socket."""
        with self._errors():
            return ChannelBridge(self._started(argv, deadline), self._where, stderr_filter)

    def network_backend(self) -> Any:
        """Return what connects from the host, by direct-tcpip channels."""
        from opsctl.host.http import ChannelBackend  # noqa: PLC0415 - httpx takes 0.1 s

        return ChannelBackend(self._transport, self._where)

    def close(self) -> None:
        """Close the connection and its jump hosts', and end the liveness thread."""
        for hop in reversed(self._hops):
            close_hop(hop)
        self._liveness.stop()

    def _started(self, argv: Sequence[str], deadline: Deadline) -> Any:
        """Return an open channel on which ``argv`` runs."""
        deadline.check(where=self._where)
        if not self.alive:
            raise self._lost()
        try:
            channel = self._transport.open_session(timeout=deadline.remaining())
        except paramiko.SSHException:
            deadline.check(where=self._where)
            raise
        try:
            with cut_at(deadline, channel.close, where=self._where):
                # Bytes, so that arguments which are no UTF-8 cross as they are.
                channel.exec_command(quote_argv(argv).encode("utf-8", "surrogateescape"))
        except BaseException:
            channel.close()
            raise
        return channel

    @contextlib.contextmanager
    def _place(self, deadline: Deadline) -> Iterator[None]:
        if not self._places.acquire(timeout=deadline.remaining()):
            deadline.check(where=self._where, seen=f"{_PROGRAMS} other programs run over this connection")
        try:
            yield
        finally:
            self._places.release()

    @contextlib.contextmanager
    def _channel(self, argv: Sequence[str], deadline: Deadline) -> Iterator[Any]:
        channel = self._started(argv, deadline)
        try:
            yield channel
        finally:
            channel.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        with ssh_errors(self._where):
            yield

    def _lost(self) -> OpsctlError:
        died = self._liveness.died.is_set()
        return link_lost(self._where, "the host did not answer a keepalive" if died else "the connection closed")


def _converse(
    channel: Any,
    stdin: Iterator[bytes],
    stdout: Callable[[bytes], object],
    deadline: Deadline,
    where: str,
) -> bytes:
    """Feed and read a channel to its end; return stderr. Both streams are read, or a full window would hang."""
    stderr: list[bytes] = []
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    pending: bytes | memoryview | None = b""
    while True:
        # Asked first: what arrives after this is picked up in the next round, never lost.
        finished = channel.closed or (channel.eof_received and channel.exit_status_ready())
        moved = False
        if channel.recv_ready():
            stdout(channel.recv(_CHUNK))
            moved = True
        if channel.recv_stderr_ready():
            stderr.append(channel.recv_stderr(_CHUNK))
            moved = True
        if pending is not None and not finished:
            pending, sent = _feed(channel, stdin, pending)
            moved = moved or sent
        if moved:
            continue
        if finished:
            return b"".join(stderr)
        deadline.check(where=where, seen=_tail(b"".join(stderr)))
        # With input left, a window that opens makes no event: look again soon.
        longest = 0.5 if pending is None else 0.01
        waiting.poll(1000 * min(longest, deadline.remaining() + 0.001))


def _feed(channel: Any, stdin: Iterator[bytes], pending: bytes | memoryview) -> tuple[bytes | memoryview | None, bool]:
    """Send one piece if the window has room. Return what is left (None: all sent and closed), and whether any went."""
    if not pending:
        piece = next(stdin, None)
        if piece is None:
            channel.shutdown_write()
            return None, True
        pending = memoryview(piece)
    if not channel.send_ready():
        return pending, False
    try:
        return memoryview(pending)[channel.send(pending[:_CHUNK]) :], True
    except OSError:
        # The program closed its input: its exit status says the rest.
        return None, True


def _tail(stderr: bytes) -> str | None:
    return stderr.decode(errors="replace").strip()[-400:] or None

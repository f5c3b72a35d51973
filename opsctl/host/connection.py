"""One SSH connection: Fabric and paramiko with limits of our own, checked host keys and a judged keepalive."""

from __future__ import annotations

import contextlib
import itertools
import select
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import paramiko

from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError
from opsctl.host.bridge import ChannelBridge, StderrFilter
from opsctl.host.call_limit import cut_at
from opsctl.host.error_mapping import link_lost, ssh_errors
from opsctl.host.framing import Frame, never_begun, waits_for_input
from opsctl.host.handshake import close_hop, open_hops
from opsctl.host.link import Ended
from opsctl.host.liveness import HeardSocket, Liveness
from opsctl.host.ssh_config import Route

_CHUNK = 1 << 15
_PROGRAMS = 6
"""Programs at once on one connection: sshd refuses the eleventh session (MaxSessions 10), and bridges are some."""
_BEGIN_LIMIT = 12.0
"""Seconds in which a login shell must start a program that is to get input."""
_PROBE_LIMIT = 5.0
"""Seconds for finding out why it did not."""


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
        started, frame, pieces = time.monotonic(), Frame(), iter(stdin)
        with self._errors(), self._place(deadline), self._channel(frame, argv, deadline) as channel:
            # No input may reach a shell that the login's start files put in the program's place.
            first = next(pieces, None)
            if first is not None:
                stdout(self._begin(channel, frame, deadline))
                pieces = itertools.chain([first], pieces)
            stderr = _converse(channel, frame, pieces, stdout, deadline=deadline, where=self._where)
            if not self.alive:
                raise self._lost()
            status = int(channel.exit_status) if channel.exit_status_ready() else -1
            if not frame.begun:
                raise never_begun(self._where, frame, status)
            return Ended(status, stderr, time.monotonic() - started)

    def open_bridge(self, argv: Sequence[str], *, stderr_filter: StderrFilter, deadline: Deadline) -> ChannelBridge:
        """Start a program and join it to a local socket."""
        frame = Frame()
        with self._errors():
            channel = self._started(frame, argv, deadline)
            try:
                first = self._begin(channel, frame, deadline)
            except BaseException:
                channel.close()
                raise
            return ChannelBridge(channel, self._where, stderr_filter, frame=frame, first=first)

    def network_backend(self) -> Any:
        """Return what connects from the host, by direct-tcpip channels."""
        from opsctl.host.http import ChannelBackend  # noqa: PLC0415 - httpx takes 0.1 s

        return ChannelBackend(self._transport, self._where)

    def close(self) -> None:
        """Close the connection and its jump hosts', and end the liveness thread."""
        for hop in reversed(self._hops):
            close_hop(hop)
        self._liveness.stop()

    def _started(self, frame: Frame, argv: Sequence[str], deadline: Deadline) -> Any:
        """Return an open channel on which the login shell is to run ``argv``."""
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
                channel.exec_command(frame.command_line(argv))
        except BaseException:
            channel.close()
            raise
        return channel

    def _begin(self, channel: Any, frame: Frame, deadline: Deadline) -> bytes:
        """Wait until the login shell has started the program; return the first of the program's own output.

        Raises CommandFailed where it never will: its start files replace it, or wait for input.
        """
        until = time.monotonic() + min(_BEGIN_LIMIT, deadline.remaining())
        waiting = select.poll()
        waiting.register(channel.fileno(), select.POLLIN)
        while time.monotonic() < until:
            finished = _finished(channel)
            if channel.recv_ready():
                own = frame.stdout.own(channel.recv(_CHUNK))
                if frame.begun:
                    return own
            elif finished:
                if not self.alive:
                    raise self._lost()
                if channel.recv_stderr_ready():
                    frame.stderr.own(channel.recv_stderr(_CHUNK))
                raise never_begun(self._where, frame, int(channel.exit_status))
            else:
                waiting.poll(100)
        deadline.check(where=self._where, seen=frame.unbegun)
        # Does a program start where the input has ended? Then a start file waits for input; else this raises why.
        self.execute(("true",), deadline=Deadline(_PROBE_LIMIT, f"a program on {self._where}"), stdout=lambda _: None)
        raise waits_for_input(self._where, frame, _BEGIN_LIMIT)

    @contextlib.contextmanager
    def _place(self, deadline: Deadline) -> Iterator[None]:
        if not self._places.acquire(timeout=deadline.remaining()):
            deadline.check(where=self._where, seen=f"{_PROGRAMS} other programs run over this connection")
        try:
            yield
        finally:
            self._places.release()

    @contextlib.contextmanager
    def _channel(self, frame: Frame, argv: Sequence[str], deadline: Deadline) -> Iterator[Any]:
        channel = self._started(frame, argv, deadline)
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
    frame: Frame,
    stdin: Iterator[bytes],
    stdout: Callable[[bytes], object],
    *,
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
        finished = _finished(channel)
        moved = False
        if channel.recv_ready():
            stdout(frame.stdout.own(channel.recv(_CHUNK)))
            moved = True
        if channel.recv_stderr_ready():
            stderr.append(frame.stderr.own(channel.recv_stderr(_CHUNK)))
            moved = True
        if pending is not None and not finished:
            pending, sent = _feed(channel, stdin, pending)
            moved = moved or sent
        if moved:
            continue
        if finished:
            return b"".join(stderr)
        deadline.check(where=where, seen=_tail(b"".join(stderr)) if frame.begun else frame.unbegun)
        # With input left, a window that opens makes no event: look again soon.
        longest = 0.5 if pending is None else 0.01
        waiting.poll(1000 * min(longest, deadline.remaining() + 0.001))


def _finished(channel: Any) -> bool:
    return bool(channel.closed or (channel.eof_received and channel.exit_status_ready()))


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

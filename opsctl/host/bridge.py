"""A program on the host whose standard input and output are joined to one local socket.

``systemd-stdio-bridge`` is such a program: what reads and writes the socket speaks D-Bus with the host's systemd.
The local end is one of a socket pair, never a path: no other process on the controller can connect to it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from opsctl.errors import HostError
from opsctl.host.error_mapping import ssh_errors
from opsctl.host.framing import Frame

_CHUNK = 1 << 16


@dataclass(frozen=True)
class BridgeEnd:
    """How the program ended; ``exit_status`` None where the link went first."""

    exit_status: int | None
    stderr: str


class Bridge(Protocol):
    """A running one."""

    def take_socket(self) -> socket.socket:
        """Hand the local end over, once."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the program, or the link to it, has ended."""
        ...

    def listen(self) -> None:
        """Pass on what the program has said on standard error so far."""
        ...

    def end(self, seconds: float) -> BridgeEnd:
        """Wait at most ``seconds`` for its end and say how it was."""
        ...

    def close(self) -> None:
        """End it, whatever it does. May be called twice."""
        ...


StderrFilter = Callable[[str], str]
"""Takes what a program said on standard error, and returns what of it is not its own."""


class ChannelBridge:
    """Over an SSH channel, pumped by two threads: one a direction, both ended by ``close``."""

    def __init__(
        self, channel: Any, where: str, stderr_filter: StderrFilter, *, frame: Frame, first: bytes = b""
    ) -> None:
        """Join a channel whose program has begun, and has said ``first``."""
        self._channel = channel
        self._where = where
        self._filter = stderr_filter
        self._frame = frame
        self._first = first
        self._near, self._far = socket.socketpair()
        self._threads = [
            threading.Thread(target=self._upward, name=f"opsctl-bridge-up-{where}", daemon=True),
            threading.Thread(target=self._downward, name=f"opsctl-bridge-down-{where}", daemon=True),
        ]
        self._ended = threading.Event()
        for thread in self._threads:
            thread.start()

    def take_socket(self) -> socket.socket:
        """Return the local end; the taker closes it."""
        return self._near

    @property
    def ended(self) -> bool:
        """Whether the host's side has closed."""
        return self._ended.is_set()

    def end(self, seconds: float) -> BridgeEnd:
        """Wait for the end: beside the answer, a bridge says on standard error only what it dies of."""
        self._ended.wait(seconds)
        status = None
        if self._channel.status_event.wait(seconds) and self._channel.exit_status >= 0:
            status = int(self._channel.exit_status)
        return BridgeEnd(status, self._filter(self._stderr()).strip())

    def listen(self) -> None:
        """Pass on what stands on standard error."""
        self._filter(self._stderr())

    def _stderr(self) -> str:
        said = b""
        with contextlib.suppress(OSError):
            while self._channel.recv_stderr_ready() and len(said) < _CHUNK:
                said += self._frame.stderr.own(self._channel.recv_stderr(_CHUNK))
        return said.decode(errors="replace")

    def close(self) -> None:
        """End both directions and their threads."""
        # The channel first: its close wakes a pump that waits in send or recv.
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()
        for end in (self._near, self._far):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)
        for end in (self._near, self._far):
            end.close()

    def _upward(self) -> None:
        with contextlib.suppress(OSError), ssh_lost_is_end(self._where):
            while data := self._far.recv(_CHUNK):
                self._channel.sendall(data)
            self._channel.shutdown_write()

    def _downward(self) -> None:
        with contextlib.suppress(OSError), ssh_lost_is_end(self._where):
            if self._first:
                self._far.sendall(self._first)
            while data := self._channel.recv(_CHUNK):
                self._far.sendall(data)
        self._ended.set()
        with contextlib.suppress(OSError):
            self._far.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def ssh_lost_is_end(where: str) -> Any:
    """A pump has no caller to raise to: it reports a lost link through ``ended``."""
    with contextlib.suppress(HostError), ssh_errors(where):
        yield


class ProcessBridge:
    """A program on this machine: it holds the far end of the pair itself, so nothing needs pumping."""

    def __init__(self, argv: Sequence[str], stderr_filter: StderrFilter) -> None:
        self._filter = stderr_filter
        self._near, far = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=far.fileno(),
                stdout=far.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError:
            self._near.close()
            raise
        finally:
            far.close()

    def take_socket(self) -> socket.socket:
        """Return the local end; the taker closes it."""
        return self._near

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def end(self, seconds: float) -> BridgeEnd:
        """Wait for the end and read what it died of."""
        try:
            _, stderr = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return BridgeEnd(None, "")
        return BridgeEnd(self._process.returncode, self._filter((stderr or b"").decode(errors="replace")).strip())

    def listen(self) -> None:
        """Pass on what stands on standard error."""
        pipe = self._process.stderr
        if pipe is not None and select.select([pipe], [], [], 0)[0]:
            self._filter(os.read(pipe.fileno(), _CHUNK).decode(errors="replace"))

    def close(self) -> None:
        """End the process."""
        self._near.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        if self._process.poll() is None:
            with contextlib.suppress(OSError):  # under sudo it is not ours to kill; closing its streams ends it
                self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        if self._process.stderr is not None:
            self._process.stderr.close()

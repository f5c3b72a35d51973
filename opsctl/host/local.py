"""The link to this machine itself: opsctl runs on the serving host."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed
from opsctl.host.bridge import ProcessBridge, StderrFilter
from opsctl.host.link import Ended
from opsctl.host.quoting import show_argv

if TYPE_CHECKING:
    import httpcore

_CHUNK = 1 << 16


class LocalLink:
    """Programs as children, each in a session of its own."""

    @property
    def alive(self) -> bool:
        """Whether it stands: always."""
        return True

    def execute(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
    ) -> Ended:
        """Run a program; at the deadline its whole session is killed. See ``Link.execute``."""
        deadline.check()
        started = time.monotonic()
        with _child(argv) as process:
            try:
                stderr = _converse(process, iter(stdin), stdout, deadline)
                process.wait(timeout=max(0.001, deadline.remaining()))
            except subprocess.TimeoutExpired:
                deadline.check(seen=f"{show_argv(argv)} closed its streams and runs on")
                raise
            return Ended(process.returncode, stderr, time.monotonic() - started)

    def open_bridge(self, argv: Sequence[str], *, stderr_filter: StderrFilter, deadline: Deadline) -> ProcessBridge:
        """Start a program and join it to a local socket."""
        deadline.check()
        with _not_found(argv):
            return ProcessBridge(argv, stderr_filter)

    def network_backend(self) -> httpcore.NetworkBackend:
        """Return httpcore's own sockets."""
        import httpcore  # noqa: PLC0415 - only where a server is asked

        return httpcore.SyncBackend()

    def close(self) -> None:
        """Do nothing: no call leaves anything behind."""


@contextlib.contextmanager
def _not_found(argv: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise CommandFailed(
            f"{argv[0]} cannot be started on this machine",
            exit_status=127,
            stderr=str(error),
            seen=str(error),
        ) from error


@contextlib.contextmanager
def _child(argv: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    with _not_found(argv):
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(
                OSError
            ):  # under sudo it is not ours to kill; `timeout` on its command line ends it
                os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)


def _converse(
    process: subprocess.Popen[bytes],
    stdin: Iterator[bytes],
    stdout: Callable[[bytes], object],
    deadline: Deadline,
) -> bytes:
    """Feed and read a child until both its streams end; return stderr."""
    stderr: list[bytes] = []
    pending = memoryview(b"")
    with selectors.DefaultSelector() as waiting:
        for stream, event, sink in (
            (process.stdin, selectors.EVENT_WRITE, None),
            (process.stdout, selectors.EVENT_READ, stdout),
            (process.stderr, selectors.EVENT_READ, stderr.append),
        ):
            assert stream is not None  # noqa: S101 - made as pipes above
            os.set_blocking(stream.fileno(), False)
            waiting.register(stream, event, sink)
        while waiting.get_map():
            for key, _ in waiting.select(min(0.5, deadline.remaining() + 0.001)):
                stream = _stream(key.fileobj)
                if key.data is None:
                    pending = _feed(waiting, stream, stdin, pending)
                elif data := os.read(stream.fileno(), _CHUNK):
                    key.data(data)
                else:
                    waiting.unregister(stream)
            deadline.check(seen=b"".join(stderr).decode(errors="replace").strip()[-400:] or None)
    return b"".join(stderr)


def _stream(fileobj: Any) -> IO[bytes]:
    stream: IO[bytes] = fileobj
    return stream


def _feed(
    waiting: selectors.BaseSelector,
    stream: IO[bytes],
    stdin: Iterator[bytes],
    pending: memoryview,
) -> memoryview:
    """Write one piece; close the child's input after the last, or when it wants no more."""
    if not pending:
        pending = memoryview(next(stdin, b""))
    try:
        if pending:
            return pending[os.write(stream.fileno(), pending) :]
    except BlockingIOError:
        return pending
    except BrokenPipeError:
        pass
    waiting.unregister(stream)
    stream.close()
    return memoryview(b"")

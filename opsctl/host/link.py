"""What a way to a host has to offer: three things, over SSH (``connection.py``) or on this machine (``local.py``).

Everything else that a host can do (``machine.py``) is built on these, so it is written once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from opsctl.deadline import Deadline

if TYPE_CHECKING:
    import httpcore

    from opsctl.host.bridge import Bridge, StderrFilter


@dataclass(frozen=True)
class Ended:
    """How a program ended. ``exit_status`` is −1 where a signal killed it and the way does not say which."""

    exit_status: int
    stderr: bytes
    seconds: float


class Link(Protocol):
    """One way to one host. Every call ends by its deadline, and raises only errors of ``opsctl.errors``."""

    @property
    def alive(self) -> bool:
        """Whether the link still stands, as far as is known here."""
        ...

    def execute(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
    ) -> Ended:
        """Run a program to its end: feed it ``stdin`` and close that, hand each piece of output to ``stdout``.

        Raises DeadlineExceeded (the program's streams are closed then) and TransportLost.
        """
        ...

    def open_bridge(self, argv: Sequence[str], *, stderr_filter: StderrFilter, deadline: Deadline) -> Bridge:
        """Start a program whose standard input and output join a local socket; ``stderr_filter`` sees the third."""
        ...

    def network_backend(self) -> httpcore.NetworkBackend:
        """Return what makes TCP connections that leave from the host."""
        ...

    def close(self) -> None:
        """End the link and every thread of it. May be called twice."""
        ...

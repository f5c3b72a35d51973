"""Who and what a host is: asked when first needed, and where possible along with something else.

Logging in to a program costs a host a tenth of a second and more, so the question has no program of its own where
the bridge to systemd can carry it: it then comes first on the bridge's standard error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opsctl.errors import CommandFailed
from opsctl.host.link import Ended

_SAY = (
    'printf \'opsctl-host %s %s %s %s\\n\' "$(cat /proc/sys/kernel/random/boot_id)" "$(id -u)" '
    '"$(test -d /run/systemd/system && echo systemd || echo none)" '
    '"${XDG_STATE_HOME:-${HOME:-/root}/.local/state}"'
)
ARGV = ("sh", "-c", _SAY)
# A login file may print what it likes around it.
_SAID = re.compile(r"^opsctl-host (?P<boot_id>\S+) (?P<uid>\d+) (?P<manager>\w+) (?P<state>.+)\n", re.MULTILINE)


def carried_by(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a program that says the answer on standard error and then is ``argv``."""
    return ("sh", "-c", f'{_SAY} >&2; exec "$@"', "sh", *argv)


@dataclass(frozen=True)
class Identity:
    """What the host said."""

    boot_id: str
    uid: str
    manager: str
    """systemd, or none."""
    state: str
    """The login's own folder for state, as the XDG specification has it."""


class IdentityQuery:
    """The question to one connection's host. ``ask`` runs ``ARGV`` there and hands its output to a callable."""

    def __init__(self, name: str, ask: Callable[[Callable[[bytes], object]], Ended]) -> None:
        self._name = name
        self._ask = ask
        self._lock = threading.Lock()
        self.known: Identity | None = None

    def hear(self, text: str) -> str:
        """Take the answer out of what a program said, and return the rest."""
        found = _SAID.search(text)
        if found is None:
            return text
        self.known = Identity(**found.groupdict())
        return text[: found.start()] + text[found.end() :]

    def result(self) -> Identity:
        """Return what the host says, asked now if it was not heard yet. Raises HostError, DeadlineExceeded."""
        with self._lock:
            if self.known is None:
                pieces: list[bytes] = []
                ended = self._ask(pieces.append)
                self.hear(b"".join(pieces).decode(errors="replace"))
            if self.known is None:
                raise CommandFailed(
                    f"{self._name} runs no programs for this login",
                    exit_status=ended.exit_status,
                    seen=ended.stderr.decode(errors="replace").strip()[-600:] or "no output",
                    where=self._name,
                    hint="the login needs a shell, and sh, env, timeout, cat and id in its PATH",
                )
            return self.known

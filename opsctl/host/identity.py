"""The identity of a host: its boot, the login's uid, its init and the folder for state. Queried when first needed.

Starting a program over SSH costs a tenth of a second and more. So the query is put before the bridge to systemd where
one is opened anyway: its answer is then the first line of the bridge's standard error.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from opsctl.errors import CommandFailed
from opsctl.host.link import Ended

_QUERY = (
    'printf \'opsctl-host %s %s %s %s\\n\' "$(cat /proc/sys/kernel/random/boot_id)" "$(id -u)" '
    '"$(test -d /run/systemd/system && echo systemd || echo none)" '
    '"${XDG_STATE_HOME:-${HOME:-/root}/.local/state}"'
)
ARGV = ("sh", "-c", _QUERY)
# A login file may print what it likes around it.
_ANSWER = re.compile(r"^opsctl-host (?P<boot_id>\S+) (?P<uid>\d+) (?P<manager>\w+) (?P<state>.+)\n", re.MULTILINE)


def carried_by(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a program that prints the answer on standard error and then executes ``argv``."""
    return ("sh", "-c", f'{_QUERY} >&2; exec "$@"', "sh", *argv)


@dataclass(frozen=True)
class Identity:
    """The host's answer."""

    boot_id: str
    uid: str
    manager: str
    """systemd, or none."""
    state: str
    """The login's own folder for state, as the XDG specification has it."""


class IdentityQuery:
    """The query of one connection. ``ask`` runs ``ARGV`` on its host and passes the output to a callable."""

    def __init__(self, name: str, ask: Callable[[Callable[[bytes], object]], Ended]) -> None:
        self._name = name
        self._ask = ask
        self._lock = threading.Lock()
        self.known: Identity | None = None

    def take_from(self, text: str) -> str:
        """Take the answer out of a program's output, and return the rest."""
        found = _ANSWER.search(text)
        if found is None:
            return text
        self.known = Identity(**found.groupdict())
        return text[: found.start()] + text[found.end() :]

    def result(self) -> Identity:
        """Return the identity, queried now if it is not known yet. Raises HostError, DeadlineExceeded."""
        with self._lock:
            if self.known is None:
                pieces: list[bytes] = []
                ended = self._ask(pieces.append)
                self.take_from(b"".join(pieces).decode(errors="replace"))
            if self.known is None:
                raise CommandFailed(
                    f"{self._name} runs no programs for this login",
                    exit_status=ended.exit_status,
                    seen=ended.stderr.decode(errors="replace").strip()[-600:] or "no output",
                    where=self._name,
                    hint="the login needs a shell, and sh, env, timeout, cat and id in its PATH",
                )
            return self.known

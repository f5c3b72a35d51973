"""What a binding to systemd needs of its host; ``machine.py`` gives it, ``systemd.py`` and ``systemctl.py`` take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from opsctl.deadline import Deadline
from opsctl.errors import LeaseLost, PrivilegeMissing
from opsctl.host.link import Link
from opsctl.host.protocol import Completed

if TYPE_CHECKING:
    from opsctl.playbook.models import HostEntry


class BoundHost(Protocol):
    """A connected host, as far as a binding to its systemd sees it."""

    name: str
    entry: HostEntry

    @property
    def has_systemd(self) -> bool:
        """Whether systemd is its init. Raises HostError where it cannot be asked."""
        ...

    @property
    def user_scope(self) -> bool:
        """Whether the services are the user's own."""
        ...

    @property
    def link(self) -> Link:
        """The link as it stands now."""
        ...

    def run(self, argv: Sequence[str], *, deadline: Deadline, become: bool | None = None) -> Completed:
        """Run a program to its end. Raises CommandFailed when its status is not 0."""
        ...

    def sudo(self, become: bool | None) -> bool:  # noqa: FBT001 - see Host
        """Whether sudo goes in front."""
        ...

    def sudo_refused(self, stderr: str) -> PrivilegeMissing:
        """Return the error for a sudo that would have asked."""
        ...

    def lease_lost(self, token: int, seen: str) -> LeaseLost:
        """Return the error for a session that the host has ended, or refused, for its token."""
        ...

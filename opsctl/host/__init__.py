"""One host: SSH or local, systemd over D-Bus, files, journal, HTTP. ``connect`` is the entry point.

The only room that knows Fabric, paramiko, pydbus and GLib; each is imported where it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsctl.deadline import Deadline

if TYPE_CHECKING:
    from opsctl.host.link import Link
    from opsctl.host.protocol import Host
    from opsctl.playbook.models import HostEntry

__all__ = ["connect"]


def connect(name: str, entry: HostEntry, *, deadline: Deadline) -> Host:
    """Return a connected host. Close it when done: nothing of it outlives ``close``.

    Raises HostUnreachable, HostKeyRejected, AuthenticationFailed, or UnfitError for an ssh_config that
    cannot be followed.
    """
    from opsctl.host.machine import ConnectedHost  # noqa: PLC0415 - heavy

    return ConnectedHost(name, entry, lambda limit: _reach(entry, limit), deadline=deadline)


def _reach(entry: HostEntry, deadline: Deadline) -> Link:
    if entry.transport == "local":
        from opsctl.host.local import LocalLink  # noqa: PLC0415 - heavy

        return LocalLink()
    from opsctl.host import ssh_config  # noqa: PLC0415 - heavy
    from opsctl.host.connection import open_link  # noqa: PLC0415 - Fabric takes 0.2 s

    return open_link(ssh_config.resolve(entry), deadline=deadline)

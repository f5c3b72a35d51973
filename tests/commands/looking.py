"""What a lab host looks like, to see that a command that only reads changed nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opsctl.lab.hosts import LabHost

# The log-in itself makes these.
_OF_THE_LOGIN = re.compile(r"^(?:session-|user@|user-|user-runtime-dir@|ssh|systemd-logind|run-user)")


def units_of(host: LabHost) -> dict[str, str]:
    """Return every unit with its states, and every unit file with its state and checksum."""
    listed = host.systemctl("list-units", "--all", "--plain", "--no-legend")
    rows = (line.split(None, 4) for line in listed.splitlines() if line.strip())
    # A name that somebody only mentioned is "not-found": systemd forgets it when it likes.
    units = {row[0]: " ".join(row[1:4]) for row in rows if row[1] != "not-found"}
    folders = "/etc/systemd /run/systemd/system /run/systemd/transient /var/lib/opsctl /run/opsctl"
    files = host.exec("sh", "-c", f"find {folders} -type f 2>/dev/null | sort | xargs -r sha1sum").stdout
    return {name: states for name, states in units.items() if not _OF_THE_LOGIN.match(name)} | {"files": files}

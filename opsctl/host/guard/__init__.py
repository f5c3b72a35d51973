"""What opsctl puts on a host: ``opsctl-guard``, its unit, and how the controller speaks to it (``control.py``).

The paths here are the contract with everything that names the guard from outside: the fenced bridge
(``host/bridge.py``) and the ``ExecCondition=`` of a variant (``serving/variants.py``).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from opsctl.errors import ExitCode

if TYPE_CHECKING:
    from opsctl.playbook.models import HostEntry


class GuardExit(IntEnum):
    """Exit statuses of ``opsctl-guard``. UNFIT and HELD are those of opsctl itself."""

    UNFIT = ExitCode.UNFIT
    HELD = ExitCode.HELD
    NOT_ACTIVE = 5
    """Production is not active: the lease stays."""
    LOST = 7
    """The token does not hold."""
    BUSY = 8
    """The lock is taken for too long."""


STATE_DIR = "/var/lib/opsctl"
"""Lease, log and lock: one a host, whatever the scope."""

GUARD_PATH = "/usr/local/lib/opsctl/opsctl-guard"
"""The guard in system scope."""

USER_GUARD_PATH = ".local/lib/opsctl/opsctl-guard"
"""The guard in user scope, under the home folder of the user who serves."""

GPU_IDLE_MIB = 1024
"""A free GPU holds at most so many MiB (contexts of the driver and of monitors). The guard's script has the same."""

SERVICE = "opsctl-guard.service"
SLICE = "opsctl.slice"
"""Where everything that opsctl starts on a host runs, so that the guard stops it without a list."""


def guard_argv(entry: HostEntry, *arguments: str) -> tuple[str, ...]:
    """Return the argv that runs the installed guard on that host. In user scope the home is the login's own."""
    if entry.scope == "system":
        return ("sh", GUARD_PATH, *arguments)
    return ("sh", "-c", f'exec sh "$HOME/{USER_GUARD_PATH}" --user "$@"', "opsctl-guard", *arguments)


def holds_condition(entry: HostEntry, token: int) -> str:
    """Return the value of ExecCondition= by which a variant starts only while the token holds."""
    if entry.scope == "system":
        return f"/bin/sh {GUARD_PATH} holds {token}"
    return f"/bin/sh %h/{USER_GUARD_PATH} --user holds {token}"

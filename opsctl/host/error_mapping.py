"""Where the libraries' errors become ours, once. Nothing above ``host/`` knows paramiko, GLib or httpcore.

The libraries are recognised without importing them: whoever calls these has already loaded the one that raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opsctl.errors import (
    BusError,
    DeadlineExceeded,
    HostError,
    OpsctlError,
    PrivilegeMissing,
    TransportLost,
    UnitNotFound,
)

_REFUSED_BY_POLKIT = {
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.AuthFailed",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
}
_NOT_THERE = {"org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.UnknownObject"}
_LATE = {
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Timeout",
    "org.freedesktop.DBus.Error.TimedOut",
}
_GONE = {
    "org.freedesktop.DBus.Error.Disconnected",
    "org.freedesktop.DBus.Error.NameHasNoOwner",
    "org.freedesktop.DBus.Error.ServiceUnknown",
}


def link_lost(where: str, seen: str) -> TransportLost:
    """Return the error for a link that stood and has gone."""
    return TransportLost(
        f"the connection to {where} was lost",
        seen=seen or "the connection closed",
        where=where,
        hint="what runs there goes on by itself",
    )


@contextmanager
def ssh_errors(where: str) -> Iterator[None]:
    """Map what paramiko and sockets raise on a link that stood to TransportLost. Ours pass through."""
    from paramiko import ChannelException, SSHException  # noqa: PLC0415 - raised, so loaded

    try:
        yield
    except OpsctlError:
        raise
    except ChannelException as error:
        raise HostError(
            f"{where} refused to open a channel",
            seen=f"{error.text} (code {error.code})",
            where=where,
            hint="look at MaxSessions and AllowTcpForwarding in its sshd_config",
        ) from error
    except (SSHException, EOFError, OSError) as error:
        raise link_lost(where, str(error) or type(error).__name__) from error


def bus_error(error: Exception, *, asked: str, where: str, lost: Callable[[], OpsctlError]) -> OpsctlError:
    """Return ours for a GLib.Error of a D-Bus call. ``lost`` makes the one for a bus that has gone."""
    text = str(getattr(error, "message", error))
    name = ""
    if text.startswith("GDBus.Error:"):
        name, _, text = text.removeprefix("GDBus.Error:").partition(": ")
    if name in _NOT_THERE:
        return UnitNotFound(
            f"{where} has no such unit",
            wanted=asked,
            seen=text,
            where=where,
            hint="systemctl list-unit-files shows what there is",
        )
    if name in _REFUSED_BY_POLKIT:
        return PrivilegeMissing(
            f"systemd on {where} refused: {asked}",
            seen=text,
            where=where,
            hint="log in as root, or set become: true in the inventory and allow sudo without a password",
        )
    if name in _LATE or (not name and _is_timeout(error)):
        return DeadlineExceeded(
            f"systemd on {where} did not answer in time",
            wanted=asked,
            seen=text,
            where=where,
            hint="systemctl on the host shows whether systemd itself answers",
        )
    if not name or name in _GONE:
        return lost()
    return BusError(f"systemd on {where} refused: {asked}", name=name, seen=text, where=where)


def _is_timeout(error: Exception) -> bool:
    from gi.repository import Gio  # noqa: PLC0415 - raised, so loaded

    matches = getattr(error, "matches", None)
    return bool(matches and matches(Gio.io_error_quark(), Gio.IOErrorEnum.TIMED_OUT))

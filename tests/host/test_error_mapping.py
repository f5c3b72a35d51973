from __future__ import annotations

from typing import Any

import pytest
from gi.repository import Gio, GLib
from paramiko import ChannelException, SSHException

from opsctl.errors import (
    BusError,
    DeadlineExceeded,
    HostError,
    OpsctlError,
    PrivilegeMissing,
    TransportLost,
    UnfitError,
    UnitNotFound,
)
from opsctl.host.error_mapping import bus_error, link_lost, ssh_errors


@pytest.mark.parametrize("raised", [SSHException("x"), EOFError(), OSError("x"), TimeoutError("x"), BrokenPipeError()])
def test_what_a_dead_link_raises_is_transport_lost(raised: Exception) -> None:
    with pytest.raises(TransportLost) as caught, ssh_errors("gpu1"):
        raise raised
    assert caught.value.__cause__ is raised
    assert caught.value.seen


def test_a_refused_channel_is_no_lost_link() -> None:
    with pytest.raises(HostError) as caught, ssh_errors("gpu1"):
        raise ChannelException(1, "Administratively prohibited")
    assert not isinstance(caught.value, TransportLost)
    assert "MaxSessions" in (caught.value.hint or "")


def test_ours_pass_and_so_does_what_is_nobodys() -> None:
    with pytest.raises(UnfitError), ssh_errors("gpu1"):
        raise UnfitError("x")
    with pytest.raises(KeyboardInterrupt), ssh_errors("gpu1"):
        raise KeyboardInterrupt


def remote(name: str, text: str = "said systemd") -> Any:
    return GLib.Error(f"GDBus.Error:{name}: {text}", "g-dbus-error-quark", 0)


def local(code: Any) -> Any:
    return GLib.Error("text", "g-io-error-quark", int(code))


@pytest.mark.parametrize(
    ("raised", "ours"),
    [
        (remote("org.freedesktop.systemd1.NoSuchUnit"), UnitNotFound),
        (remote("org.freedesktop.DBus.Error.AccessDenied"), PrivilegeMissing),
        (remote("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"), PrivilegeMissing),
        (remote("org.freedesktop.DBus.Error.NoReply"), DeadlineExceeded),
        (local(Gio.IOErrorEnum.TIMED_OUT), DeadlineExceeded),
        (local(Gio.IOErrorEnum.CLOSED), TransportLost),
        (local(Gio.IOErrorEnum.BROKEN_PIPE), TransportLost),
        (remote("org.freedesktop.DBus.Error.Disconnected"), TransportLost),
        (remote("org.freedesktop.systemd1.UnitMasked"), BusError),
        (remote("org.freedesktop.systemd1.UnitExists"), BusError),
    ],
)
def test_errors_of_the_bus(raised: Any, ours: type[OpsctlError]) -> None:
    error = bus_error(raised, asked="start of x", where="gpu1", lost=lambda: link_lost("gpu1", "gone"))
    assert type(error) is ours
    if isinstance(error, BusError):
        assert error.name.startswith("org.freedesktop.systemd1.")
        assert error.seen == "said systemd"

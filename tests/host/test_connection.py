"""Connecting: right and wrong keys, jump hosts, limits; and running programs over the connection."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    HostKeyRejected,
    HostUnreachable,
    TransportLost,
    UnfitError,
)
from opsctl.host import connect
from opsctl.host.machine import ConnectedHost
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from opsctl.playbook.models import HostEntry
from tests.host.conftest import entry_of, limit

pytestmark = pytest.mark.lab
# A file that gives 100 kB and then nothing more.
_DRIP = "mkfifo /root/slow; (exec >/root/slow; head -c 100000 /dev/zero; sleep 100) </dev/null >/dev/null 2>&1 &"


def refused(lab_host: LabHost, error: type[Exception], **changes: Any) -> Any:
    before = threading.active_count()
    with pytest.raises(error) as caught:
        connect(lab_host.name, entry_of(lab_host, **changes), deadline=limit())
    assert threading.active_count() <= before  # a thread of an earlier test may end meanwhile
    return caught.value


def test_an_unknown_host_key_is_refused_and_says_how_to_add_it(lab_host: LabHost, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    error = refused(lab_host, HostKeyRejected, known_hosts=str(empty))
    assert "unknown" in error.message
    assert "SHA256:" in error.seen
    assert "ssh-keyscan" in error.hint
    assert empty.read_text() == "", "a key must never be added by itself"


def test_a_changed_host_key_is_refused(lab_host: LabHost, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    kind, key = (tmp_path / "other.pub").read_text().split()[:2]
    known = tmp_path / "known_hosts"
    known.write_text(f"{lab_host.address} {kind} {key}\n")
    error = refused(lab_host, HostKeyRejected, known_hosts=str(known))
    assert "not the one that is known" in error.message
    assert f"{known}:1" in error.wanted


def test_a_wrong_private_key_names_what_was_tried(lab_host: LabHost, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "mine"], check=True)
    error = refused(lab_host, AuthenticationFailed, identity_file=str(tmp_path / "mine"))
    assert str(tmp_path / "mine") in error.seen


def test_an_encrypted_private_key_is_not_asked_about(lab_host: LabHost, tmp_path: Path) -> None:
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", key], check=True)
    error = refused(lab_host, AuthenticationFailed, identity_file=str(key))
    assert "encrypted" in error.message
    assert "ssh-add" in error.hint


def test_a_private_key_that_is_not_there(lab_host: LabHost) -> None:
    assert "/absent/key" in refused(lab_host, UnfitError, identity_file="/absent/key").message


def test_a_user_that_may_not_log_in(lab_host: LabHost) -> None:
    assert "nobody" in refused(lab_host, AuthenticationFailed, user="nobody").message


def test_nobody_listens(lab_host: LabHost) -> None:
    error = refused(lab_host, HostUnreachable, port=9)
    assert "refused" in error.seen.lower()
    assert "ssh -v" in error.hint


def test_no_such_name(lab_host: LabHost) -> None:
    assert "no address" in refused(lab_host, HostUnreachable, address="no-such-host.invalid").message


@pytest.fixture
def mute() -> Iterator[int]:
    """A port of this machine that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_server_that_never_speaks_is_given_up_in_time(mute: int, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    entry = HostEntry(address="127.0.0.1", port=mute, user="root", identity_file=str(tmp_path / "key"))
    started = time.monotonic()
    with pytest.raises(HostUnreachable, match=r"within 0.5 s"):
        connect("mute", entry, deadline=limit(0.5))
    assert time.monotonic() - started < 3


def test_a_jump_host_leads_further(
    lab_hosts: Callable[[int], list[LabHost]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jump, behind = lab_hosts(2)
    config = tmp_path / "config"
    config.write_text(
        f"Host behind\n HostName {behind.address}\n ProxyJump jump\n"
        f"Host jump\n HostName {jump.address}\n User root\n IdentityFile {jump.identity_file}\n"
        f"Host *\n UserKnownHostsFile {jump.known_hosts}\n",
    )
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(config))
    entry = HostEntry(address="behind", user="root", identity_file=str(behind.identity_file))
    host = connect("behind", entry, deadline=limit())
    try:
        assert host.run(["hostname"], deadline=limit()).text == behind.name
        client = host.run(["sh", "-c", "echo $SSH_CLIENT"], deadline=limit()).text
        assert client.startswith(jump.address)
        assert host.systemd().status("ssh", deadline=limit()).active
    finally:
        host.close()


def test_the_jump_hosts_key_is_checked_too(lab_host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    config = tmp_path / "config"
    config.write_text(
        f"Host behind\n ProxyJump root@{lab_host.address}\nHost *\n UserKnownHostsFile {tmp_path}/empty\n"
    )
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(config))
    with pytest.raises(HostKeyRejected, match=lab_host.address):
        connect("behind", HostEntry(address="behind", user="root"), deadline=limit())


def test_a_proxy_command_is_spoken_through(lab_host: LabHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("Host *\n ProxyCommand nc %h %p\n")
    monkeypatch.setenv("OPSCTL_SSH_CONFIG", str(tmp_path / "config"))
    host = connect(lab_host.name, entry_of(lab_host), deadline=limit())
    try:
        assert host.run(["hostname"], deadline=limit()).text == lab_host.name
    finally:
        host.close()


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_other_kinds_of_host_keys(make_lab_host: Any, reach: Callable[..., Host], kind: Any) -> None:
    from opsctl.lab.spec import HostSpec  # noqa: PLC0415

    lab_host = make_lab_host(HostSpec(host_key=kind))
    assert reach(lab_host).run(["hostname"], deadline=limit()).text == lab_host.name


def test_many_handshakes_at_once_all_succeed(lab_host: LabHost) -> None:
    with ThreadPoolExecutor(12) as pool:
        hosts = list(pool.map(lambda _: connect("x", entry_of(lab_host), deadline=limit(60)), range(12)))
    for host in hosts:
        host.close()
    assert len(hosts) == 12


def test_nothing_is_left_behind(lab_host: LabHost, no_thread_left: None) -> None:
    host = connect(lab_host.name, entry_of(lab_host), deadline=limit())
    host.systemd().status("ssh", deadline=limit())
    with host.http("http://127.0.0.1:9") as client, pytest.raises(Exception, match="Connect failed"):
        client.get("/")
    host.close()
    host.close()
    with pytest.raises(TransportLost):
        host.run(["true"], deadline=limit())


def test_a_cut_cable_ends_a_program_that_says_nothing(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    assert isinstance(host, ConnectedHost)
    cut_at: list[float] = []

    def cut(said: bytes) -> None:
        if said:
            fresh_lab_host.cut()
            cut_at.append(time.monotonic())

    with pytest.raises(TransportLost, match="lost") as caught:
        host.execute(("sh", "-c", "echo begun; exec sleep 100"), deadline=limit(60), stdout=cut)
    assert time.monotonic() - cut_at[0] < 15
    assert "keepalive" in (caught.value.seen or "")


def test_a_cut_cable_ends_a_copy_and_leaves_no_half_file(
    fresh_lab_host: LabHost, reach: Callable[..., Host], tmp_path: Path
) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.exec("sh", "-c", _DRIP)
    threading.Timer(0.5, fresh_lab_host.cut).start()
    started = time.monotonic()
    with pytest.raises(TransportLost):
        host.get("/root/slow", tmp_path / "got", deadline=limit(60))
    assert time.monotonic() - started < 15
    assert list(tmp_path.iterdir()) == []


def test_a_deadline_shorter_than_the_liveness_probe_holds_on_a_cut_cable(
    fresh_lab_host: LabHost, reach: Callable[..., Host]
) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.cut()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        host.run(["true"], deadline=limit(1.0))
    assert time.monotonic() - started < 2.0


def test_a_healed_cable_is_used_again(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    fresh_lab_host.cut()
    with pytest.raises(HostUnreachable):
        host.reconnect(deadline=limit(1.0))
    fresh_lab_host.heal()
    host.reconnect(deadline=limit())
    assert host.run(["hostname"], deadline=limit()).text == fresh_lab_host.name
    assert host.systemd().status("ssh", deadline=limit()).active

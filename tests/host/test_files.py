from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opsctl.errors import CommandFailed, HostError, OpsctlError
from opsctl.host.protocol import Host
from opsctl.lab.hosts import LabHost
from tests.host.conftest import limit

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.lab
_MIB = 1 << 20


@pytest.fixture
def place(either: Host, tmp_path: Path) -> str:
    """A folder of the host's own with a name that needs quoting."""
    folder = f"{tmp_path}/it's a $folder"
    either.run(["mkdir", "-p", folder], deadline=limit())
    return folder


def test_a_large_file_there_and_back(either: Host, place: str, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back" / "again"
    source.write_bytes(os.urandom(64 * _MIB))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    put = either.put(source, f"{place}/large", mode=0o640, deadline=limit(100))
    assert (put.path, put.size, put.sha256) == (f"{place}/large", 64 * _MIB, digest)
    assert either.run(["stat", "-c", "%a %s", f"{place}/large"], deadline=limit()).text == f"640 {64 * _MIB}"
    got = either.get(f"{place}/large", back, deadline=limit(100))
    assert (got.size, got.sha256) == (64 * _MIB, digest)
    assert hashlib.sha256(back.read_bytes()).hexdigest() == digest
    either.run(["rm", f"{place}/large"], deadline=limit())


@pytest.mark.parametrize("data", [b"", b"x", b"\0\xff\n" * 100_000])
def test_written_is_what_is_read(either: Host, place: str, data: bytes) -> None:
    either.write_file(f"{place}/deep/er/file", data, mode=0o600, deadline=limit())
    assert either.read_file(f"{place}/deep/er/file", deadline=limit()) == data
    listed = either.run(["ls", "-A", f"{place}/deep/er"], deadline=limit()).text
    assert listed == "file", "no temporary file stays"


def test_parts_of_a_file(either: Host, place: str) -> None:
    either.write_file(f"{place}/file", b"0123456789", deadline=limit())
    read = either.read_file
    assert read(f"{place}/file", offset=3, limit=4, deadline=limit()) == b"3456"
    assert read(f"{place}/file", offset=8, limit=100, deadline=limit()) == b"89"
    assert read(f"{place}/file", offset=10, deadline=limit()) == b""
    assert read(f"{place}/file", offset=1000, deadline=limit()) == b""


def test_files_of_the_kernel_are_read(either: Host) -> None:
    assert b"MemTotal" in either.read_file("/proc/meminfo", deadline=limit())


@pytest.mark.parametrize("path", ["/absent/file", "/etc", "-x"])
def test_what_cannot_be_read_is_said(either: Host, path: str, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="could not be read"):
        either.read_file(path, deadline=limit())
    with pytest.raises(CommandFailed):
        either.get(path, tmp_path / "x", deadline=limit())
    assert list(tmp_path.glob("*")) == []


def test_what_cannot_be_written_is_said(either: Host) -> None:
    with pytest.raises(CommandFailed, match="could not be written"):
        either.write_file("/proc/nothing/here", b"x", deadline=limit())


def test_a_file_that_grows_meanwhile_is_not_taken_for_whole(either: Host, place: str, tmp_path: Path) -> None:
    # Its reader sees other bytes each time it is opened.
    with pytest.raises(HostError, match="changed while"):
        either.get("/proc/sys/kernel/random/uuid", tmp_path / "x", deadline=limit())
    assert not (tmp_path / "x").exists()


def test_a_full_disk_leaves_the_old_file(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    host.write_file("/var/state", b"old", deadline=limit())
    fresh_lab_host.fill_disk()
    with pytest.raises(CommandFailed) as caught:
        host.write_file("/var/state", b"n" * _MIB, deadline=limit())
    assert "No space left" in (caught.value.seen or "")
    assert host.read_file("/var/state", deadline=limit()) == b"old"
    assert host.run(["ls", "-A", "/var"], deadline=limit()).text.count(".opsctl.") == 0


def test_a_link_that_breaks_never_renames_a_part(fresh_lab_host: LabHost, reach: Callable[..., Host]) -> None:
    host = reach(fresh_lab_host)
    host.write_file("/var/state", b"old", deadline=limit())
    sshd = fresh_lab_host.exec("pgrep", "-f", "sshd: root").stdout.split()

    def pieces() -> object:
        yield b"n" * _MIB
        fresh_lab_host.exec("kill", *sshd, check=False)
        yield b"n" * _MIB

    from opsctl.host import files  # noqa: PLC0415

    with pytest.raises(OpsctlError):
        files._write(host.execute, "/var/state", pieces(), "0" * 64, where="x", deadline=limit(), mode=0o644)  # type: ignore[attr-defined, arg-type]
    host.reconnect(deadline=limit())
    assert host.read_file("/var/state", deadline=limit()) == b"old"
    patience = limit(10)
    while ".opsctl." in host.run(["ls", "-A", "/var"], deadline=limit()).text:
        patience.check(seen="the temporary file is still there")
        time.sleep(0.05)

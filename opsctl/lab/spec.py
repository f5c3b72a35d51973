"""What a lab host is made of: the description, and the files of its first boot."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from opsctl.lab import releases

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class SeedFile:
    """A file that the host's disk holds from its first boot on. ``link_to`` makes it a symbolic link."""

    content: str = ""
    mode: int = 0o644
    link_to: str = ""


@dataclass(frozen=True)
class HostSpec:
    """One lab host.

    ``disk`` sizes its disk (a tmpfs: what is written counts against this machine's memory). ``login`` is who
    logs in by SSH; a name other than root is made, with ``sudo -n`` where ``sudo``. ``linger`` users keep a
    systemd of their own. ``remove`` are paths that this host lacks, such as /usr/bin/curl. ``binds`` bring in
    folders of this machine: ``SOURCE:TARGET:ro`` or ``:rw``. ``init`` sshd is a host without systemd. ``release``
    names the Debian release that it runs (releases.py), "" for this machine's own system.
    """

    disk: str = "2G"
    login: str = "root"
    sudo: bool = True
    linger: tuple[str, ...] = ()
    host_key: Literal["ed25519", "ecdsa", "rsa"] = "ed25519"
    init: Literal["systemd", "sshd"] = "systemd"
    release: str = ""
    binds: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    files: dict[str, SeedFile] = field(default_factory=dict)

    def with_files(self, files: dict[str, SeedFile]) -> HostSpec:
        """Return the same host with these files too."""
        return replace(self, files={**self.files, **files})

    def to_json(self) -> dict[str, Any]:
        """Return what host.json holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> HostSpec:
        """Return the spec that host.json holds."""
        files = {path: SeedFile(**seed) for path, seed in data["files"].items()}
        tuples = {name: tuple(data[name]) for name in ("linger", "binds", "remove")}
        return cls(**{**data, **tuples, "files": files})


SSHD_CONFIG = """\
Port 22
HostKey /etc/ssh/ssh_host_key
PermitRootLogin prohibit-password
PasswordAuthentication no
AuthorizedKeysFile /etc/ssh/authorized_keys/%u
UsePAM yes
UseDNS no
Subsystem sftp /usr/lib/openssh/sftp-server
"""
# MaxSessions 10 and MaxStartups 10:30:100 stay as real hosts have them.

JOURNALD_CONFIG = "[Journal]\nStorage=persistent\nSystemMaxUse=64M\n"


def seed(name: str, address: str, spec: HostSpec, *, host_key: str, public_key: str) -> dict[str, SeedFile]:
    """Return every file of the first boot: who the host is, who may log in, what runs."""
    files = {
        "/etc/hostname": SeedFile(name + "\n"),
        # The host's own name must resolve, or gloo hangs during a model's load.
        "/etc/hosts": SeedFile(f"127.0.0.1 localhost\n{address} {name}\n"),
        # No name server is in reach: a look-up that waits for one made torch's store 20 s slow to start.
        "/etc/resolv.conf": SeedFile("options timeout:1 attempts:1\n"),
        "/etc/fstab": SeedFile(),
        # Whatever this machine's root runs at login would cost every ssh command its time (0.12 s, seen).
        "/root/.bashrc": SeedFile(),
        "/etc/machine-id": SeedFile(uuid.uuid4().hex + "\n", 0o444),
        "/etc/ssh/sshd_config": SeedFile(SSHD_CONFIG),
        "/etc/ssh/ssh_host_key": SeedFile(host_key, 0o600),
        "/etc/ssh/authorized_keys/root": SeedFile(public_key),
        f"/etc/ssh/authorized_keys/{spec.login}": SeedFile(public_key),
        "/etc/systemd/journald.conf.d/lab.conf": SeedFile(JOURNALD_CONFIG),
        "/etc/systemd/system/multi-user.target.wants/ssh.service": SeedFile(link_to="/lib/systemd/system/ssh.service"),
    }
    if spec.login != "root" and spec.sudo:
        files["/etc/sudoers.d/lab"] = SeedFile(f"{spec.login} ALL=(ALL) NOPASSWD: ALL\n", 0o440)
    if spec.release:  # no console and no kernel of its own; in this machine's root nothing pulls these in
        masked = ("console-getty", "systemd-modules-load")
        files |= {f"/etc/systemd/system/{unit}.service": SeedFile(link_to="/dev/null") for unit in masked}
    files |= {f"/var/lib/systemd/linger/{user}": SeedFile() for user in spec.linger}
    return files | spec.files


def seed_tar(files: dict[str, SeedFile]) -> bytes:
    """Return a tar of the files alone: folders that exist keep their owner and mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, entry in files.items():
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = entry.mode
            if entry.link_to:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link_to
                archive.addfile(member)
                continue
            data = entry.content.encode()
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def needed_binds(release: str) -> tuple[str, ...]:
    """Return binds for the checkout and its Python where the lower layer of / alone would not show them."""
    if release:
        own = dict.fromkeys(os.path.realpath(path) for path in (CHECKOUT, sys.prefix))
        return (*(f"{path}:{path}:ro" for path in own), *releases.binds())
    root = Path("/").stat().st_dev
    hidden = ("/tmp", "/run", "/dev")  # noqa: S108 - these are fresh in a lab host
    wanted = dict.fromkeys(os.path.realpath(path) for path in (CHECKOUT, sys.prefix, sys.base_prefix))
    return tuple(
        f"{path}:{path}:ro"
        for path in wanted
        if Path(path).stat().st_dev != root or any(Path(path).is_relative_to(top) for top in hidden)
    )

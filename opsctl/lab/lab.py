"""A lab: several throw-away hosts on one cable, with a key, a known_hosts file and an inventory.

Any number of labs stand side by side, each with its own folder and network. The folder is ``OPSCTL_LAB``, else
one that is the same for every call of this user.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from opsctl.deadline import Deadline
from opsctl.errors import OpsctlError, UnfitError
from opsctl.lab import network, processes, releases
from opsctl.lab.hosts import LabHost
from opsctl.lab.spec import HostSpec

_PROGRAMS = ("unshare", "nsenter", "setpriv", "setsid", "ip", "mount", "ssh", "ssh-keygen", "tar", "bash")
_FILES = ("/lib/systemd/systemd", "/usr/sbin/sshd", "/usr/bin/dbus-daemon")
_LOCK = Path("/run/lock/opsctl-lab.lock")
_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


def default_folder() -> Path:
    """Return the lab's folder: OPSCTL_LAB, else a fixed one."""
    return Path(os.environ.get("OPSCTL_LAB") or "/tmp/opsctl-lab")  # noqa: S108 - root's, made with mode 700


def check_machine(user: int | None = None) -> None:
    """Raise UnfitError unless this machine can run lab hosts. ``user`` is the effective user id, by default ours."""
    if (os.geteuid() if user is None else user) != 0:
        raise UnfitError("the lab needs root", hint="it makes namespaces, mounts and a network bridge; use sudo")
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    missing += [path for path in _FILES if not Path(path).exists()]
    if missing:
        raise UnfitError(
            "this machine cannot run lab hosts", seen=f"missing: {', '.join(missing)}", hint="script/setup"
        )


@dataclass(frozen=True)
class Lab:
    """One lab. Make or find it with ``Lab.open``; everything it knows lies in its folder."""

    folder: Path
    index: int

    @classmethod
    def open(cls, folder: Path | None = None, *, owner: int | None = None) -> Lab:
        """Return the lab in a folder, made where there is none.

        ``owner`` is the pid of a process without which the lab has no purpose (a test session): a lab whose
        owner is gone is stale and is taken down by ``reap``. Raises UnfitError when this machine cannot.
        """
        check_machine()
        folder = (folder or default_folder()).resolve()
        if re.search(r"[\s:,\\\"']", str(folder)):
            raise UnfitError(
                f"the lab's folder cannot be {folder}",
                wanted="a path without spaces, colons and commas",
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _machine_lock():
            existing = cls._existing(folder)
            if existing is not None:
                return existing
            if not (folder / "key").exists():
                key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "opsctl-lab", "-f", str(folder / "key")]
                subprocess.run(key, check=True, stdin=subprocess.DEVNULL, timeout=30)
            lab = cls(folder, network.make_bridge(folder))
            described: dict[str, object] = {"index": lab.index}
            if owner is not None:
                process = processes.Process.of(owner)
                described["owner"] = [process.pid, process.started]
            (folder / "lab.json").write_text(json.dumps(described))
            return lab

    @classmethod
    def find(cls, folder: Path | None = None) -> Lab:
        """Return the lab in a folder. Raises UnfitError when there is none."""
        check_machine()
        folder = (folder or default_folder()).resolve()
        existing = cls._existing(folder)
        if existing is None:
            raise UnfitError(f"there is no lab in {folder}", hint="opsctl lab up")
        return existing

    @classmethod
    def _existing(cls, folder: Path) -> Lab | None:
        numbers = [index for index, place in network.labs().items() if place == folder]
        return cls(folder, numbers[0]) if numbers else None

    @property
    def inventory(self) -> Path:
        """Inventory of the lab's hosts."""
        return self.folder / "inventory.yml"

    @property
    def stale(self) -> bool:
        """Whether the process that it was made for is gone, or its folder is."""
        try:
            owner = json.loads((self.folder / "lab.json").read_text()).get("owner")
        except (OSError, ValueError):
            return True
        return owner is not None and not processes.Process(*owner).alive

    def hosts(self) -> list[LabHost]:
        """Return its hosts, up or off, by number."""
        found = []
        for described in self.folder.glob("*/host.json"):
            with contextlib.suppress(OpsctlError):
                found.append(LabHost.load(described.parent))
        return sorted(found, key=lambda host: host.number)

    def host(self, name: str) -> LabHost:
        """Return a host by name. Raises UnfitError with the names there are."""
        hosts = {host.name: host for host in self.hosts()}
        if name not in hosts:
            raise UnfitError(f"the lab has no host {name}", seen=f"hosts: {', '.join(hosts) or 'none'}")
        return hosts[name]

    def create(self, name: str, spec: HostSpec | None = None) -> LabHost:
        """Lay out a host, not booted. Raises UnfitError when there is one of that name."""
        if not _NAME.fullmatch(name):
            raise UnfitError(f"a lab host cannot be named {name!r}", wanted="lower-case letters, digits, hyphens")
        if spec is not None and spec.release:
            releases.root(releases.find(spec.release))  # minutes, when it is built: not under the machine's lock
        with _machine_lock():
            folder = self.folder / name
            if (folder / "host.json").exists():
                raise UnfitError(f"the lab has a host {name} already")
            if folder.exists():  # left half made by a killed process
                LabHost(name, self.index, 0, folder, HostSpec()).remove()
            taken = {host.number for host in self.hosts()}
            number = next(number for number in range(1, 250) if number not in taken)
            host = LabHost.create(name, self.index, number, folder, spec or HostSpec())
            self.write_known_hosts()
            return host

    def up(self, name: str, spec: HostSpec | None = None) -> LabHost:
        """Make a host and boot it; a host of that name that is off is booted as it is."""
        there = (self.folder / name / "host.json").exists()
        host = self.host(name) if there else self.create(name, spec)
        host.boot()
        return host

    def up_all(self, names: list[str], spec: HostSpec | None = None) -> list[LabHost]:
        """Boot several hosts at once."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            return list(pool.map(lambda name: self.up(name, spec), names))

    def write_known_hosts(self) -> None:
        """Write known_hosts from the keys that the hosts have now."""
        lines = [host.host_key_line for host in self.hosts()]
        (self.folder / "known_hosts").write_text("".join(line + "\n" for line in lines))

    def down(self, name: str | None = None) -> None:
        """End one host, or everything: processes, cables, mounts, network, folder. Works on what a kill left."""
        if name is not None:
            self.host(name).remove()
            self.write_known_hosts()
            return
        with _machine_lock():
            self._remove()

    def reap(self) -> bool:
        """Take it down if it is stale; return whether it was. One that is being made has no owner on disk yet."""
        with _machine_lock():
            stale = self.stale
            if stale:
                self._remove()
            return stale

    def _remove(self) -> None:
        if network.labs().get(self.index) != self.folder:
            return  # someone else took it down meanwhile, and the number may be another lab's by now
        for folder in self._host_folders():
            LabHost(folder.name, self.index, _number(folder), folder, HostSpec()).remove()
        processes.end_group(self.index, None, Deadline(15, "end of the lab's processes"))
        network.remove_bridge(self.index)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _host_folders(self) -> list[Path]:
        return [path for path in self.folder.glob("*") if path.is_dir() and _NAME.fullmatch(path.name)]


def all_labs() -> list[Lab]:
    """Return every lab of this machine, whoever made it."""
    return [Lab(folder, index) for index, folder in sorted(network.labs().items())]


def reap() -> list[Lab]:
    """Take down every stale lab and return them."""
    return [lab for lab in all_labs() if lab.stale and lab.reap()]


def _number(folder: Path) -> int:
    try:
        return int(json.loads((folder / "host.json").read_text())["number"])
    except (OSError, ValueError, KeyError):
        return 0  # never got a cable


@contextlib.contextmanager
def _machine_lock() -> Iterator[None]:
    """Hold the one lock of all labs on this machine: numbers are given out, and taken back, by one at a time."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

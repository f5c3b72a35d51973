"""One throw-away host: boot it, cut its power or its cable, run things in it, take it down.

A host is a process tree in namespaces of its own, with systemd as PID 1, over an overlay of this machine's /,
or of a Debian release's (releases.py).
Its disk is a tmpfs that outlives a power cut; a boot has a new boot_id and clocks that start at 0.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from opsctl.deadline import Deadline
from opsctl.errors import DeadlineExceeded, OpsctlError
from opsctl.lab import network, processes, releases
from opsctl.lab.spec import HostSpec, SeedFile, needed_binds, seed, seed_tar

_BOOT = Path(__file__).with_name("boot.sh")
_BOOT_LIMIT = 60.0
_NSENTER = ("nsenter", "--all", "--target")
# nsenter brings the caller's capabilities along: without this, `date -s` in a host would set this machine's clock.
_CONFINE = ("setpriv", "--bounding-set=-sys_time,-sys_module", "--")

State = Literal["up", "off"]


@dataclass(frozen=True)
class LabHost:
    """A host of a lab. All its state lies in ``folder`` and in the kernel, so any process can take it over."""

    name: str
    index: int
    number: int
    folder: Path
    spec: HostSpec

    # -- who it is

    @property
    def address(self) -> str:
        """IPv4 address of eth0."""
        return network.address(self.index, self.number)

    @property
    def identity_file(self) -> Path:
        """Private key that may log in."""
        return self.folder.parent / "key"

    @property
    def known_hosts(self) -> Path:
        """known_hosts file of the whole lab."""
        return self.folder.parent / "known_hosts"

    @property
    def host_key_line(self) -> str:
        """Line of known_hosts."""
        kind, key = (self.folder / "hostkey.pub").read_text().split()[:2]
        return f"{self.address} {kind} {key}"

    def ssh_argv(self, *command: str) -> list[str]:
        """Return the ssh command line that logs in, host key checked."""
        options = {
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
        }
        flags = [item for name, value in options.items() for item in ("-o", f"{name}={value}")]
        return [
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.identity_file),
            *flags,
            f"{self.spec.login}@{self.address}",
            *command,
        ]

    # -- power

    @classmethod
    def create(cls, name: str, index: int, number: int, folder: Path, spec: HostSpec) -> LabHost:
        """Lay out a host's folder: disk, host key, first files. Nothing runs yet."""
        host = cls(name, index, number, folder, replace(spec, binds=(*needed_binds(spec.release), *spec.binds)))
        (folder / "disk").mkdir(parents=True)
        (folder / "root").mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={spec.disk}", "opsctl-lab", str(folder / "disk"))
        (folder / "disk" / "upper").mkdir()
        (folder / "disk" / "work").mkdir()
        host.new_host_key()
        files = seed(
            name,
            host.address,
            spec,
            host_key=(folder / "hostkey").read_text(),
            public_key=(folder.parent / "key.pub").read_text(),
        )
        (folder / "seed.tar").touch(mode=0o600)
        (folder / "seed.tar").write_bytes(seed_tar(files))
        described = {"name": name, "index": index, "number": number, "spec": host.spec.to_json()}
        (folder / "host.json").write_text(json.dumps(described))
        return host

    @classmethod
    def load(cls, folder: Path) -> LabHost:
        """Return the host that lies in a folder. Raises OpsctlError when it was left half made."""
        try:
            data = json.loads((folder / "host.json").read_text())
            return cls(data["name"], data["index"], data["number"], folder, HostSpec.from_json(data["spec"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OpsctlError(f"no lab host in {folder}", seen=repr(error), hint="opsctl lab down") from error

    def boot(self, deadline: Deadline | None = None) -> None:
        """Start it and wait until sshd answers and every unit of the boot has settled. No-op when it is up."""
        deadline = (deadline or Deadline(_BOOT_LIMIT, "boot")).within(_BOOT_LIMIT, f"boot of lab host {self.name}")
        with self._locked():
            if self.state == "up":
                return
            self._end_processes(deadline)
            group = processes.make_group(self.index, self.number)
            self._launch(group)
            init = self._await_init(group, deadline)
            network.plug(self.index, self.number, init.pid)
            (self.folder / "init").write_text(f"{init.pid} {init.started}")
        self._await_sshd(deadline)
        if self.spec.init == "systemd":
            self._await_settled(deadline)

    def off(self, deadline: Deadline | None = None) -> None:
        """Cut the power: everything in it dies at once, the disk keeps what was written."""
        with self._locked():
            self._end_processes(deadline or Deadline(15, f"power cut of {self.name}"))
            network.unplug(self.index, self.number)

    def reboot(self, deadline: Deadline | None = None) -> None:
        """Cut the power and boot again."""
        self.off()
        self.boot(deadline)

    def remove(self) -> None:
        """End it for good: processes, cable, mount, folder. Works on one that was left half made."""
        if not self.folder.exists():
            return
        self.off()
        disk = self.folder / "disk"
        if os.path.ismount(disk):
            _run("umount", "--lazy", str(disk))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self, group: Path) -> None:
        uptime = int(float(Path("/proc/uptime").read_text().split(maxsplit=1)[0]))
        environment = {
            **os.environ,
            "LAB_DIR": str(self.folder),
            "LAB_LOWER": str(releases.root(releases.find(self.spec.release))) if self.spec.release else "/",
            "LAB_NAME": self.name,
            "LAB_ADDRESS": self.address,
            "LAB_GATEWAY": network.address(self.index, 0),
            "LAB_CGROUP": str(group),
            "LAB_BINDS": "\n".join(self.spec.binds),
            "LAB_REMOVE": "\n".join(self.spec.remove),
            "LAB_LOGIN": self.spec.login,
            "LAB_INIT": self.spec.init,
        }
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net"]
        clocks = ["--time", "--boottime", str(-uptime), "--monotonic", str(-uptime)]
        with (self.folder / "boot.log").open("wb") as log:
            # setsid --fork: the host has no parent here, so it outlives this process and leaves no zombie in it.
            subprocess.run(
                ["setsid", "--fork", "unshare", *clocks, *namespaces, "bash", str(_BOOT), "join"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                timeout=10,
            )

    def _await_init(self, group: Path, deadline: Deadline) -> processes.Process:
        """Return the process that is PID 1 in the host, once it has entered its control group."""
        patience = deadline.within(10, f"start of lab host {self.name}")
        while True:
            for pid in processes.members(group):
                with contextlib.suppress(ProcessLookupError):
                    if processes.is_init(pid):
                        return processes.Process.of(pid)
            self._check_boot(patience)
            time.sleep(0.01)

    def _await_sshd(self, deadline: Deadline) -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.address, 22), timeout=0.1) as link:
                link.settimeout(2)
                if link.recv(8).startswith(b"SSH-"):
                    return
            self._check_boot(deadline)
            if self.state != "up":
                raise OpsctlError(f"lab host {self.name} died during its boot", seen=self._boot_log())
            time.sleep(0.02)

    def _await_settled(self, deadline: Deadline) -> None:
        limit = max(1.0, deadline.remaining())
        try:
            asked = self.exec("systemctl", "is-system-running", "--wait", check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"lab host {self.name} did not settle within {limit:.0f} s") from None
        if asked.stdout.strip() != "running":
            failed = self.exec("systemctl", "list-units", "--failed", "--plain", "--no-legend", check=False).stdout
            raise OpsctlError(f"lab host {self.name} is {asked.stdout.strip()} after its boot", seen=failed.strip())

    def _check_boot(self, deadline: Deadline) -> None:
        deadline.check(seen=self._boot_log() or "nothing in boot.log", where=str(self.folder / "boot.log"))

    def _boot_log(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "boot.log").read_text(errors="replace").strip()[-800:]
        return ""

    def _end_processes(self, deadline: Deadline) -> None:
        init = self._init()
        if init is not None:
            init.kill()
        processes.end_group(self.index, self.number, deadline)
        (self.folder / "init").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # -- what it is like

    def _init(self) -> processes.Process | None:
        try:
            pid, started = (self.folder / "init").read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return processes.Process(int(pid), int(started))

    @property
    def state(self) -> State:
        """Whether its PID 1 runs."""
        init = self._init()
        return "up" if init is not None and init.alive else "off"

    @property
    def boot_id(self) -> str:
        """Identity of the current boot."""
        return (self.folder / "boot_id").read_text().strip()

    # -- doing things in it, not through the network

    def exec(
        self,
        *argv: str,
        stdin: str | None = None,
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in it as root, past network and sshd. Raises OpsctlError when ``check`` and it failed."""
        done = subprocess.run(
            self.exec_argv(*argv),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout,
        )
        if check and done.returncode != 0:
            raise OpsctlError(
                f"{' '.join(argv)} ended with status {done.returncode}",
                where=f"lab host {self.name}",
                seen=(done.stderr or done.stdout).strip()[-800:],
            )
        return done

    def exec_argv(self, *argv: str) -> list[str]:
        """Return the command line that runs a program in it."""
        init = self._init()
        if init is None or not init.alive:
            raise OpsctlError(f"lab host {self.name} is off", hint=f"opsctl lab reboot {self.name}")
        group = processes.group(self.index, self.number)
        scope = group / "init.scope" if self.spec.init == "systemd" else group
        join = ("sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', str(scope))
        return [*join, *_NSENTER, str(init.pid), *_CONFINE, *argv]

    def systemctl(self, *arguments: str, check: bool = True, timeout: float = 60.0) -> str:
        """Run systemctl in it and return what it prints, without the last newline."""
        return self.exec("systemctl", *arguments, check=check, timeout=timeout).stdout.rstrip("\n")

    def write_file(self, path: str, content: str, mode: int = 0o644) -> None:
        """Write a file in it, folders made."""
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1" && chmod "$2" "$1"'
        self.exec("sh", "-c", script, "sh", path, f"{mode:o}", stdin=content)

    def write_files(self, files: dict[str, SeedFile]) -> None:
        """Write several files in it, links too, folders made."""
        self._pipe(seed_tar(files), "tar", "--keep-directory-symlink", "-xpf", "-", "-C", "/")

    def _pipe(self, data: bytes, *argv: str) -> None:
        done = subprocess.run(self.exec_argv(*argv), input=data, capture_output=True, check=False, timeout=60)
        if done.returncode != 0:
            raise OpsctlError(f"{argv[0]} failed", where=f"lab host {self.name}", seen=done.stderr.decode()[-800:])

    def read_file(self, path: str) -> str:
        """Return a file of it as text. Raises OpsctlError when it is not there."""
        return self.exec("cat", path).stdout

    def exists(self, path: str) -> bool:
        """Whether a path exists in it."""
        return self.exec("test", "-e", path, check=False).returncode == 0

    # -- faults

    def cut(self) -> None:
        """Pull its network cable."""
        network.cut(self.index, self.number)

    def heal(self) -> None:
        """Put its network cable back."""
        network.heal(self.index, self.number)

    def fill_disk(self) -> None:
        """Leave no byte free on its disk."""
        pour = "dd if=/dev/zero of=/var/filled bs=1M; dd if=/dev/zero of=/var/filled2 bs=512"
        self.exec("sh", "-c", f"{{ {pour}; }} 2>/dev/null; true")

    def free_disk(self) -> None:
        """Undo fill_disk."""
        self.exec("rm", "-f", "/var/filled", "/var/filled2")

    def read_only(self) -> None:
        """Turn its disk read only, as ext4 does after an error; a power cut undoes it.

        Unlike the kernel's own remount this one needs every file closed, so journald moves to /run first.
        """
        self.exec("journalctl", "--relinquish-var")
        self.exec("mount", "-o", "remount,ro", "/")

    def new_host_key(self) -> None:
        """Give it another host key, as a reinstalled host has; takes effect in a running host too."""
        key = self.folder / "hostkey"
        key.unlink(missing_ok=True)
        (self.folder / "hostkey.pub").unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", self.spec.host_key, "-N", "", "-C", self.name, "-f", str(key))
        if self.state == "up":
            self.write_file("/etc/ssh/ssh_host_key", key.read_text(), 0o600)
            self.systemctl("restart", "ssh.service")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise OpsctlError(f"{argv[0]} failed", seen=done.stderr.strip())

"""A connected host: the protocol's ``Host``, written once over any link."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, HostRebooted, LeaseLost, PrivilegeMissing
from opsctl.host import files, identity, journal
from opsctl.host.guard import STATE_DIR, guard_argv
from opsctl.host.identity import IdentityQuery
from opsctl.host.link import Ended, Link
from opsctl.host.outage import Outage
from opsctl.host.protocol import Completed, FileRecord, JournalBatch, Systemd
from opsctl.host.quoting import show_argv

if TYPE_CHECKING:
    import httpcore
    import httpx

    from opsctl.host.systemctl import CommandSystemd
    from opsctl.host.systemd import BusSystemd
    from opsctl.playbook.models import HostEntry

BRIDGE_LIMIT = 20.0
"""Seconds in which a bridge to systemd must stand."""
IDENTITY_LIMIT = 15.0
"""Seconds in which a host must answer the query for its identity."""
_HOST_MARGIN = 5
"""Seconds after our own deadline at which the host ends a program that we lost sight of."""
_SUDO_REFUSED = re.compile(
    rb"^sudo: .*(password|sudoers|not allowed|may not run|tty|terminal|askpass|account|setuid)"
    rb"|^Sorry, user .* (is not allowed|may not run)"
    rb"|sudo: (command )?not found|^env: .sudo.: No such file",
    re.MULTILINE,
)


class ConnectedHost:
    """One host, over a link that ``reach`` makes and makes anew. Threads may share it."""

    def __init__(self, name: str, entry: HostEntry, reach: Callable[[Deadline], Link], *, deadline: Deadline) -> None:
        self.name = name
        self.entry = entry
        self._reach = reach
        self._lock = threading.RLock()
        self._reading: BusSystemd | CommandSystemd | None = None
        self._fenced: dict[int, BusSystemd | CommandSystemd] = {}
        self.outage = Outage()
        self.listener = ""
        self._link = reach(deadline)
        self._identity = IdentityQuery(name, self._ask)
        self._boot_id = ""

    def _ask(self, stdout: Callable[[bytes], object]) -> Ended:
        deadline = Deadline(IDENTITY_LIMIT, f"the identity of {self.name}")
        words = ("env", "LC_ALL=C.UTF-8", *_bounded(deadline), *identity.ARGV)
        return self._link.execute(words, deadline=deadline, stdout=stdout)

    @property
    def has_systemd(self) -> bool:
        """Whether systemd is its init. Raises HostError where it cannot be asked."""
        return self._identity.result().manager == "systemd"

    @property
    def user_scope(self) -> bool:
        """Whether the services are the user's own."""
        return self.entry.scope == "user"

    @property
    def state_dir(self) -> str:
        """Where opsctl keeps its things on the host. See ``Host.state_dir``."""
        return f"{self._identity.result().state}/opsctl" if self.user_scope else STATE_DIR

    @property
    def runtime_dir(self) -> str:
        """Folder of the login's own sockets: its user manager's bus lies there."""
        return f"/run/user/{self._identity.result().uid}"

    def boot_id(self, *, deadline: Deadline) -> str:
        """Return the boot_id as the host says it now."""
        said = self.run(("cat", "/proc/sys/kernel/random/boot_id"), deadline=deadline, become=False).text.strip()
        self._boot_id = self._boot_id or said
        return said

    def sudo(self, become: bool | None) -> bool:  # noqa: FBT001 - the protocol's own three-valued word
        """Whether sudo goes in front: as asked or as the inventory says, and never for root."""
        return (self.entry.become if become is None else become) and self._identity.result().uid != "0"

    def on_bus(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return argv with what it needs to reach the bus of the host's scope."""
        if self.user_scope:
            return ("env", f"XDG_RUNTIME_DIR={self.runtime_dir}", *argv)
        return ("env", "LC_ALL=C.UTF-8", *(["sudo", "-n", "--"] if self.sudo(None) else []), *argv)

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        become: bool | None = None,
    ) -> Completed:
        """Run a program to its end. See ``Host.run``. ``env`` is visible in the host's process list: no secrets."""
        pieces: list[bytes] = []
        ended = self.execute(
            argv,
            deadline=deadline,
            stdin=[stdin] if stdin else [],
            stdout=pieces.append,
            env=env,
            become=become,
        )
        done = Completed(tuple(argv), ended.exit_status, b"".join(pieces), ended.stderr, ended.seconds)
        if check and done.exit_status != 0:
            stderr = ended.stderr.decode(errors="replace").strip()
            status = f"status {done.exit_status}" if done.exit_status >= 0 else "a signal"
            raise CommandFailed(
                f"{show_argv(argv)} ended with {status} on {self.name}",
                exit_status=done.exit_status,
                stderr=stderr,
                seen=stderr[-600:] or done.text[-600:] or "no output",
                where=self.name,
            )
        return done

    def execute(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
        env: Mapping[str, str] | None = None,
        become: bool | None = None,
    ) -> Ended:
        """Run a program with streams as callables. Raises PrivilegeMissing where sudo refuses.

        The host ends the program too, a little after our deadline: a lost link leaves nothing running.
        """
        sudo = self.sudo(become)
        words = [
            "env",
            "LC_ALL=C.UTF-8",
            *([f"XDG_RUNTIME_DIR={self.runtime_dir}"] if self.user_scope else []),
            *(["sudo", "-n", "--"] if sudo else []),
            *_bounded(deadline),
            *(["env", *(f"{name}={value}" for name, value in env.items())] if env else []),
            *argv,
        ]
        ended = self._link.execute(words, deadline=deadline, stdin=stdin, stdout=stdout)
        if sudo and ended.exit_status in {1, 127} and _SUDO_REFUSED.search(ended.stderr):
            raise self.sudo_refused(ended.stderr.decode(errors="replace"))
        return ended

    def sudo_refused(self, stderr: str) -> PrivilegeMissing:
        """Return the error for a sudo that would have asked."""
        return PrivilegeMissing(
            f"sudo -n was refused on {self.name}",
            seen=stderr.strip()[-400:],
            where=self.name,
            hint="allow it in /etc/sudoers.d/ with NOPASSWD, or log in as root",
        )

    def read_file(self, path: str, *, deadline: Deadline, offset: int = 0, limit: int = 16 << 20) -> bytes:
        """Return a part of a file. See ``Host.read_file``."""
        return files.read_file(self.execute, path, where=self.name, deadline=deadline, offset=offset, limit=limit)

    def write_file(self, path: str, data: bytes, *, deadline: Deadline, mode: int = 0o644) -> None:
        """Write completely or not at all. See ``Host.write_file``."""
        files.write_file(self.execute, path, data, where=self.name, deadline=deadline, mode=mode)

    def put(self, local: Path, remote: str, *, deadline: Deadline, mode: int = 0o644) -> FileRecord:
        """Copy a file to the host."""
        return files.put(self.execute, local, remote, where=self.name, deadline=deadline, mode=mode)

    def get(self, remote: str, local: Path, *, deadline: Deadline) -> FileRecord:
        """Copy a file from the host."""
        return files.get(self.execute, remote, local, where=self.name, deadline=deadline)

    def journal(self, unit: str, *, after: str | None, deadline: Deadline, limit: int = 2000) -> JournalBatch:
        """Return a unit's entries since a cursor. See ``Host.journal``."""
        if after is None:
            newest = self.run(journal.cursor_argv(user=self.user_scope), deadline=deadline)
            return JournalBatch((), str(json.loads(newest.stdout)["__CURSOR"]) if newest.text else "")
        done = self.run(journal.batch_argv(unit, after, limit, user=self.user_scope), deadline=deadline)
        return journal.parse_batch(done.stdout, after=after)

    def http(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, verify: bool = True, ca_pem: str | None = None
    ) -> httpx.Client:
        """Return a client whose connections leave from the host. See ``Host.http``."""
        from opsctl.host.http import client  # noqa: PLC0415 - httpx takes 0.1 s
        from opsctl.host.tls import Trust  # noqa: PLC0415

        return client(self._network_backend, base_url, headers=headers, trust=Trust(verify, ca_pem))

    def _network_backend(self) -> httpcore.NetworkBackend:
        return self._link.network_backend()

    @property
    def link(self) -> Link:
        """The link as it stands now."""
        return self._link

    def systemd(self) -> Systemd:
        """Return the reading bridge, made when first asked for and again after a lost link."""
        with self._lock:
            if self._reading is not None and not self._reading.alive:
                self._reading.close()
                self._reading = None
            if self._reading is None:
                self._reading = self._open_systemd(None)
            return self._reading

    def fenced_systemd(self, token: int) -> Systemd:
        """Return the bridge that dies with the token. Raises LeaseLost when the token does not hold."""
        with self._lock:
            if token not in self._fenced:
                self._fenced[token] = self._open_systemd(token)
            return self._fenced[token]

    def _open_systemd(self, token: int | None) -> BusSystemd | CommandSystemd:
        """Return D-Bus over a bridge, or commands on the host where this machine has no GLib (not Linux)."""
        if importlib.util.find_spec("gi") is None:
            from opsctl.host.systemctl import open_commands  # noqa: PLC0415 - seldom needed

            return open_commands(self, token=token)
        deadline = Deadline(BRIDGE_LIMIT, f"bridge to systemd on {self.name}")
        # GLib takes a tenth of a second to load, and so does the host to log us in: beside each other.
        loading = threading.Thread(target=importlib.import_module, args=("opsctl.host.systemd",), daemon=True)
        loading.start()
        bridge = self._link.open_bridge(
            self._bridge_argv(token), stderr_filter=self._identity.take_from, deadline=deadline
        )
        loading.join()
        from opsctl.host.systemd import open_systemd  # noqa: PLC0415 - loaded by now

        return open_systemd(self, bridge, deadline=deadline, token=token)

    def _bridge_argv(self, token: int | None) -> tuple[str, ...]:
        """Return the program that joins its standard streams to the host's bus."""
        if token is not None:
            return self.on_bus(guard_argv(self.entry, "session", str(token)))
        # --user would do for systemd 254; 252's reads that option and connects to the system bus all the same.
        if self.user_scope:
            return self.on_bus(("systemd-stdio-bridge", f"--bus-path=unix:path={self.runtime_dir}/bus"))
        argv = self.on_bus(("systemd-stdio-bridge",))
        return argv if self._identity.known else identity.carried_by(argv)

    def lease_lost(self, token: int, seen: str) -> LeaseLost:
        """Return the error for a bridge that the host has ended, or refused, for its token."""
        return LeaseLost(
            f"the lease on {self.name} with token {token} is gone: its session was ended on the host",
            seen=seen or "the session's bridge closed",
            where=self.name,
            hint=f"the guard restores production; see: opsctl lease show {self.name}",
        )

    def reconnect(self, *, deadline: Deadline) -> None:
        """Make the link anew. Raises HostRebooted once after each reboot; the new link then stands.

        The boot before is known to whoever asked for ``boot_id`` or used systemd over the link that was lost.
        """
        with self._lock:
            known = self._identity.known
            self._boot_id = before = known.boot_id if known else self._boot_id
            self._drop()
            self._link = self._reach(deadline)
            self._identity = IdentityQuery(self.name, self._ask)
            self._boot_id = now = self._identity.result().boot_id
            if before and now != before:
                raise HostRebooted(
                    f"{self.name} was rebooted",
                    wanted=f"boot_id {before}",
                    seen=f"boot_id {now}",
                    where=self.name,
                    hint="what ran there is gone; a lease that was armed restores production by itself",
                )

    def close(self) -> None:
        """Close bridges and link, and end their threads."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        for systemd in (self._reading, *self._fenced.values()):
            if systemd is not None:
                with contextlib.suppress(OSError):
                    systemd.close()
        self._reading = None
        self._fenced = {}
        self._link.close()


def _bounded(deadline: Deadline) -> tuple[str, ...]:
    """Return what goes before a program's argv, so that the host ends it where we no longer can."""
    return ("timeout", "-k", "5", str(math.ceil(deadline.remaining()) + _HOST_MARGIN))

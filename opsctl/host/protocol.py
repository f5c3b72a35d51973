"""What a host can do, as everything above sees it. ``connection.py``, ``local.py``, ``systemd.py`` are how.

All calls take a Deadline and raise only errors of ``opsctl.errors``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from opsctl.deadline import Deadline

if TYPE_CHECKING:
    import httpx

    from opsctl.host.outage import Outage
    from opsctl.playbook.models import HostEntry


@dataclass(frozen=True)
class Completed:
    """A program that ended on the host."""

    argv: tuple[str, ...]
    exit_status: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def text(self) -> str:
        """Standard output as text, without the last newline."""
        return self.stdout.decode(errors="replace").rstrip("\n")


@dataclass(frozen=True)
class FileRecord:
    """A file that crossed the link, verified complete."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class JournalLine:
    """One entry of a unit's journal. ``time`` is seconds since the epoch on the host; ``pid`` is who wrote it."""

    time: float
    message: str
    pid: int = 0


@dataclass(frozen=True)
class JournalBatch:
    """Entries since a cursor, and the cursor to go on from."""

    lines: tuple[JournalLine, ...]
    cursor: str


@dataclass(frozen=True)
class UnitStatus:
    """One reading of a unit (one GetAll of Unit and one of Service). ``load_state`` not-found: there is none."""

    name: str
    load_state: str
    active_state: str
    sub_state: str
    result: str = ""
    main_pid: int = 0
    exec_main_status: int = 0
    n_restarts: int = 0
    invocation_id: str = ""
    fragment_path: str = ""
    drop_in_paths: tuple[str, ...] = ()
    need_daemon_reload: bool = False
    unit_file_state: str = ""
    control_group: str = ""
    slice: str = ""
    exec_start: tuple[tuple[str, ...], ...] = ()
    """argv of each ExecStart line as systemd loaded it."""
    environment: tuple[str, ...] = ()
    required_by: tuple[str, ...] = ()
    bound_by: tuple[str, ...] = ()
    consists_of: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()
    properties: Mapping[str, object] = field(default_factory=dict)
    """Everything else that systemd said, by its own names."""

    @property
    def active(self) -> bool:
        """Whether systemd calls it active (which, for a server without sd_notify, only means spawned)."""
        return self.active_state == "active"

    @property
    def stopped(self) -> bool:
        """Whether nothing of it runs."""
        return self.active_state in {"inactive", "failed"}


@dataclass(frozen=True)
class JobOutcome:
    """How a systemd job ended: done, failed, timeout, dependency, canceled, skipped."""

    unit: str
    kind: str
    result: str
    seconds: float


@dataclass(frozen=True)
class TransientUnit:
    """A unit to be made and started at once.

    ``properties`` are systemd's own names with plain Python values (str, bool, int, float, list of str);
    ``systemd.py`` knows their D-Bus types. Durations are given as ``…USec`` integers.
    """

    name: str
    argv: tuple[str, ...]
    description: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    runtime_max: float = 3600.0
    """Seconds; the host itself ends the unit then."""
    timeout_stop: float = 10.0
    slice: str = "opsctl.slice"
    stdout_file: str = ""
    stderr_file: str = ""
    properties: Mapping[str, object] = field(default_factory=dict)


class Systemd(Protocol):
    """systemd of one host in one scope. Reading methods work on any bridge, changing ones only on a fenced one."""

    def status(self, unit: str, *, deadline: Deadline) -> UnitStatus:
        """Return one reading. Where there is no such unit, its load_state is not-found: that is no error."""
        ...

    def list_units(self, *patterns: str, deadline: Deadline) -> tuple[UnitStatus, ...]:
        """Return loaded units whose names match a glob, with the fields that ListUnitsByPatterns gives."""
        ...

    def start(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Start and await the job (subscribe, start, await JobRemoved). Raises JobFailed unless done."""
        ...

    def stop(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Stop and await the job. Raises JobFailed unless done, UnitNotFound where it is not loaded."""
        ...

    def start_transient(self, unit: TransientUnit, *, deadline: Deadline) -> JobOutcome:
        """Make a unit and start it: done means that its program was executed. Raises JobFailed, BusError."""
        ...

    def kill(self, unit: str, signal: int, *, deadline: Deadline) -> None:
        """Send a signal to every process of a unit. Raises UnitNotFound."""
        ...

    def reset_failed(self, unit: str, *, deadline: Deadline) -> None:
        """Forget that a unit failed, and its start counter. Raises UnitNotFound where it is not loaded."""
        ...

    def daemon_reload(self, *, deadline: Deadline) -> None:
        """Have systemd read all unit files again (others' pending edits too)."""
        ...

    def processes(self, unit: str, *, deadline: Deadline) -> tuple[tuple[int, str], ...]:
        """Return (pid, command line) of every process in the unit's cgroup."""
        ...

    def close(self) -> None:
        """End it, and every thread of it."""
        ...


class Host(Protocol):
    """One host, connected."""

    name: str
    entry: HostEntry
    outage: Outage
    """Of the link: ``opsctl/host/outage.py`` rides it out."""
    listener: str
    """Who held production's port when the lease was armed, as the guard recorded it; "" where that is not known."""

    @property
    def state_dir(self) -> str:
        """/var/lib/opsctl in system scope; the user's own state folder in user scope. Runs lie under it in runs/."""
        ...

    def boot_id(self, *, deadline: Deadline) -> str:
        """Return what /proc/sys/kernel/random/boot_id says now."""
        ...

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
        """Run a program to its end. Raises CommandFailed when ``check`` and its status is not 0.

        ``become`` None means: as the inventory says. Both streams are always read. The deadline closes the channel.
        """
        ...

    def read_file(self, path: str, *, deadline: Deadline, offset: int = 0, limit: int = 16 << 20) -> bytes:
        """Return at most ``limit`` bytes from ``offset``; b"" at the end. Raises CommandFailed when it is not there."""
        ...

    def write_file(self, path: str, data: bytes, *, deadline: Deadline, mode: int = 0o644) -> None:
        """Write atomically: temporary file, sync, rename, sync of the folder; parents are made."""
        ...

    def put(self, local: Path, remote: str, *, deadline: Deadline, mode: int = 0o644) -> FileRecord:
        """Copy a file to the host, completely or not at all; the sum is checked there."""
        ...

    def get(self, remote: str, local: Path, *, deadline: Deadline) -> FileRecord:
        """Copy a file from the host, completely or not at all. Raises HostError when it changed meanwhile."""
        ...

    def journal(self, unit: str, *, after: str | None, deadline: Deadline, limit: int = 2000) -> JournalBatch:
        """Return the unit's entries after a cursor; with None, no lines and the cursor of now."""
        ...

    def http(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, verify: bool = True, ca_pem: str | None = None
    ) -> httpx.Client:
        """Return a client whose connections leave from the host (direct-tcpip), with a limit on every phase.

        An https url's certificate and name are checked against this machine's store, or against ``ca_pem``.

        A request takes a total limit as ``extensions={"deadline": Deadline}`` (default: 120 s); past it,
        DeadlineExceeded is raised, and TransportLost where the link dies. What HTTP itself meets (refused,
        a phase's timeout) stays httpx's own error.
        """
        ...

    def systemd(self) -> Systemd:
        """Return the reading bridge (made once, again after a lost link)."""
        ...

    def fenced_systemd(self, token: int) -> Systemd:
        """Return a bridge that the host started as ``opsctl-guard session TOKEN``: it dies with the token.

        Raises LeaseLost when the host says that the token is not the one that holds.
        """
        ...

    def reconnect(self, *, deadline: Deadline) -> None:
        """Make the link anew. Raises HostRebooted when boot_id changed."""
        ...

    def close(self) -> None:
        """End it, and every thread of it."""
        ...

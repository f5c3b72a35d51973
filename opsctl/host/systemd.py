"""systemd over D-Bus. The only module that knows pydbus and GLib.

A bridge (``bridge.py``) brings the host's bus to a local socket; pydbus speaks over it. pydbus introspects
every object it is asked for and waits without limit by default: here proxies are built from a description that
is written down below, every call carries a limit, and a unit is read by one GetAll. A job is awaited by
JobRemoved, subscribed before the job is asked for: it can end before the reply arrives.
"""

from __future__ import annotations

import threading
import time
import xml.etree.ElementTree as ET
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pydbus.proxy
from gi.repository import Gio, GLib

from opsctl.deadline import Deadline
from opsctl.errors import HostError, JobFailed, LeaseLost, OpsctlError, UnfitError
from opsctl.host.bridge import Bridge, BridgeEnd
from opsctl.host.call_limit import cut_at
from opsctl.host.error_mapping import bus_error, link_lost
from opsctl.host.guard import GuardExit
from opsctl.host.protocol import JobOutcome, TransientUnit, UnitStatus
from opsctl.host.units import dbus_typed, full_name, object_path, status_of, transient_properties
from opsctl.strike_points import strike_point

if TYPE_CHECKING:
    from opsctl.host.binding import BoundHost

CALL_LIMIT = 20.0
"""Seconds for one call, whatever is left of the caller's deadline."""
RELOAD_LIMIT = 90.0
"""daemon-reload answers only when every generator has run."""

_BUS_NAME = "org.freedesktop.systemd1"
_MANAGER_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_PROPERTIES = "org.freedesktop.DBus.Properties"
# Name, types in, types out: what is used of org.freedesktop.systemd1(5).
_METHODS = (
    ("Subscribe", (), ()),
    ("StartUnit", ("s", "s"), ("o",)),
    ("StopUnit", ("s", "s"), ("o",)),
    ("KillUnit", ("s", "s", "i"), ()),
    ("ResetFailedUnit", ("s",), ()),
    ("Reload", (), ()),
    ("ListUnitsByPatterns", ("as", "as"), ("a(ssssssouso)",)),
    ("GetUnitProcesses", ("s",), ("a(sus)",)),
    ("StartTransientUnit", ("s", "s", "a(sv)", "a(sa(sv))"), ("o",)),
)


def _description(interface: str, methods: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]) -> Any:
    """Return a proxy class of pydbus for one interface, without asking the host to describe itself."""
    node = ET.Element("node")
    described = ET.SubElement(node, "interface", name=interface)
    for name, taken, given in methods:
        method = ET.SubElement(described, "method", name=name)
        for direction, types in (("in", taken), ("out", given)):
            for kind in types:
                ET.SubElement(method, "arg", type=kind, direction=direction)
    return pydbus.proxy.CompositeInterface(node)


_ManagerProxy = _description(_MANAGER, _METHODS)


def open_systemd(host: BoundHost, bridge: Bridge, *, deadline: Deadline, token: int | None = None) -> BusSystemd:
    """Speak with the host's systemd over a bridge: plain for reading, or in the session of a lease's token.

    Raises UnfitError where there is no systemd or no bridge, PrivilegeMissing, LeaseLost. The bridge is then closed.
    """

    def lost() -> OpsctlError:
        return _why_lost(host, bridge, token)

    try:
        connection = _connected(host, bridge, deadline, token)
        bridge.listen()
        _require_systemd(host)
    except BaseException:
        bridge.close()
        raise
    return BusSystemd(connection, bridge, where=host.name, lost=lost)


def _connected(host: BoundHost, bridge: Bridge, deadline: Deadline, token: int | None) -> Any:
    try:
        return _connection(bridge, deadline, host.name)
    except GLib.Error as error:
        raise _why_refused(host, bridge.end(2.0), token, str(error.message)) from error


def _require_systemd(host: BoundHost) -> None:
    if not host.has_systemd:
        raise UnfitError(
            f"{host.name} does not run systemd",
            wanted="systemd as its init",
            seen="no /run/systemd/system",
            where=host.name,
            hint="opsctl serves hosts whose services are systemd units",
        )


def _connection(bridge: Bridge, deadline: Deadline, where: str) -> Any:
    end = Gio.Socket.new_from_fd(bridge.take_socket().detach())
    flags = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
    cancellable = Gio.Cancellable()
    with cut_at(deadline, cancellable.cancel, where=where):
        stream = end.connection_factory_create_connection()
        return Gio.DBusConnection.new_sync(stream, None, flags, None, cancellable)


def _why_refused(host: BoundHost, end: BridgeEnd, token: int | None, seen: str) -> OpsctlError:
    """Say why a bridge did not come to stand. Raises UnfitError where that is because of the host's init."""
    if end.exit_status is None and not host.link.alive:
        return link_lost(host.name, seen)
    if host.sudo(None) and end.stderr.startswith("sudo:"):
        return host.sudo_refused(end.stderr)
    _require_systemd(host)
    if token is not None and end.exit_status == GuardExit.LOST:
        return host.lease_lost(token, end.stderr or seen)
    if token is not None:
        return HostError(
            f"the session of token {token} could not be opened on {host.name}",
            wanted="opsctl-guard session",
            seen=end.stderr or seen,
            where=host.name,
            hint=f"opsctl guard show {host.name} says whether the guard is installed",
        )
    missing = end.exit_status == 127 or "not found" in end.stderr
    scope = "user" if host.user_scope else "system"
    return UnfitError(
        f"{host.name} has no systemd-stdio-bridge" if missing else f"the {scope} bus of {host.name} cannot be reached",
        wanted="systemd-stdio-bridge, which is part of systemd, and a D-Bus daemon",
        seen=end.stderr or seen,
        where=host.name,
        hint="install systemd and dbus (for scope user: dbus-user-session, and loginctl enable-linger)",
    )


def _why_lost(host: BoundHost, bridge: Bridge, token: int | None) -> OpsctlError:
    """Say why a bridge that stood has gone: the lease's session was ended, or the link is dead."""
    end = bridge.end(0.5)
    if not host.link.alive:
        return link_lost(host.name, "the connection closed")
    if token is not None:
        return host.lease_lost(token, end.stderr)
    return link_lost(host.name, f"the bridge to systemd ended: {end.stderr or 'its stream closed'}")


class BusSystemd:
    """The protocol's ``Systemd`` over one bus connection. Threads may share it."""

    def __init__(self, connection: Any, bridge: Bridge, *, where: str, lost: Callable[[], OpsctlError]) -> None:
        self._connection = connection
        self._bridge = bridge
        self._where = where
        self._lost = lost
        self._bus = connection.pydbus
        self._manager = _ManagerProxy(self._bus, _BUS_NAME, _MANAGER_PATH)[_MANAGER]
        self._lock = threading.Lock()
        self._jobs: _Jobs | None = None

    @property
    def alive(self) -> bool:
        """Whether the bridge stands, as far as is known here."""
        return not self._bridge.ended and not self._connection.is_closed()

    def status(self, unit: str, *, deadline: Deadline) -> UnitStatus:
        """Return one reading. A unit that there is none of has the load_state not-found."""
        name = full_name(unit)
        # The empty interface means all of them: Unit and Service in one answer. systemd loads what is not loaded.
        said = self._call(self._get_all, object_path(name), asked=f"state of {name}", deadline=deadline)
        return status_of(name, _Properties(said))

    def _get_all(self, path: str, *, timeout: float) -> Any:
        """Return a{sv}, still packed: pydbus would unpack all 400 values (7 ms) of which twenty are read."""
        wanted = GLib.Variant("(s)", ("",))
        reply = GLib.VariantType.new("(a{sv})")
        limit = round(timeout * 1000)
        flags = Gio.DBusCallFlags.NONE
        answer = self._bus.con.call_sync(_BUS_NAME, path, _PROPERTIES, "GetAll", wanted, reply, flags, limit, None)
        return answer.get_child_value(0)

    def list_units(self, *patterns: str, deadline: Deadline) -> tuple[UnitStatus, ...]:
        """Return the loaded units whose names match one of the globs (all without one)."""
        rows = self._call(
            self._manager.ListUnitsByPatterns, [], list(patterns), asked="list of units", deadline=deadline
        )
        return tuple(
            UnitStatus(
                name=row[0],
                load_state=row[2],
                active_state=row[3],
                sub_state=row[4],
                properties={"Description": row[1], "Following": row[5], "Job": row[7], "JobType": row[8]},
            )
            for row in rows
        )

    def start(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Start a unit and await the job. Raises JobFailed unless it is done, UnitNotFound."""
        name = full_name(unit)
        return self._job("start", name, self._manager.StartUnit, name, "replace", deadline=deadline)

    def stop(self, unit: str, *, deadline: Deadline) -> JobOutcome:
        """Stop a unit and await the job. Raises JobFailed unless it is done, UnitNotFound."""
        name = full_name(unit)
        return self._job("stop", name, self._manager.StopUnit, name, "replace", deadline=deadline)

    def start_transient(self, unit: TransientUnit, *, deadline: Deadline) -> JobOutcome:
        """Make a unit, start it, await the job. Raises BusError where a unit of that name is loaded."""
        name = full_name(unit.name)
        properties = [(key, _variant(key, value)) for key, value in transient_properties(unit).items()]
        return self._job(
            "start",
            name,
            self._manager.StartTransientUnit,
            name,
            "fail",
            properties,
            [],
            deadline=deadline,
        )

    def kill(self, unit: str, signal: int, *, deadline: Deadline) -> None:
        """Send a signal to every process of a unit."""
        name = full_name(unit)
        self._call(
            self._manager.KillUnit, name, "all", int(signal), asked=f"signal {signal} to {name}", deadline=deadline
        )

    def reset_failed(self, unit: str, *, deadline: Deadline) -> None:
        """Forget that a unit failed, and its start counter. Raises UnitNotFound where it is not loaded."""
        name = full_name(unit)
        self._call(self._manager.ResetFailedUnit, name, asked=f"reset-failed of {name}", deadline=deadline)

    def daemon_reload(self, *, deadline: Deadline) -> None:
        """Have systemd read all unit files again."""
        self._call(self._manager.Reload, asked="daemon-reload", deadline=deadline, limit=RELOAD_LIMIT)

    def processes(self, unit: str, *, deadline: Deadline) -> tuple[tuple[int, str], ...]:
        """Return (pid, command line) of every process in the unit's cgroup."""
        name = full_name(unit)
        rows = self._call(self._manager.GetUnitProcesses, name, asked=f"processes of {name}", deadline=deadline)
        return tuple((int(pid), str(command)) for _, pid, command in rows)

    def close(self) -> None:
        """Close the bus, the bridge and the thread that awaits jobs."""
        with self._lock:
            jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.close()
        self._bridge.close()
        # Without an end to talk to, this only ends GLib's side; a bus that is closed already says so.
        cancelled = Gio.Cancellable()
        cancelled.cancel()
        try:
            self._connection.close_sync(cancelled)
        except GLib.Error:
            return

    def _call(
        self,
        method: Callable[..., Any],
        *arguments: Any,
        asked: str,
        deadline: Deadline,
        limit: float = CALL_LIMIT,
    ) -> Any:
        """Make one call that ends within ``limit`` and the deadline, with GLib's errors mapped."""
        deadline.check(where=self._where)
        if not self.alive:
            raise self._lost()
        try:
            return method(*arguments, timeout=max(0.001, min(limit, deadline.remaining())))
        except GLib.Error as error:
            # A bus that is closing says so before the pump has noticed why.
            raise bus_error(error, asked=asked, where=self._where, lost=self._lost) from error

    def _job(self, kind: str, unit: str, method: Callable[..., Any], *arguments: Any, deadline: Deadline) -> JobOutcome:
        jobs = self._watching(deadline)
        started = time.monotonic()
        # Nothing on this side looks at the lease between here and the call: what a late call does, the fence decides.
        strike_point(f"bus {kind} {unit} before")
        path = self._call(method, *arguments, asked=f"{kind} of {unit}", deadline=deadline)
        result = jobs.wait(path, deadline, alive=lambda: self.alive)
        if result is None:
            if not self.alive:
                raise self._lost()
            deadline.check(
                where=f"{self._where}: {unit}",
                seen=f"the {kind} job of {unit} still runs",
                hint=f"journalctl -u {unit} on the host; the job goes on",
            )
        outcome = JobOutcome(unit, kind, str(result), time.monotonic() - started)
        if outcome.result != "done":
            raise self._job_failed(outcome, deadline)
        return outcome

    def _job_failed(self, outcome: JobOutcome, deadline: Deadline) -> OpsctlError:
        seen = f"job result {outcome.result}"
        try:
            status = self.status(outcome.unit, deadline=deadline.within(5.0, "a look at the unit"))
            seen += f"; {status.active_state} ({status.sub_state}), Result={status.result}"
            seen += f", exit status {status.exec_main_status}" if status.exec_main_status else ""
        except LeaseLost as error:
            return error
        except OpsctlError:  # the job's own result is what matters
            pass
        return JobFailed(
            f"{outcome.kind} of {outcome.unit} ended in {outcome.result} on {self._where}",
            result=outcome.result,
            wanted="done",
            seen=seen,
            where=self._where,
            hint=f"journalctl -u {outcome.unit} -n 50 on the host",
        )

    def _watching(self, deadline: Deadline) -> _Jobs:
        """Return the watch on JobRemoved, begun when the first job is asked for."""
        with self._lock:
            if self._jobs is None:
                self._jobs = _Jobs(self._bus, self._where)
                self._call(self._manager.Subscribe, asked="subscription to jobs", deadline=deadline)
            return self._jobs


class _Properties(Mapping[str, Any]):
    """a{sv} as a mapping that unpacks what is asked for."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed

    def __getitem__(self, name: str) -> Any:
        value = self._packed.lookup_value(name, None)
        if value is None:
            raise KeyError(name)
        return value.unpack()

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed.keys())

    def __len__(self) -> int:
        return int(self._packed.n_children())


class _Jobs:
    """Results of jobs by their path, collected by one thread that owns the subscription's GLib context."""

    _KEPT = 256

    def __init__(self, bus: Any, where: str) -> None:
        self._bus = bus
        self._context = GLib.MainContext.new()
        self._results: OrderedDict[str, str] = OrderedDict()
        self._changed = threading.Condition()
        self._stop = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._own, name=f"opsctl-jobs-{where}", daemon=True)
        self._thread.start()
        self._ready.wait()

    def wait(self, path: str, deadline: Deadline, *, alive: Callable[[], bool]) -> str | None:
        """Return the job's result; None when the deadline or the bus ended first."""
        with self._changed:
            while path not in self._results:
                if deadline.expired or not alive():
                    return None
                self._changed.wait(min(0.05, deadline.remaining() + 0.001))
            return self._results.pop(path)

    def close(self) -> None:
        """End the thread."""
        self._stop = True
        self._context.wakeup()
        self._thread.join(5.0)

    def _own(self) -> None:
        # Signals are delivered to the context that is this thread's own when it subscribes.
        self._context.push_thread_default()
        try:
            subscription = self._bus.subscribe(
                sender=_BUS_NAME,
                iface=_MANAGER,
                signal="JobRemoved",
                object=_MANAGER_PATH,
                signal_fired=self._removed,
            )
            self._ready.set()
            while not self._stop:
                self._context.iteration(True)
            subscription.unsubscribe()
        finally:
            self._ready.set()
            self._context.pop_thread_default()

    def _removed(self, _sender: str, _path: str, _interface: str, _signal: str, parameters: tuple[Any, ...]) -> None:
        _, path, _, result = parameters
        with self._changed:
            self._results[path] = result
            while len(self._results) > self._KEPT:
                self._results.popitem(last=False)
            self._changed.notify_all()


def _variant(name: str, value: object) -> Any:
    """Return a transient property typed as systemd wants it."""
    kind, plain = dbus_typed(name, value)
    return GLib.Variant(kind, plain)

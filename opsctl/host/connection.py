"""One SSH connection: Fabric and paramiko with limits of our own, checked host keys and a judged keepalive."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import fabric
import paramiko

from opsctl.deadline import Deadline
from opsctl.errors import (
    AuthenticationFailed,
    DeadlineExceeded,
    HostKeyRejected,
    HostUnreachable,
    OpsctlError,
    UnfitError,
)
from opsctl.host.border import link_lost, ssh_errors
from opsctl.host.bridge import ChannelBridge
from opsctl.host.cutoff import cut_at
from opsctl.host.known_hosts import HostKeys
from opsctl.host.link import Ended
from opsctl.host.liveness import HeardSocket, Liveness
from opsctl.host.quoting import quote_argv
from opsctl.host.ssh_config import Route

_CHUNK = 1 << 15
_HANDSHAKES = threading.BoundedSemaphore(4)
"""sshd drops connections at random beyond ten unauthenticated ones (MaxStartups 10:30:100)."""
_AGENT_LOCK = threading.Lock()


class SshLink:
    """A link over SSH. ``open_link`` makes it."""

    def __init__(self, route: Route, hops: list[fabric.Connection], heard: HeardSocket) -> None:
        self._where = route.hostname
        self._hops = hops
        self._transport = hops[-1].transport
        self._liveness = Liveness(self._transport, heard)

    @property
    def alive(self) -> bool:
        """Whether the transport still stands."""
        return bool(self._transport.is_active())

    def execute(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
    ) -> Ended:
        """Run a program over a channel of its own, without a terminal. See ``Link.execute``."""
        started = time.monotonic()
        with self._errors(), self._channel(argv, deadline) as channel:
            stderr = _converse(channel, iter(stdin), stdout, deadline, self._where)
            if not self.alive:
                raise self._lost()
            status = channel.exit_status if channel.exit_status_ready() else -1
            return Ended(int(status), stderr, time.monotonic() - started)

    def open_bridge(self, argv: Sequence[str], *, deadline: Deadline) -> ChannelBridge:
        """Start a program and join it to a local socket."""
        with self._errors():
            return ChannelBridge(self._started(argv, deadline), self._where)

    def network_backend(self) -> Any:
        """Return what connects from the host, by direct-tcpip channels."""
        from opsctl.host.http import ChannelBackend  # noqa: PLC0415 - httpx takes 0.1 s

        return ChannelBackend(self._transport, self._where)

    def close(self) -> None:
        """Close the connection and its jump hosts', and end the liveness thread."""
        for hop in reversed(self._hops):
            _close(hop)
        self._liveness.stop()

    def _started(self, argv: Sequence[str], deadline: Deadline) -> Any:
        """Return an open channel on which ``argv`` runs."""
        deadline.check(where=self._where)
        if not self.alive:
            raise self._lost()
        try:
            channel = self._transport.open_session(timeout=deadline.remaining())
        except paramiko.SSHException:
            deadline.check(where=self._where)
            raise
        try:
            with cut_at(deadline, channel.close, where=self._where):
                # Bytes, so that arguments which are no UTF-8 cross as they are.
                channel.exec_command(quote_argv(argv).encode("utf-8", "surrogateescape"))
        except BaseException:
            channel.close()
            raise
        return channel

    @contextlib.contextmanager
    def _channel(self, argv: Sequence[str], deadline: Deadline) -> Iterator[Any]:
        channel = self._started(argv, deadline)
        try:
            yield channel
        finally:
            channel.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        with ssh_errors(self._where):
            yield

    def _lost(self) -> OpsctlError:
        died = self._liveness.died.is_set()
        return link_lost(self._where, "the host did not answer a keepalive" if died else "the connection closed")


def _converse(
    channel: Any,
    stdin: Iterator[bytes],
    stdout: Callable[[bytes], object],
    deadline: Deadline,
    where: str,
) -> bytes:
    """Feed and read a channel to its end; return stderr. Both streams are read, or a full window would hang."""
    stderr: list[bytes] = []
    waiting = select.poll()
    waiting.register(channel.fileno(), select.POLLIN)
    pending: bytes | memoryview | None = b""
    while True:
        # Asked first: what arrives after this is picked up in the next round, never lost.
        finished = channel.closed or (channel.eof_received and channel.exit_status_ready())
        moved = False
        if channel.recv_ready():
            stdout(channel.recv(_CHUNK))
            moved = True
        if channel.recv_stderr_ready():
            stderr.append(channel.recv_stderr(_CHUNK))
            moved = True
        if pending is not None and not finished:
            pending, sent = _feed(channel, stdin, pending)
            moved = moved or sent
        if moved:
            continue
        if finished:
            return b"".join(stderr)
        deadline.check(where=where, seen=_tail(b"".join(stderr)))
        # With input left, a window that opens makes no event: look again soon.
        longest = 0.5 if pending is None else 0.01
        waiting.poll(1000 * min(longest, deadline.remaining() + 0.001))


def _feed(channel: Any, stdin: Iterator[bytes], pending: bytes | memoryview) -> tuple[bytes | memoryview | None, bool]:
    """Send one piece if the window has room. Return what is left (None: all sent and closed), and whether any went."""
    if not pending:
        piece = next(stdin, None)
        if piece is None:
            channel.shutdown_write()
            return None, True
        pending = memoryview(piece)
    if not channel.send_ready():
        return pending, False
    try:
        return memoryview(pending)[channel.send(pending[:_CHUNK]) :], True
    except OSError:
        # The program closed its input: its exit status says the rest.
        return None, True


def _tail(stderr: bytes) -> str | None:
    return stderr.decode(errors="replace").strip()[-400:] or None


def open_link(route: Route, *, deadline: Deadline) -> SshLink:
    """Connect and authenticate, through jump hosts where ssh_config says so.

    Raises HostUnreachable, HostKeyRejected, AuthenticationFailed, DeadlineExceeded.
    """
    hops: list[fabric.Connection] = []
    try:
        heard = _open_hops(route, hops, deadline)
    except BaseException:
        for hop in reversed(hops):
            _close(hop)
        raise
    return SshLink(route, hops, heard)


def _open_hops(route: Route, hops: list[fabric.Connection], deadline: Deadline) -> HeardSocket:
    """Open the jump hosts of a route, first to last, then its host. Each connection is put into ``hops``."""
    if route.jump is not None:
        _open_hops(route.jump, hops, deadline)
    with _connecting(route, deadline):
        heard = HeardSocket(_socket(route, hops, deadline))
        hop = fabric.Connection(
            host=route.hostname,
            user=route.user,
            port=route.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            connect_timeout=deadline.remaining(),
            connect_kwargs=_connect_kwargs(route, heard, deadline),
        )
        keys = HostKeys(route.known_hosts, host=route.hostname, port=route.port, alias=route.host_key_alias)
        hop.connect_kwargs["transport_factory"] = _preferring(keys.kinds)
        hop.client.set_missing_host_key_policy(_Policy(keys))
        try:
            hop.client._agent = _agent(route)  # noqa: SLF001 - paramiko has no other way to be given one
            with _HANDSHAKES, cut_at(deadline, lambda: _abort(hop, heard), where=route.where):
                hop.open()
        except BaseException:
            _abort(hop, heard)
            raise
        hops.append(hop)
        return heard


def _socket(route: Route, hops: list[fabric.Connection], deadline: Deadline) -> Any:
    """Return what the connection speaks through: a TCP socket, a jump host's channel, or a ProxyCommand."""
    deadline.check(where=route.where)
    if route.proxy_command is not None:
        return paramiko.ProxyCommand(route.proxy_command)
    if route.jump is not None:
        return hops[-1].transport.open_channel(
            "direct-tcpip",
            (route.hostname, route.port),
            ("127.0.0.1", 0),
            timeout=deadline.remaining(),
        )
    failures = []
    found = socket.getaddrinfo(route.hostname, route.port, route.family, socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        end = socket.socket(family, kind, protocol)
        end.settimeout(max(0.001, deadline.remaining()))
        try:
            end.connect(address)
        except OSError as error:
            end.close()
            failures.append(error)
        else:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return end
    raise failures[0]


def _connect_kwargs(route: Route, heard: HeardSocket, deadline: Deadline) -> dict[str, Any]:
    limit = deadline.remaining()
    return {
        "sock": heard,
        "key_filename": list(route.identity_files) or None,
        "look_for_keys": False,  # ssh -G has listed the default ones too
        "allow_agent": not route.identities_only and route.identity_agent != "none",
        "banner_timeout": limit,
        "auth_timeout": limit,
        "channel_timeout": limit,
    }


def _preferring(kinds: tuple[str, ...]) -> Callable[..., Any]:
    """Return a maker of transports that ask for the key types that are known of the host before any other."""

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        known = {f"rsa-sha2-{bits}" for bits in (512, 256)} if "ssh-rsa" in kinds else set()
        known |= set(kinds)
        security.key_types = sorted(security.key_types, key=lambda kind: kind not in known)
        return transport

    return make


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """paramiko is told of no known key at all, so that every key comes here."""

    def __init__(self, keys: HostKeys) -> None:
        self._keys = keys

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        del client, hostname
        self._keys.check(key.get_name(), key.asbytes())


def _agent(route: Route) -> paramiko.Agent | None:
    """Return the agent that ssh_config names, if it names one: paramiko itself looks only at the environment."""
    if route.identity_agent in {None, "none"} or route.identities_only:
        return None
    with _AGENT_LOCK:
        before = os.environ.get("SSH_AUTH_SOCK")
        os.environ["SSH_AUTH_SOCK"] = str(route.identity_agent)
        try:
            return paramiko.Agent()
        finally:
            os.environ.pop("SSH_AUTH_SOCK")
            if before is not None:
                os.environ["SSH_AUTH_SOCK"] = before


@contextlib.contextmanager
def _connecting(route: Route, deadline: Deadline) -> Iterator[None]:
    """Map what goes wrong while connecting."""
    hint = f"try: ssh -v -p {route.port} {route.user}@{route.address}"
    try:
        yield
    except (OpsctlError, HostKeyRejected):
        raise
    except paramiko.PasswordRequiredException as error:
        raise AuthenticationFailed(
            f"a private key for {route.where} is encrypted and no agent offers it",
            seen=f"keys tried: {_keys_tried(route)}",
            where=route.where,
            hint="ssh-add the key first; opsctl never asks for a passphrase",
        ) from error
    except (paramiko.AuthenticationException, paramiko.ssh_exception.NoValidConnectionsError) as error:
        raise AuthenticationFailed(
            f"{route.hostname} let {route.user} in with none of the keys that were offered",
            seen=f"{error}; keys tried: {_keys_tried(route)}",
            where=route.where,
            hint=hint,
        ) from error
    except (TimeoutError, DeadlineExceeded) as error:
        raise HostUnreachable(
            f"no connection to {route.hostname} within {deadline.seconds:g} s",
            seen=str(error) or "no answer",
            where=route.where,
            hint=hint,
        ) from error
    except socket.gaierror as error:
        raise HostUnreachable(
            f"there is no address for {route.hostname}",
            seen=error.strerror or str(error),
            where=route.where,
            hint="look at `address` in the inventory and at HostName in your ssh_config",
        ) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        if isinstance(error, paramiko.SSHException) and "no authentication methods" in str(error).lower():
            raise AuthenticationFailed(
                f"there is no key to offer to {route.hostname}",
                seen=f"keys tried: {_keys_tried(route)}",
                where=route.where,
                hint="set identity_file in the inventory, or ssh-add a key",
            ) from error
        raise HostUnreachable(
            f"no connection to {route.hostname} could be made",
            seen=str(error) or type(error).__name__,
            where=route.where,
            hint=hint,
        ) from error


def _keys_tried(route: Route) -> str:
    files = ", ".join(route.identity_files) or "no file"
    return files if route.identities_only else f"{files}, and the agent's"


def _abort(hop: fabric.Connection, heard: HeardSocket) -> None:
    _close(hop)
    with contextlib.suppress(OSError):
        heard.close()


def _close(hop: fabric.Connection) -> None:
    # Fabric's own close does nothing once the transport has died, and leaves the socket and the agent open.
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        hop.client.close()
    if hop.transport is not None:
        hop.transport.join(5.0)  # close returns before the thread that reads has ended


def check_entry(route: Route) -> None:
    """Raise UnfitError where the inventory names a private key that is not there."""
    for file in route.identity_files:
        if not os.access(file, os.R_OK):
            raise UnfitError(
                f"the private key {file} cannot be read",
                where=route.where,
                hint="look at identity_file in the inventory",
            )

"""Making SSH connections: jump hosts, keys, agents, and what goes wrong on the way, said for a person.

Fabric opens the connections; the sockets below them are ours, so that every phase can be cut and every byte
is noticed (``liveness.py``), and so is the judgement of host keys (``known_hosts.py``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import fabric
import paramiko

from opsctl.deadline import Deadline
from opsctl.errors import AuthenticationFailed, DeadlineExceeded, HostUnreachable, OpsctlError, UnfitError
from opsctl.host.call_limit import cut_at
from opsctl.host.identities import is_public, public_half
from opsctl.host.known_hosts import HostKeys
from opsctl.host.liveness import HeardSocket
from opsctl.host.ssh_config import Route
from opsctl.retrying import retrying

# paramiko prints refused channels and dead links to stderr which no one reads: both reach the person as errors.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_HANDSHAKES = threading.BoundedSemaphore(4)
"""sshd drops connections at random beyond ten unauthenticated ones (MaxStartups 10:30:100)."""
_DROPPED_LIMIT = 15.0
_AGENT_LIMIT = 5.0
"""Seconds in which an agent must list its keys."""


class _Proxy(paramiko.ProxyCommand):  # type: ignore[misc]
    """A ProxyCommand that is awaited when it ends; paramiko leaves it behind, with its pipes."""

    def close(self) -> None:
        """End the program and close its pipes."""
        with self.process:
            self.process.terminate()


class _Dropped(HostUnreachable):
    """sshd closed before it said a word: too many connections. Another attempt helps."""


def open_hops(route: Route, *, deadline: Deadline) -> tuple[list[fabric.Connection], HeardSocket]:
    """Return the open connections of a route, jump hosts first, and the socket below the last one.

    Raises HostUnreachable, HostKeyRejected, AuthenticationFailed, UnfitError for a key file that is not there.
    """
    _check_keys(route)
    for attempt in retrying(_Dropped, deadline=deadline.within(_DROPPED_LIMIT, "a free connection of sshd")):
        with attempt:
            hops: list[fabric.Connection] = []
            try:
                return hops, _open_hops(route, hops, deadline)
            except BaseException:
                for hop in reversed(hops):
                    close_hop(hop)
                raise
    raise AssertionError("the last error is raised")  # pragma: no cover - tenacity's reraise


def _open_hops(route: Route, hops: list[fabric.Connection], deadline: Deadline) -> HeardSocket:
    """Open the jump hosts of a route, first to last, then its host. Each connection is put into ``hops``."""
    if route.jump is not None:
        _open_hops(route.jump, hops, deadline)
    with _connecting(route, deadline), _turn(deadline, route.where):
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
            agent = _agent(route, deadline)
            hop.client._agent = agent  # noqa: SLF001 - paramiko has no other way to be given one
            hop.connect_kwargs["key_filename"] = _files_to_offer(route, agent)
            with cut_at(deadline, lambda: _abort(hop, heard), where=route.where):
                hop.open()
        except BaseException:
            _abort(hop, heard)
            raise
        hops.append(hop)
        return heard


@contextlib.contextmanager
def _turn(deadline: Deadline, where: str) -> Iterator[None]:
    if not _HANDSHAKES.acquire(timeout=deadline.remaining()):
        deadline.check(where=where, seen="other connections are being made")
    try:
        yield
    finally:
        _HANDSHAKES.release()


def _socket(route: Route, hops: list[fabric.Connection], deadline: Deadline) -> Any:
    """Return what the connection speaks through: a TCP socket, a jump host's channel, or a ProxyCommand."""
    deadline.check(where=route.where)
    if route.proxy_command is not None:
        return _Proxy(route.proxy_command)
    if route.jump is not None:
        return hops[-1].transport.open_channel(
            "direct-tcpip",
            (route.hostname, route.port),
            ("127.0.0.1", 0),
            timeout=deadline.remaining(),
        )
    failures = []
    found = _addresses(route, deadline)
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


def _addresses(route: Route, deadline: Deadline) -> list[Any]:
    """Return what the name resolves to. The resolver knows no limit, and no Ctrl-C: it runs in a thread."""
    found: Future[list[Any]] = Future()

    def resolve() -> None:
        try:
            found.set_result(socket.getaddrinfo(route.hostname, route.port, route.family, socket.SOCK_STREAM))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=resolve, name=f"resolve {route.hostname}", daemon=True).start()
    return found.result(max(0.001, deadline.remaining()))


def _connect_kwargs(route: Route, heard: HeardSocket, deadline: Deadline) -> dict[str, Any]:
    limit = deadline.remaining()
    return {
        "sock": heard,
        "look_for_keys": False,  # ssh -G has listed the default ones too
        "allow_agent": route.identity_agent != "none",
        "banner_timeout": limit,
        "auth_timeout": limit,
        "channel_timeout": limit,
    }


def _files_to_offer(route: Route, agent: paramiko.Agent) -> list[str]:
    """Return the private keys that the agent does not hold: each key is offered once, as sshd counts (6 tries)."""
    held = {key.asbytes() for key in agent.get_keys()}
    return [file for file in route.identity_files if not is_public(file) and public_half(file) not in held]


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


class _Agent(paramiko.Agent):  # type: ignore[misc]
    """The agent at one socket, every step with a limit: paramiko's own waits without limit for an agent that hangs."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        paramiko.agent.AgentSSH.__init__(self)
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.settimeout(max(0.001, min(_AGENT_LIMIT, deadline.remaining())))
            end.connect(path)
            self._connect(end)
            # A key that wants to be touched or confirmed takes its time: to sign, there is all that is left.
            end.settimeout(max(0.001, deadline.remaining()))
        except BaseException:
            end.close()
            raise


def _agent(route: Route, deadline: Deadline) -> paramiko.Agent:
    """Return the agent, the keys that IdentityFile means first; one without keys where there is none.

    With IdentitiesOnly the agent may offer just the keys whose files are named (an encrypted file, unlocked in the
    agent). Raises AuthenticationFailed for an agent that hangs where there is no file to go on with.
    """
    path = route.identity_agent or os.environ.get("SSH_AUTH_SOCK")
    none = paramiko.agent.AgentSSH.__new__(paramiko.Agent)
    paramiko.agent.AgentSSH.__init__(none)
    if not path or path == "none":
        return none
    try:
        agent = _Agent(path, deadline)
    except TimeoutError as error:
        deadline.check(where=route.where)
        if route.identity_files:
            return none
        raise AuthenticationFailed(
            "the ssh agent does not answer",
            seen=f"no answer within {_AGENT_LIMIT:g} s",
            where=path,
            hint="restart the agent, or set identity-file in the inventory (init: --identity-file)",
        ) from error
    except (OSError, paramiko.SSHException):
        return none
    wanted = {public_half(file) for file in route.identity_files}
    named = [key for key in agent.get_keys() if key.asbytes() in wanted]
    others = [] if route.identities_only else [key for key in agent.get_keys() if key.asbytes() not in wanted]
    agent._keys = (*named, *others)  # noqa: SLF001
    return agent


@contextlib.contextmanager
def _connecting(route: Route, deadline: Deadline) -> Iterator[None]:
    """Map what goes wrong while connecting."""
    hint = f"try: ssh -v -p {route.port} {route.user}@{route.address}"
    try:
        yield
    except (TimeoutError, DeadlineExceeded) as error:
        raise HostUnreachable(
            f"no connection to {route.hostname} within {deadline.seconds:g} s",
            seen="no answer, or only a part of a handshake",
            where=route.where,
            hint=hint,
        ) from error
    except OpsctlError:
        raise
    except paramiko.PasswordRequiredException as error:
        raise AuthenticationFailed(
            f"a private key for {route.where} is encrypted and no agent offers it",
            seen=f"keys tried: {_keys_tried(route)}",
            where=route.where,
            hint="ssh-add the key first; opsctl never asks for a passphrase",
        ) from error
    except paramiko.AuthenticationException as error:
        raise AuthenticationFailed(
            f"{route.hostname} let {route.user} in with none of the keys that were offered",
            seen=f"{error}; keys tried: {_keys_tried(route)}",
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
                hint="set identity-file in the inventory (init: --identity-file), or ssh-add a key",
            ) from error
        dropped = "banner" in str(error) or isinstance(error, (ConnectionResetError, EOFError))
        raise (_Dropped if dropped else HostUnreachable)(
            f"no connection to {route.hostname} could be made",
            seen=str(error) or type(error).__name__,
            where=route.where,
            hint=hint,
        ) from error


def _keys_tried(route: Route) -> str:
    files = ", ".join(route.identity_files) or "no file"
    return files if route.identities_only else f"{files}, and the agent's"


def _abort(hop: fabric.Connection, heard: HeardSocket) -> None:
    close_hop(hop)
    with contextlib.suppress(OSError):
        heard.close()


def close_hop(hop: fabric.Connection) -> None:
    """Close one connection and wait for its thread."""
    # Fabric's own close does nothing once the transport has died, and leaves the socket and the agent open.
    transport = hop.client.get_transport()
    if transport is not None:
        # paramiko's reader looks whether it is closed ten times a second; the end of its stream wakes it at once.
        with contextlib.suppress(OSError, EOFError, AttributeError):
            transport.sock.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        hop.client.close()
    if transport is not None and transport.is_alive():
        transport.join(5.0)  # close returns before the thread that reads has ended


def _check_keys(route: Route) -> None:
    """Raise UnfitError where the inventory names a private key that is not there (ssh_config's are passed over)."""
    for file in route.identity_files:
        if not (os.access(file, os.R_OK) or is_public(f"{file}.pub")):
            raise UnfitError(
                f"the private key {file} cannot be read",
                where=route.where,
                hint="look at identity-file in the inventory (init: --identity-file)",
            )

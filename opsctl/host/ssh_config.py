"""The user's ssh_config, resolved by OpenSSH itself: ``ssh -G`` knows Include, Match, tokens and defaults.

``OPSCTL_SSH_CONFIG`` names another file than the user's own, as ``ssh -F`` does.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import UnfitError
from opsctl.playbook.models import HostEntry

_MOST_HOPS = 8
_HOST_PORT = re.compile(r"(?:\[(.*)\]|(.*?))(?::(\d+))?")

# Settings that change who is reached or how, and that paramiko cannot follow. Anything else that is not
# supported (ciphers, ControlMaster, compression) changes nothing about where the connection ends.
_UNSUPPORTED = {
    "knownhostscommand": "put the host's key into known_hosts",
    "pkcs11provider": "load the key into an agent (ssh-add -s)",
    "bindaddress": "remove BindAddress for this host",
    "bindinterface": "remove BindInterface for this host",
}


@dataclass(frozen=True)
class Route:
    """How one host is reached: what ssh_config and inventory say together."""

    address: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_only: bool
    identity_agent: str | None
    known_hosts: tuple[Path, ...]
    host_key_alias: str | None
    family: socket.AddressFamily
    proxy_command: str | None
    jump: Route | None

    @property
    def where(self) -> str:
        """user@host:port, for messages."""
        return f"{self.user}@{self.hostname}:{self.port}"


def resolve(entry: HostEntry) -> Route:
    """Return the route to a host of the inventory. What the inventory says goes before ssh_config.

    Raises UnfitError for a setting that matters and cannot be followed.
    """
    return _resolve(
        entry.address,
        user=entry.user,
        port=entry.port,
        identity_file=entry.identity_file,
        known_hosts=entry.known_hosts,
        hops=0,
    )


def _resolve(
    address: str,
    *,
    user: str | None,
    port: int | None,
    identity_file: str | None,
    known_hosts: str | None,
    hops: int,
) -> Route:
    if hops > _MOST_HOPS:
        raise UnfitError(
            f"ProxyJump leads through more than {_MOST_HOPS} hosts",
            where=address,
            hint="look for a jump host that jumps through itself in your ssh_config",
        )
    said = _ask_ssh(address, user=user, port=port)
    for key, hint in _UNSUPPORTED.items():
        value = said.get(key, ["none"])[0]
        if value.lower() not in {"none", "internal", ""}:
            raise UnfitError(
                f"ssh_config sets {key} for {address}, which opsctl cannot follow",
                seen=f"{key} {value}",
                where=address,
                hint=hint,
            )
    hostname = said["hostname"][0]
    final_user, final_port = said["user"][0], int(said["port"][0])
    tokens = {"%": "%", "d": str(Path.home()), "h": hostname, "n": address, "p": str(final_port), "r": final_user}
    jump = _jump(said.get("proxyjump", ["none"])[0], known_hosts=known_hosts, hops=hops)
    command = said.get("proxycommand", ["none"])[0]
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    agent = said.get("identityagent", [None])[0]
    alias = said.get("hostkeyalias", [None])[0]
    return Route(
        address=address,
        hostname=hostname,
        port=final_port,
        user=final_user,
        identity_files=(identity_file,) if identity_file else _paths(said.get("identityfile", []), tokens),
        identities_only=said.get("identitiesonly", ["no"])[0] == "yes",
        identity_agent=None if agent in {None, "SSH_AUTH_SOCK"} else _expand(str(agent), tokens),
        known_hosts=_known_hosts(said, known_hosts, tokens),
        host_key_alias=None if alias in {None, "none"} else alias,
        family=families.get(said.get("addressfamily", ["any"])[0], socket.AF_UNSPEC),
        proxy_command=None if command.lower() == "none" else _expand(command, tokens),
        jump=jump,
    )


def _jump(spec: str, *, known_hosts: str | None, hops: int) -> Route | None:
    """Return the route to the last jump host; earlier ones are the jumps before it."""
    if spec.lower() == "none":
        return None
    *before, last = spec.split(",")
    # ssh -G has already refused what is not [user@]host[:port], and taken ssh:// away.
    user, _, rest = last.rpartition("@")
    match = _HOST_PORT.fullmatch(rest)
    bracketed, host, port = match.groups() if match else (None, rest, None)
    route = _resolve(
        bracketed or host,
        user=user or None,
        port=int(port) if port else None,
        identity_file=None,
        known_hosts=known_hosts,
        hops=hops + 1,
    )
    if not before:
        return route
    earlier = _jump(",".join(before), known_hosts=known_hosts, hops=hops + 1)
    return Route(**{**vars(route), "jump": earlier, "proxy_command": None})


def _ask_ssh(address: str, *, user: str | None, port: int | None) -> dict[str, list[str]]:
    """Return ``ssh -G``'s answer: every setting by its lower-case name."""
    config = os.environ.get("OPSCTL_SSH_CONFIG")
    if shutil.which("ssh") is None:
        if (Path.home() / ".ssh" / "config").exists() or config:
            raise UnfitError(
                "ssh_config cannot be read: there is no ssh on this machine",
                where=address,
                hint="install the OpenSSH client",
            )
        return {
            "hostname": [address],
            "user": [user or getpass.getuser()],
            "port": [str(port or 22)],
            "userknownhostsfile": ["~/.ssh/known_hosts"],
        }
    argv = ["ssh", "-G", *(["-F", config] if config else []), *(["-l", user] if user else [])]
    argv += [*(["-p", str(port)] if port else []), "--", address]
    try:
        asked = subprocess.run(argv, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnfitError(
            "ssh -G did not answer within 10 s",
            where=address,
            hint="a Match exec command in your ssh_config hangs",
        ) from error
    if asked.returncode != 0:
        raise UnfitError(
            f"ssh_config cannot be used for {address}",
            seen=asked.stderr.strip(),
            where=config or "~/.ssh/config",
            hint=f"try: {shlex.join(argv)}",
        )
    said: dict[str, list[str]] = {}
    for line in asked.stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    return said


def _known_hosts(said: dict[str, list[str]], ours: str | None, tokens: dict[str, str]) -> tuple[Path, ...]:
    if ours:
        return (Path(ours).expanduser(),)
    files: list[str] = []
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        files += [word for value in said.get(key, []) for word in value.split() if word != "none"]
    return tuple(Path(_expand(file, tokens)) for file in files)


def _paths(values: list[str], tokens: dict[str, str]) -> tuple[str, ...]:
    """Return those of the identity files of which a half is there: ssh lists its defaults too."""
    paths = [_expand(value, tokens) for value in values if value != "none"]
    return tuple(path for path in paths if Path(path).is_file() or Path(f"{path}.pub").is_file())


def _expand(text: str, tokens: dict[str, str]) -> str:
    """Replace a leading ~, ``${NAME}``-less tokens (%h, %p, %r, %n, %d, %%) as ssh does."""
    out: list[str] = []
    letters = iter(text)
    for letter in letters:
        if letter == "%":
            token = next(letters, "%")
            out.append(tokens.get(token, f"%{token}"))
        else:
            out.append(letter)
    expanded = "".join(out)
    return str(Path(expanded).expanduser()) if expanded.startswith("~") else expanded

"""Host keys: read as OpenSSH reads them, and an unknown or changed one is refused.

Fabric accepts any key by default, and paramiko's own reading of known_hosts skips patterns, revoked keys
and HostKeyAlias. So the decision is taken here, from the lines themselves.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import HostKeyRejected


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file."""

    marker: str
    names: str
    kind: str
    blob: bytes
    file: str
    line: int

    def is_for(self, name: str) -> bool:
        """Whether the line speaks of ``name`` (``host`` or ``[host]:port``)."""
        if self.names.startswith("|1|"):
            return _hashed_matches(self.names, name)
        patterns = self.names.lower().split(",")
        if any(p.startswith("!") and fnmatch.fnmatchcase(name, _escape(p[1:])) for p in patterns):
            return False
        return any(fnmatch.fnmatchcase(name, _escape(p)) for p in patterns)


def _escape(pattern: str) -> str:
    # known_hosts patterns know * and ?; a bracket is part of [host]:port there, not a set.
    return pattern.replace("[", "[[]")


def _hashed_matches(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        wanted = base64.b64decode(digest, validate=True)
        seen = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1).digest()
    except ValueError:
        return False
    return hmac.compare_digest(wanted, seen)


def fingerprint(blob: bytes) -> str:
    """Return SHA256:… as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_known_hosts(files: Iterable[Path]) -> Iterator[KnownKey]:
    """Yield every readable line of the files that are there. Lines that are no key are skipped, as ssh does."""
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#"):
                continue
            try:
                blob = base64.b64decode(words[2], validate=True)
            except ValueError:
                continue
            yield KnownKey(marker, words[0], words[1], blob, str(file), number)


class HostKeys:
    """What is known of one host, under each of the names it goes by."""

    def __init__(self, files: Iterable[Path], *, host: str, port: int, alias: str | None = None) -> None:
        self.files = tuple(files)
        self._host, self._port = host, port
        name = (alias or host).lower()
        # As ssh does: a port other than 22 is looked up with the port, then without.
        names = [name] if alias or port == 22 else [f"[{name}]:{port}", name]
        every = tuple(read_known_hosts(self.files))
        self._revoked = {key.blob for key in every if key.marker == "@revoked"}
        self._authority = any(
            key.marker == "@cert-authority" and any(key.is_for(name) for name in names) for key in every
        )
        self._keys: tuple[KnownKey, ...] = ()
        for name in names:
            self._keys = tuple(key for key in every if not key.marker and key.is_for(name))
            if self._keys:
                break

    @property
    def kinds(self) -> tuple[str, ...]:
        """Key types that are known of it: the server is asked for these first."""
        return tuple(dict.fromkeys(key.kind for key in self._keys))

    def check(self, kind: str, blob: bytes) -> None:
        """Raise HostKeyRejected unless exactly this key is known of the host and not revoked."""
        shown = f"{kind} {fingerprint(blob)}"
        where = f"{self._host}:{self._port}"
        files = ", ".join(map(str, self.files)) or "no file"
        if blob in self._revoked:
            raise HostKeyRejected(
                f"the host key of {where} is revoked",
                seen=shown,
                where=files,
                hint="do not connect; ask whoever revoked it",
            )
        if any(hmac.compare_digest(key.blob, blob) for key in self._keys):
            return
        if self._keys:
            raise HostKeyRejected(
                f"the host key of {where} is not the one that is known: someone may be in between",
                wanted="; ".join(f"{key.kind} {fingerprint(key.blob)} ({key.file}:{key.line})" for key in self._keys),
                seen=shown,
                where=where,
                hint=f"if the host was installed anew, remove the old key (ssh-keygen -R {self._spoken()}) and add the "
                "new one after comparing fingerprints on the host's console",
            )
        authority = " (a @cert-authority line is there, but host certificates are not supported)"
        raise HostKeyRejected(
            f"the host key of {where} is unknown" + (authority if self._authority else ""),
            seen=shown,
            where=files,
            hint=f"compare the fingerprint with ssh-keygen -lf on the host, then: "
            f"ssh-keyscan -p {self._port} -t {kind.removeprefix('ssh-')} {self._host} >> "
            f"{self.files[0] if self.files else '~/.ssh/known_hosts'}",
        )

    def _spoken(self) -> str:
        return self._host if self._port == 22 else f"'[{self._host}]:{self._port}'"

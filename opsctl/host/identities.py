"""The public halves of key files: which keys of an agent an IdentityFile means."""

from __future__ import annotations

import base64
import contextlib
from pathlib import Path

_OPENSSH = "-----BEGIN OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"


def is_public(file: str) -> bool:
    """Whether a file holds the public half alone: its private half is then an agent's."""
    return _public_line(file) is not None


def public_half(file: str) -> bytes | None:
    """Return the public key of an IdentityFile: its own, that of the .pub beside it, or an OpenSSH key's clear part."""
    return _public_line(file) or _public_line(f"{file}.pub") or _of_private(file)


def _public_line(file: str) -> bytes | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        kind, text = Path(file).read_text(errors="replace").split()[:2]
        blob = base64.b64decode(text, validate=True)
        return blob if _string(blob)[0] == kind.encode() else None
    return None


def _of_private(file: str) -> bytes | None:
    """Return the public half of a private key in OpenSSH's own format, which an encrypted one shows too."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(file).read_text(errors="replace").strip()
        if not text.startswith(_OPENSSH):
            return None
        data = base64.b64decode("".join(text.splitlines()[1:-1])).removeprefix(_MAGIC)
        for _ in ("cipher", "key derivation", "its options"):
            _, data = _string(data)
        return _string(data[4:])[0] or None  # after the number of keys
    return None


def _string(data: bytes) -> tuple[bytes, bytes]:
    """Return a length-prefixed string and what follows it. Raises ValueError where it is cut."""
    end = 4 + int.from_bytes(data[:4], "big")
    if len(data) < end:
        raise ValueError("a key that is cut")
    return data[4:end], data[end:]

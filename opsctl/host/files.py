"""Files across a link, completely or not at all, each with its size and sha256 as seen on both sides.

They cross as the input or output of a small program on the host: the same way with and without sudo, over SSH
and on this machine. (SFTP has no sudo, and needs a subsystem that hardened hosts switch off.)
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, HostError
from opsctl.host.link import Ended
from opsctl.host.protocol import FileRecord

_CHUNK = 1 << 18

# $1 path, $2 mode, $3 sha256. A link that breaks ends the input early: the sum then differs and nothing is renamed.
_WRITE = """
set -eu; trap '' PIPE; trap 'exit 1' HUP INT TERM
folder=$(dirname -- "$1"); mkdir -p -- "$folder"
new=$(mktemp -- "$folder/.opsctl.XXXXXXXX"); trap 'rm -f -- "$new"' EXIT
cat >"$new"
seen=$(sha256sum <"$new"); seen=${seen%% *}
if [ "$seen" != "$3" ]; then echo "what arrived has sha256 $seen, wanted $3" >&2; exit 1; fi
chmod -- "$2" "$new"; sync -- "$new"; mv -fT -- "$new" "$1"; trap - EXIT; sync -- "$folder"
"""

# $1 path, $2 first byte counted from 1, $3 how many.
_READ = """
exec <"$1" || exit 1
if [ -d "$1" ]; then echo "$1 is a directory" >&2; exit 1; fi
tail -c "+$2" | head -c "$3"
"""

# $1 path. The sum goes to stderr, after the bytes: a file that changed meanwhile shows.
_GET = 'set -eu; cat <"$1"; sha256sum <"$1" >&2'


class Execute(Protocol):
    """``ConnectedHost.execute``: a program run with the host's privileges, streams as callables."""

    def __call__(
        self,
        argv: tuple[str, ...],
        *,
        deadline: Deadline,
        stdin: Iterable[bytes] = (),
        stdout: Callable[[bytes], object],
    ) -> Ended:
        """Run it to its end."""
        ...


def read_file(execute: Execute, path: str, *, where: str, deadline: Deadline, offset: int, limit: int) -> bytes:
    """Return at most ``limit`` bytes from ``offset``. Raises CommandFailed when the file cannot be read."""
    pieces: list[bytes] = []
    ended = execute(_sh(_READ, path, str(offset + 1), str(limit)), deadline=deadline, stdout=pieces.append)
    _judge(ended, f"{path} on {where} could not be read", path)
    return b"".join(pieces)


def write_file(execute: Execute, path: str, data: bytes, *, where: str, deadline: Deadline, mode: int) -> None:
    """Write ``data`` to a temporary file beside ``path``, sync it, rename it, sync the folder."""
    digest = hashlib.sha256(data).hexdigest()
    pieces = (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
    _write(execute, path, pieces, digest, where=where, deadline=deadline, mode=mode)


def put(execute: Execute, local: Path, remote: str, *, where: str, deadline: Deadline, mode: int) -> FileRecord:
    """Copy a file of this machine to the host; the sum is checked there before the file gets its name."""
    digest, size = hashlib.sha256(), 0
    for piece in _pieces(local):
        digest.update(piece)
        size += len(piece)
    _write(execute, remote, _pieces(local), digest.hexdigest(), where=where, deadline=deadline, mode=mode)
    return FileRecord(remote, size, digest.hexdigest())


def get(execute: Execute, remote: str, local: Path, *, where: str, deadline: Deadline) -> FileRecord:
    """Copy a file of the host here; it gets its name only when size and sum agree.

    Raises CommandFailed when it is not there, HostError when it changed while it was copied.
    """
    digest, size = hashlib.sha256(), 0
    local.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".opsctl.", dir=local.parent)
    try:
        with os.fdopen(handle, "wb") as out:

            def take(piece: bytes) -> None:
                nonlocal size
                out.write(piece)
                digest.update(piece)
                size += len(piece)

            ended = execute(_sh(_GET, remote), deadline=deadline, stdout=take)
            _judge(ended, f"{remote} on {where} could not be read", remote)
            out.flush()
            os.fsync(out.fileno())
        there = ended.stderr.decode(errors="replace").split()
        if digest.hexdigest() not in there:
            raise HostError(  # noqa: TRY301 - the clean-up below is for every way out
                f"{remote} on {where} changed while it was copied",
                wanted=f"sha256 {there[0] if there else 'unknown'}",
                seen=f"sha256 {digest.hexdigest()}, {size} bytes",
                where=f"{where}:{remote}",
                hint="wait until nothing writes the file any more",
            )
        Path(name).chmod(0o644)
        Path(name).replace(local)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return FileRecord(str(local), size, digest.hexdigest())


def _write(
    execute: Execute,
    path: str,
    pieces: Iterable[bytes],
    digest: str,
    *,
    where: str,
    deadline: Deadline,
    mode: int,
) -> None:
    ended = execute(_sh(_WRITE, path, f"{mode:o}", digest), deadline=deadline, stdin=pieces, stdout=lambda _: None)
    _judge(ended, f"{path} on {where} could not be written", path)


def _pieces(local: Path) -> Iterator[bytes]:
    with local.open("rb") as file:
        while piece := file.read(_CHUNK):
            yield piece


def _sh(script: str, *arguments: str) -> tuple[str, ...]:
    return ("sh", "-c", script, "sh", *arguments)


def _judge(ended: Ended, message: str, path: str) -> None:
    if ended.exit_status != 0:
        stderr = ended.stderr.decode(errors="replace").strip()
        raise CommandFailed(
            message,
            exit_status=ended.exit_status,
            stderr=stderr,
            seen=stderr or f"exit status {ended.exit_status}",
            where=path,
        )

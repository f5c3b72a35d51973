"""Fetching what a step left on its host, each file verified by its size and hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from opsctl.campaign import limits
from opsctl.deadline import Deadline
from opsctl.errors import JournalError
from opsctl.host.protocol import FileRecord, Host
from opsctl.redaction import BLANK, redact
from opsctl.results import Artifact, stays_below

_GZIP = b"\x1f\x8b"
_ALWAYS = ("results.jsonl", "stdout.log", "stderr.log")


@dataclass(frozen=True)
class Collected:
    """What was fetched of a step, and in words what was left on the host because of its size."""

    artifacts: tuple[Artifact, ...] = ()
    left: tuple[str, ...] = ()


def collect_folder(host: Host, folder: str, into: Path, globs: Sequence[str]) -> Collected:
    """Fetch results.jsonl, the logs and whatever matches ``globs`` below a step's folder on the host, secrets blanked.

    ``into`` is the step's folder below the run's folder on the controller; artifacts are named relative to the
    latter. A stage that filled its output must not fill this machine too: what is larger than ``limits`` allows
    stays where it is. Raises HostError, and JournalError where this machine cannot store a file.
    """
    listing = host.run(
        ["find", folder, "-type", "f", "-printf", r"%s %P\0"],
        deadline=Deadline(limits.CALL, f"list of {folder} on {host.name}"),
        check=False,
    )
    artifacts, left = [], []
    for size, name in _listed(listing.stdout.decode(errors="replace")):
        if not _stays_below(name, into):
            left.append(f"{name[:200]!r} in {folder}: a name that leads out of the run's folder is not fetched")
            continue
        if not any(fnmatch(name, pattern) for pattern in (*_ALWAYS, *globs)):
            continue
        most = limits.FETCHED_LOG_MOST if _kind(name) == "log" else limits.FETCHED_MOST
        if size > most:
            left.append(f"{folder}/{name}: {size / 1e6:.0f} MB, more than the {most / 1e6:.0f} MB that are fetched")
            continue
        deadline = Deadline(
            limits.TRANSFER + size / limits.TRANSFER_RATE, f"fetch of {name} ({size} bytes) from {host.name}"
        )
        record = _fetched(host, f"{folder}/{name}", into / name, deadline)
        if not _kind(name).startswith("trace"):
            record = _redacted(record, into / name)
        artifacts.append(Artifact(path=f"{into.name}/{name}", size=record.size, sha256=record.sha256, kind=_kind(name)))
    return Collected(tuple(artifacts), tuple(left))


def _listed(listing: str) -> list[tuple[int, str]]:
    """Return (bytes, relative path) of each file that ``find`` printed, by path."""
    pairs = [line.partition(" ") for line in filter(None, listing.split("\0"))]
    return sorted(((int(size), name) for size, _, name in pairs), key=lambda pair: pair[1])


def _stays_below(name: str, into: Path) -> bool:
    """Return whether a name that a host sent is one of a file below the folder, links followed."""
    return stays_below(name) and (into / name).parent.resolve().is_relative_to(into.resolve())


def _fetched(host: Host, remote: str, local: Path, deadline: Deadline) -> FileRecord:
    try:
        return host.get(remote, local, deadline=deadline)
    except OSError as error:
        raise JournalError(
            f"{Path(remote).name} of {host.name} could not be stored on this machine",
            seen=str(error),
            where=str(local),
            hint="free space on this machine's disk; then opsctl collect RUN fetches it",
        ) from error


def _redacted(record: FileRecord, local: Path) -> FileRecord:
    """Blank what looks like a secret in a text file; return its record, anew where anything was blanked."""
    data = local.read_bytes()
    if b"\0" in data[:8192] or data[:2] == _GZIP:
        return record
    text = data.decode("utf-8", "surrogateescape")
    pieces = [text] if local.suffix == ".json" else text.splitlines(keepends=True)
    clean = "".join(map(_blanked, pieces)).encode("utf-8", "surrogateescape")
    if clean == data:
        return record
    local.write_bytes(clean)
    return FileRecord(record.path, len(clean), hashlib.sha256(clean).hexdigest())


def _blanked(piece: str) -> str:
    """Return a piece of text without secrets; one that held none stays as it is, a JSON document's spaces too."""
    clean = redact(piece)
    if clean == piece or BLANK not in clean:
        return piece
    try:
        return piece if json.loads(piece) == json.loads(clean) else clean
    except ValueError:
        return clean


def _kind(name: str) -> str:
    if name.endswith((".pt.trace.json", ".pt.trace.json.gz")):
        return "trace"
    if fnmatch(Path(name).name, "trace-*.json"):
        return "trace-analysis"
    return "log" if name.endswith(".log") else "results" if name == "results.jsonl" else "file"

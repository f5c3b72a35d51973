"""The results file: JSON Lines, each record on the disk before the next one is measured."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from opsctl.payload.records import (
    AnyRecord,
    ArtifactRecord,
    CellRecord,
    EndRecord,
    EnvironmentRecord,
    EvidenceRecord,
    Figure,
    ProgressRecord,
)


def utc_now() -> str:
    """Return the time as ISO 8601 with a zone."""
    # datetime.UTC came with Python 3.11; a serving environment may have 3.9.
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the complete records of a results file; a last line that was cut short is left out."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    records = []
    for line in lines[:-1]:
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


class Output:
    """Append-only writer. Cells that an earlier run of the same file verified stand in ``verified``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.parent
        self.verified = self._take_up()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._last_progress = 0.0

    def __enter__(self) -> Output:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def _take_up(self) -> frozenset[str]:
        records = read_records(self.path)
        if self.path.exists():
            data = self.path.read_bytes()
            whole = data.rfind(b"\n") + 1
            if whole != len(data):
                # Killed in the middle of a line: what follows must start on a line of its own.
                os.truncate(self.path, whole)
        last = {record["id"]: record["state"] for record in records if record.get("record") == "cell"}
        return frozenset(name for name, state in last.items() if state == "verified")

    def write(self, record: AnyRecord) -> None:
        """Append one record and sync it. Raises ValueError for NaN or infinity: neither is a measurement."""
        line = (
            json.dumps({"record": record.KIND, **record.to_dict()}, allow_nan=False, separators=(",", ":"), default=str)
            + "\n"
        )
        os.write(self._file, line.encode())
        os.fsync(self._file)

    def environment(self, environment: Mapping[str, Any]) -> None:
        """Record the machine; later records of this kind add to earlier ones, key by key."""
        self.write(EnvironmentRecord(dict(environment)))

    def cell(
        self,
        name: str,
        state: str,
        *,
        reason: str = "",
        figures: Sequence[Figure] = (),
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what became of a cell. The last record of a cell counts."""
        self.write(CellRecord(name, state, reason, tuple(figures), dict(detail or {})))

    def evidence(self, asked: str, observed: str) -> None:
        """Record an observation that a verdict rests on."""
        self.write(EvidenceRecord(asked, observed, utc_now()))

    def progress(self, text: str, done: float, of: float, *, every: float = 0.0) -> None:
        """Record how far it is, at most once in ``every`` seconds."""
        now = time.monotonic()
        if every and now - self._last_progress < every:
            return
        self._last_progress = now
        self.write(ProgressRecord(text, done, of))

    def artifact(self, path: Path, kind: str) -> ArtifactRecord:
        """Record a file of the step's folder with its size and sha256, and return the record."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        record = ArtifactRecord(str(path.relative_to(self.folder)), path.stat().st_size, digest.hexdigest(), kind)
        self.write(record)
        return record

    def end(self, state: str, reason: str = "") -> None:
        """Write the last line: without it the payload died."""
        self.write(EndRecord(state, reason, utc_now()))

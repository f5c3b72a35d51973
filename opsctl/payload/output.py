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


def utc_now() -> str:
    """Return the time as ISO 8601 with a zone."""
    # datetime.UTC came with Python 3.11; a serving environment may have 3.9.
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the whole records of a results file; a last line that was cut short is left out."""
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

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record and sync it. Raises ValueError for NaN or infinity: neither is a measurement."""
        line = json.dumps(record, allow_nan=False, separators=(",", ":"), default=str) + "\n"
        os.write(self._file, line.encode())
        os.fsync(self._file)

    def environment(self, environment: Mapping[str, Any]) -> None:
        """Record the machine; later records of this kind add to earlier ones, key by key."""
        self.write({"record": "environment", "environment": environment})

    def cell(
        self,
        name: str,
        state: str,
        *,
        reason: str = "",
        figures: Sequence[Mapping[str, Any]] = (),
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Record what became of a cell. The last record of a cell counts."""
        self.write(
            {
                "record": "cell",
                "id": name,
                "state": state,
                "reason": reason,
                "figures": list(figures),
                "detail": dict(detail or {}),
            }
        )

    def evidence(self, asked: str, observed: str) -> None:
        """Record an observation that a verdict rests on."""
        self.write({"record": "evidence", "asked": asked, "observed": observed, "time": utc_now()})

    def progress(self, text: str, done: float, of: float, *, every: float = 0.0) -> None:
        """Record how far it is, at most once in ``every`` seconds."""
        now = time.monotonic()
        if every and now - self._last_progress < every:
            return
        self._last_progress = now
        self.write({"record": "progress", "text": text, "done": done, "of": of})

    def artifact(self, path: Path, kind: str) -> dict[str, Any]:
        """Record a file of the step's folder with its size and sha256, and return the record."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        record = {
            "record": "artifact",
            "path": str(path.relative_to(self.folder)),
            "size": path.stat().st_size,
            "sha256": digest.hexdigest(),
            "kind": kind,
        }
        self.write(record)
        return record

    def end(self, state: str, reason: str = "") -> None:
        """Write the last line: without it the payload died."""
        self.write({"record": "end", "state": state, "reason": reason, "time": utc_now()})

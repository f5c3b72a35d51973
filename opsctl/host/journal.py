"""The journal of one unit since a cursor: what journalctl prints as JSON, and what its oddities mean."""

from __future__ import annotations

import json

from opsctl.errors import HostError
from opsctl.host.protocol import JournalBatch, JournalLine


def cursor_argv(*, user: bool) -> tuple[str, ...]:
    """Return what prints the newest entry that may be read, of any unit: its cursor is "now"."""
    return ("journalctl", *(["--user"] if user else []), "-q", "--no-pager", "-n", "1", "-o", "json")


def batch_argv(unit: str, after: str, limit: int, *, user: bool) -> tuple[str, ...]:
    """Return what prints the first ``limit`` entries of a unit after a cursor, oldest first.

    journalctl itself can only count from the newest, so ``head`` cuts. ``--all``: else a field longer than
    4 KiB is null.
    """
    selection = ["--user-unit" if user else "--unit", unit]
    since = ["--after-cursor", after] if after else []
    shape = ["-q", "--no-pager", "-o", "json", "--all", "--output-fields=MESSAGE,_PID"]
    script = 'limit=$1; shift; journalctl "$@" | head -n "$limit"'
    return ("sh", "-c", script, "sh", str(limit), *shape, *selection, *since)


def parse_batch(output: bytes, *, after: str) -> JournalBatch:
    """Return the entries, and the cursor of the last one (``after`` itself where there are none)."""
    lines: list[JournalLine] = []
    cursor = after
    for raw in output.splitlines():
        if not raw.strip():
            continue
        entry = _entry(raw)
        cursor = str(entry["__CURSOR"])
        pid = entry.get("_PID")
        lines.append(
            JournalLine(
                time=int(str(entry["__REALTIME_TIMESTAMP"])) / 1e6,
                message=message_text(entry.get("MESSAGE")),
                pid=int(pid) if isinstance(pid, str) and pid.isdigit() else 0,
            ),
        )
    return JournalBatch(tuple(lines), cursor)


def message_text(value: object) -> str:
    """Return MESSAGE as text: a string, a list of bytes (where it holds control characters), or several of either.

    Carriage returns stay: a progress bar is many updates in one entry.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return bytes(value).decode(errors="replace")
        return "\n".join(message_text(item) for item in value)
    return ""


def _entry(raw: bytes) -> dict[str, object]:
    try:
        entry = json.loads(raw)
        if isinstance(entry, dict) and "__CURSOR" in entry and "__REALTIME_TIMESTAMP" in entry:
            return entry
    except ValueError:
        pass
    raise HostError("journalctl printed something that is no journal entry", seen=raw[:200].decode(errors="replace"))

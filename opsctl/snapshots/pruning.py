"""Freeing the space of old runs: traces and logs go; the figures, the analyses and the reports stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol, TypeVar

KEPT = ("report.md", "report.html", "trace-*.json")
"""Small, and what a report is written from again."""


class Summary(Protocol):
    """What is needed of a run to choose."""

    @property
    def run(self) -> str:
        """Its id."""
        ...

    @property
    def ended(self) -> str | None:
        """When it ended."""
        ...

    @property
    def outcome(self) -> str:
        """How it ended."""
        ...


_Run = TypeVar("_Run", bound=Summary)


@dataclass(frozen=True)
class Freed:
    """What was, or would be, taken away of one run."""

    run: str
    files: int
    size: int


def prunable(runs: Sequence[_Run], *, keep: int, before: datetime | None = None) -> list[_Run]:
    """Return the runs whose artifacts may go: all but the newest ``keep``, that ended before a moment.

    ``runs`` is in the order of `opsctl runs`, the newest first. A run that did not end, or after which production
    was not verified, is never among them: someone will want to look.
    """
    chosen = []
    for summary in runs[keep:]:
        if summary.ended is None or summary.outcome in {
            "running",
            "controller died",
            "left",
            "production not verified",
        }:
            continue
        if before is None or datetime.fromisoformat(summary.ended) < before:
            chosen.append(summary)
    return chosen


def prune(run: str, folder: Path, *, really: bool = True) -> Freed:
    """Remove a run's artifacts below its folder, or only say what would go. Links are removed, not followed."""
    files = size = 0
    if not folder.is_dir():
        return Freed(run, 0, 0)
    paths = sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            if really and not any(path.iterdir()):
                path.rmdir()
            continue
        if any(fnmatch(path.name, pattern) for pattern in KEPT):
            continue
        files += 1
        size += path.lstat().st_size
        if really:
            path.unlink()
    return Freed(run, files, size)

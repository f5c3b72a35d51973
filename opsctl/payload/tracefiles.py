"""Finding the trace files that a profiler wrote, and waiting until they are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.trace.names import ENDING, is_front_end


@dataclass(frozen=True)
class Seen:
    """One file as the folder shows it."""

    path: Path
    size: int
    modified: int


def snapshot(folder: Path) -> dict[str, Seen]:
    """Return the files below a folder by relative path; empty where it does not exist yet."""
    found: dict[str, Seen] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            with contextlib.suppress(OSError):
                status = path.stat()
                found[str(path.relative_to(folder))] = Seen(path, status.st_size, status.st_mtime_ns)
    return found


def changed(before: Mapping[str, Seen], now: Mapping[str, Seen]) -> list[Seen]:
    """Return the files that are new or were written since."""
    return [
        seen
        for name, seen in sorted(now.items())
        if name not in before or (seen.size, seen.modified) != (before[name].size, before[name].modified)
    ]


def rank_files(files: Sequence[Seen]) -> list[Seen]:
    """Return the traces of ranks: the front end's own trace and text summaries are none."""
    names = ((seen, seen.path.name) for seen in files)
    return [seen for seen, name in names if ENDING.search(name) and not is_front_end(name)]


def total(files: Sequence[Seen]) -> int:
    """Return bytes."""
    return sum(seen.size for seen in files)


def bring(source: Path, target: Path) -> None:
    """Move a file into the step's folder: renamed where it can be, else copied and, where allowed, removed.

    Raises OSError when it cannot be read or there is no room.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:
        # Another file system, or a folder of the server's own user: copy, and leave what may not be removed.
        part = target.with_name(f"{target.name}.part")
        shutil.copyfile(source, part)
        part.rename(target)
        with contextlib.suppress(OSError):
            source.unlink()

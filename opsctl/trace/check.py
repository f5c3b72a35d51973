"""Whether a trace file is what a profiling session should have left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.trace.reading import read_file


@dataclass(frozen=True)
class FileCheck:
    """What a file proved to be. ``whole``: it was read to its end, and nothing of it was cut, broken or unreadable."""

    path: Path
    whole: bool
    rank: int | None
    world_size: int | None
    front_end: bool
    events: int
    device_events: int
    problems: tuple[str, ...]


def verify_file(path: Path) -> FileCheck:
    """Read a file to its end and say what it is. A file that cannot be opened is a problem, not an exception."""
    try:
        file = read_file(path)
    except OSError as error:
        problem = f"the file cannot be read: {error.strerror or error}"
        return FileCheck(path, False, None, None, False, 0, 0, (problem,))
    return FileCheck(
        path=path,
        whole=file.whole,
        rank=file.rank,
        world_size=file.metadata.world_size,
        front_end=file.front_end,
        events=file.columns.events,
        device_events=len(file.columns.device),
        problems=tuple(file.problems),
    )

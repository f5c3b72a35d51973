"""Which files a person means, and the files of a folder that are traces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from opsctl.errors import TraceError

_ENDINGS = (".json", ".json.gz")
_SURE = ("trace.json", "trace.json.gz")


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the trace files that ``paths`` (files, folders) name, each once, sorted by name.

    Of a folder, the files that end in ``trace.json[.gz]``, or else in ``.json[.gz]``; or else those of its
    subfolders. Raises TraceError where a path does not exist or nothing is found.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(_in_folder(path)))
        elif path.exists():
            found[path] = None
        else:
            raise TraceError(f"there is no {path}", hint="name a trace file, or a folder of .pt.trace.json.gz files")
    if not found:
        raise TraceError(
            "no trace files",
            wanted="files that end in .pt.trace.json.gz, .json.gz or .json",
            where=", ".join(map(str, paths)),
            hint="a server writes them when /stop_profile returns; check torch_profiler_dir",
        )
    return sorted(found, key=lambda path: (path.name, str(path)))


def _in_folder(folder: Path) -> Iterable[Path]:
    for candidates in (sorted(folder.iterdir()), sorted(folder.rglob("*"))):
        files = [path for path in candidates if path.name.endswith(_ENDINGS) and path.is_file()]
        sure = [path for path in files if path.name.endswith(_SURE)]
        if sure or files:
            return sure or files
    return []

"""The traces of a folder, sorted into windows of jobs, a file a rank; what is left out, and why.

A window is one recording of one job: files of one folder whose names differ in coordinates (rank, TP, PP, DP, EP) and
in the profiler's stamp alone, each coordinate once. Of several windows none is chosen silently.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List

from opsctl.errors import TraceError
from opsctl.trace.document import LeftOut
from opsctl.trace.names import coordinates, is_front_end, job, session, stamp

_ENDINGS = (".json", ".json.gz")
_SURE = ("trace.json", "trace.json.gz")
_PEEKED = 1 << 20
_SHOWN = 8


@dataclass(frozen=True)
class Window:
    """One recording: its label (what ``only`` chooses it by) and its files, a rank each."""

    label: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Chosen:
    """The files to analyse, sorted by name, and what was left out."""

    files: tuple[Path, ...]
    left_out: tuple[LeftOut, ...] = ()


def trace_files(paths: Sequence[Path], only: str | None = None) -> Chosen:
    """Return the files that ``paths`` name: files as they are, of folders (and folders in them) the one window.

    ``only`` is the label of the window to take. Raises TraceError where a path does not exist, nothing is found, no
    window or several have the label, or where there are several windows and ``only`` is not given: with the choice.
    """
    named: list[Path] = []
    found: list[Path] = []
    left_out: list[LeftOut] = []
    for path in paths:
        if path.is_dir():
            for file in sorted(file for file in path.rglob("*") if file.name.endswith(_ENDINGS) and file.is_file()):
                reason = "" if file.name.endswith(_SURE) else _no_trace(file)
                left_out += [LeftOut(_below(file, path), reason)] if reason else []
                found += [] if reason else [file]
        elif path.exists():
            named.append(path)
        else:
            raise TraceError(f"there is no {path}", hint="name a trace file, or a folder of .pt.trace.json.gz files")
    where = ", ".join(map(str, paths))
    windows = sort_windows(found, paths[0])
    if not named and not windows:
        raise TraceError(
            "no trace files",
            wanted="files that end in .pt.trace.json.gz, .json.gz or .json",
            seen="; ".join(f"{left.file}: {left.reason}" for left in left_out[:_SHOWN]) or None,
            where=where,
            hint="a server writes them when /stop_profile returns; check torch_profiler_dir",
        )
    chosen = _choose(windows, only, where) if windows else None
    left_out += [
        LeftOut(_below(file, paths[0]), f"of another window: {window.label}")
        for window in windows
        if window is not chosen
        for file in window.files
    ]
    files = {*named, *(chosen.files if chosen else ())}
    return Chosen(tuple(sorted(files, key=lambda path: (path.name, str(path)))), tuple(left_out))


def sort_windows(files: Iterable[Path], root: Path) -> list[Window]:
    """Return the windows of trace files: by folder, job, SGLang's id, and where ranks repeat by time."""
    groups: Dict[tuple[str, str], List[Path]] = defaultdict(list)
    for file in files:
        folder = _below(file.parent, root)
        groups[folder, "" if is_front_end(file.name) else job(file.name)].append(file)
    for (folder, name), front in list(groups.items()):
        jobs = [own for own in groups if own[0] == folder and own[1]]
        if not name and len(jobs) == 1:
            groups[jobs[0]] += front
            del groups[folder, name]
    windows = []
    for (folder, name), own in sorted(groups.items()):
        rounds = _rounds(own)
        for number, members in enumerate(rounds, 1):
            several = f"window {number}" if len(rounds) > 1 else ""
            only_job = name if sum(1 for key in groups if key[0] == folder) > 1 else ""
            label = "/".join(filter(None, (folder.strip("."), only_job, several))) or name
            windows.append(Window(label, tuple(members)))
    return windows


def _rounds(files: Sequence[Path]) -> list[list[Path]]:
    """Return the files of one job as recordings: those of one session or stamp, else each rank's first, second, …"""
    places: Dict[object, List[Path]] = defaultdict(list)
    for file in sorted(files, key=lambda file: (stamp(file.name).zfill(20), file.name)):
        # A name without coordinates may be any rank: the file itself tells.
        places["front end" if is_front_end(file.name) else coordinates(file.name) or file].append(file)
    count = max(map(len, places.values()))
    for told in (session, stamp):
        found: Dict[str, List[Path]] = defaultdict(list)
        for file in files:
            found[told(file.name)].append(file)
        apart = all(len({coordinates(file.name) for file in own}) == len(own) for own in found.values())
        if count > 1 and apart and 1 < len(found) < len(files):
            return [found[key] for key in sorted(found, key=lambda key: key.zfill(20))]
    return [[own[number] for own in places.values() if number < len(own)] for number in range(count)]


def _choose(windows: Sequence[Window], only: str | None, where: str) -> Window:
    fitting = [window for window in windows if only is None or window.label == only]
    fitting = fitting or [window for window in windows if only and only in window.label]
    if len(fitting) == 1:
        return fitting[0]
    listed = [f"{window.label!r} ({len(window.files)} files)" for window in fitting or windows]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    raise TraceError(
        f"{len(fitting)} windows fit {only!r}" if only is not None else f"{len(windows)} windows or jobs, wanted one",
        seen=", ".join(listed[:_SHOWN]) + more,
        where=where,
        hint=f"--only {fitting[0].label!r} takes one of them" if fitting else "--only takes one of these labels",
    )


def _no_trace(file: Path) -> str:
    """Return why a file whose name does not say so is no trace; "" where it is one."""
    try:
        with file.open("rb") as opened:
            head = opened.read(_PEEKED)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, _PEEKED)
        except zlib.error:
            return ""  # damaged: the reader says how
    if not head:
        return "empty"
    bare = head.lstrip()[:1] == b"[" and b'"ph"' in head
    return "" if b'"traceEvents"' in head or bare else 'no trace: there is no "traceEvents" in it'


def _below(path: Path, root: Path) -> str:
    try:
        return str(path.relative_to(root))
    except ValueError:
        return path.name

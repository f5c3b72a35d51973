"""command: any program, with a limit, its files collected and figures taken from the JSON that it wrote.

A figure's unit may stand at its name's end in brackets: ``latency [ms]``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.payload import records
from opsctl.payload.errors import CellFailed, PayloadError
from opsctl.payload.output import Output
from opsctl.payload.statistics import figure


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is run. ``limit`` is in seconds; ``figures`` are FILE#path by name."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    collect: tuple[str, ...] = ()
    figures: dict[str, str] = field(default_factory=dict)
    limit: float = 600.0


_POLL = 0.2
_TERM_GRACE = 5.0
_TAIL = 2000
_NAMED_UNIT = re.compile(r"(?P<name>.*?)\s*\[(?P<unit>[^\]]+)\]")


def take(document: Any, path: str) -> float:
    """Return the number at ``a.b.0.c`` in parsed JSON. Raises PayloadError with the step where it was lost."""
    here = document
    walked: list[str] = []
    for part in path.split("."):
        walked.append(part)
        try:
            here = here[int(part)] if isinstance(here, list) else here[part]
        except (KeyError, IndexError, ValueError, TypeError):
            known = f"; there is {', '.join(list(here)[:8])}" if isinstance(here, dict) else ""
            msg = f"no {'.'.join(walked)}{known}"
            raise PayloadError(msg) from None
    if isinstance(here, bool) or not isinstance(here, (int, float)):
        msg = f"{path} is {type(here).__name__}, no number"
        raise PayloadError(msg)
    return float(here)


def _inside(folder: Path, pattern: str) -> list[Path]:
    """Return the files that a glob names, none of them outside the step's folder."""
    try:
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        msg = f"collect: {pattern!r} is no glob below the step's folder: {error}"
        raise PayloadError(msg) from error
    return [path for path in found if path.resolve().is_relative_to(folder.resolve())]


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read().decode(errors="replace").strip()
    return ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and all that it started in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_GRACE)
            return


def _run(spec: Spec, output: Output) -> tuple[int, float]:
    """Run the program to its end. Returns (status, seconds). Raises CellFailed at its limit."""
    argv = list(spec.argv)
    path = shutil.which(argv[0])
    if path is None:
        msg = f"{argv[0]} is not on this host's PATH"
        raise CellFailed(msg)
    limit = spec.limit
    folder = output.folder
    began = time.monotonic()
    with (folder / "command.stdout").open("wb") as stdout, (folder / "command.stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [path, *argv[1:]],
            cwd=folder,
            env={**os.environ, **spec.env},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                spent = time.monotonic() - began
                if spent > limit:
                    msg = f"{argv[0]} did not end within {limit:g} s"
                    raise CellFailed(msg)
                output.progress(f"{argv[0]} runs", spent, limit, every=5.0)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(_POLL, max(0.01, limit - spent)))
        finally:
            if process.poll() is None:
                _end(process)
    return process.returncode, time.monotonic() - began


def _figures(spec: Spec, folder: Path) -> list[records.Figure]:
    made = []
    for named, source in spec.figures.items():
        match = _NAMED_UNIT.fullmatch(named)
        name, unit = (match["name"], match["unit"]) if match else (named, "count")
        file, _, path = source.partition("#")
        try:
            document = json.loads((folder / file).read_bytes())
            value = take(document, path)
        except OSError as error:
            msg = f"the figure {name}: {file} cannot be read: {error.strerror}"
            raise CellFailed(msg) from error
        except ValueError as error:
            msg = f"the figure {name}: {file} is not JSON: {error}"
            raise CellFailed(msg) from error
        except PayloadError as error:
            msg = f"the figure {name}: {file}: {error}"
            raise CellFailed(msg) from error
        made.append(figure(name, value, unit, formula=f"as the program wrote it: {source}"))
    return made


def run(spec: Spec, output: Output) -> tuple[str, str]:
    """Run the program and record its one cell."""
    if "command" in output.verified:
        return "verified", "it had run already"
    output.cell("command", "running")
    try:
        status, seconds = _run(spec, output)
        if status != 0:
            said = _tail(output.folder / "command.stderr") or _tail(output.folder / "command.stdout")
            msg = f"{spec.argv[0]} ended with status {status}{f': {said[-300:]}' if said else ''}"
            raise CellFailed(msg)
        made = [
            figure("command.time", seconds, "s", formula="wall time of the program"),
            *_figures(spec, output.folder),
        ]
    except PayloadError as error:
        output.cell("command", "failed", reason=str(error))
        state, reason = "failed", str(error)
    else:
        output.cell("command", "verified", figures=made, detail={"status": status})
        output.evidence(f"exit status of {spec.argv[0]}", str(status))
        state, reason = "verified", "the program ended with status 0"
    for pattern in ("command.stdout", "command.stderr", *spec.collect):
        for path in _inside(output.folder, pattern):
            output.artifact(path, "command")
    return state, reason

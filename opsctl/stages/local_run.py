"""Carrying a stage out on this very machine, without systemd: for ``opsctl bench`` and for people's own scripts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.engines import DEFAULT
from opsctl.errors import StageError, UnfitError
from opsctl.payload import build_zipapp
from opsctl.results import StepResult
from opsctl.stages import STAGES
from opsctl.stages.base import Served, StageContext

_POLL = 0.2
_GRACE = 30.0

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class LocalHost:
    """The machine on which opsctl runs."""

    gpus: int | None = None


@dataclass(frozen=True)
class LocalServer:
    """A model server that is no service of an inventory."""

    url: str
    model: str
    api_key_file: str | None = None
    ca_file: str | None = None
    verify: bool = True
    engine: str = DEFAULT
    tensor_parallel: int | None = None
    profiler: str | None = None
    exec_prefix: tuple[str, ...] = ()


def find_server(url: str, model: str | None, api_key_file: str | None) -> LocalServer:
    """Return the server at an address; without ``model`` the first that it lists. Raises UnfitError."""
    if model is None:
        from opsctl.payload.errors import PayloadError  # noqa: PLC0415 - httpx, where a server is asked only
        from opsctl.payload.server import Server  # noqa: PLC0415

        try:
            with Server(url, api_key_file=api_key_file) as server:
                models = server.models()
        except PayloadError as error:
            raise UnfitError(str(error), hint="name the server with --url, and its key with --api-key-file") from error
        if not models:
            raise UnfitError(f"{url} serves no model")
        model = models[0]
    return LocalServer(url, model, api_key_file)


def local_context(
    folder: Path, *, server: Served | None = None, model_config: Mapping[str, Any] | None = None
) -> StageContext:
    """Return the context of a stage that runs here."""
    return StageContext(
        run="local",
        step="bench",
        host_name="this machine",
        host=LocalHost(),
        folder=str(folder),
        service_name=None if server is None else "server",
        service=server,
        model_config=model_config,
    )


def read_model_config(path: Path) -> dict[str, Any]:
    """Return a config.json, or that of a model's folder. Raises StageError."""
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise StageError(f"{file} cannot be read", seen=error.strerror) from error
    except ValueError as error:
        raise StageError(f"{file} is not JSON", seen=str(error)) from error
    if not isinstance(config, dict):
        raise StageError(f"{file} is not a model's config.json", seen=type(config).__name__, wanted="an object")
    return config


def run_here(
    stage_name: str,
    options: Any,
    context: StageContext,
    *,
    python: str | None = None,
    progress: Progress = lambda _record: None,
) -> StepResult:
    """Plan, run and judge a stage here; results are taken up when the folder holds some. Raises StageError.

    ``python`` is that of another environment, which gets the zipapp; by default this installation runs.
    """
    stage = STAGES[stage_name]
    stage.refuse(options, context)
    cells = stage.cells(options, context)
    invocation = stage.invocation(options, context, cells)
    folder = Path(context.folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_bytes(invocation.spec_json())
    results = folder / "results.jsonl"
    start = results.stat().st_size if results.exists() else 0
    program = ["-m", "opsctl.payload"] if python is None else ["-B", str(build_zipapp(folder))]
    argv = invocation.argv(python or sys.executable, *program)
    with (folder / "stderr").open("wb") as stderr, _running(argv, folder, stderr) as process:
        end = time.monotonic() + invocation.limit
        place = start
        while process.poll() is None:
            place = _tail(results, place, progress)
            if time.monotonic() > end:
                process.terminate()
                break
            time.sleep(_POLL)
        process.wait(_GRACE)
        _tail(results, place, progress)
    records = [json.loads(line) for line in results.read_bytes().splitlines()] if results.exists() else []
    if not records:
        said = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise StageError(
            f"the payload of {stage_name} wrote nothing",
            seen=said[-1] if said else f"exit status {process.returncode}",
            where=str(folder / "stderr"),
        )
    return stage.judge(options, context, cells, records)


@contextmanager
def _running(argv: Sequence[str], folder: Path, stderr: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stderr,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        # On Ctrl-C the payload got the signal too, and writes its end record.
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _tail(path: Path, place: int, progress: Progress) -> int:
    """Hand on the whole lines from ``place`` on; return where the next one starts."""
    if not path.exists():
        return place
    with path.open("rb") as file:
        file.seek(place)
        data = file.read()
    whole = data.rfind(b"\n") + 1
    for line in data[:whole].splitlines():
        progress(json.loads(line))
    return place + whole

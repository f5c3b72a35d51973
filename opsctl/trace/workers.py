"""Files analysed side by side, a process each, so that all cores work.

Processes are started as programs of their own (not forked: the controller has threads; not by
multiprocessing's spawn: inside a zipapp it cannot find its main module again).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import opsctl
from opsctl.errors import DeadlineExceeded, TraceError
from opsctl.trace.rank import RankResult, analyse_file
from opsctl.trace.speedups import keep_freed_memory

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from opsctl.trace.workers import work; work(sys.argv[2])"
_SECONDS_AT_LEAST = 120.0
_SECONDS_A_MEGABYTE = 2.0
"""Fifty times what one core needs for a megabyte of compressed trace."""


def analyse_files(paths: Sequence[Path], jobs: int | None = None) -> list[RankResult]:
    """Return one result a file, in order. A file that cannot be opened is a result with a problem, not an error.

    ``jobs`` is how many run at a time (None: one a core). Raises DeadlineExceeded where a file takes fifty times
    as long as it should.
    """
    wanted = min(len(paths), jobs or len(os.sched_getaffinity(0)))
    if wanted <= 1:
        return [_analysed(path) for path in paths]
    running: set[subprocess.Popen[bytes]] = set()
    lock = threading.Lock()

    def one(path: Path) -> RankResult:
        return _in_process(path, running, lock)

    with ThreadPoolExecutor(wanted) as pool:
        try:
            return list(pool.map(one, paths))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            with lock:
                for process in running:
                    process.kill()
            raise


def _in_process(path: Path, running: set[subprocess.Popen[bytes]], lock: threading.Lock) -> RankResult:
    # Where this very package lies, be it a folder or a zipapp: the worker must not pick up another.
    home = str(Path(opsctl.__file__).parent.parent)
    size = path.stat().st_size if path.exists() else 0
    limit = _SECONDS_AT_LEAST + _SECONDS_A_MEGABYTE * size / 1e6
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, home, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with lock:
        running.add(process)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise DeadlineExceeded(f"the analysis of {path} did not end within {limit:.0f} s") from None
    finally:
        with lock:
            running.discard(process)
    if process.returncode != 0:
        raise TraceError(
            f"the process that analysed {path} ended with status {process.returncode}",
            seen=err.decode("utf-8", "replace").strip()[-500:],
            hint="--jobs 1 analyses in this process; if memory ran out, fewer jobs need less",
        )
    result: RankResult = pickle.loads(out)  # noqa: S301 (written by our own child, over a pipe)
    return result


def work(path: str) -> None:
    """Be the child: analyse one file and write the result to standard output."""
    sys.stdout.buffer.write(pickle.dumps(_analysed(Path(path)), protocol=pickle.HIGHEST_PROTOCOL))


def _analysed(path: Path) -> RankResult:
    keep_freed_memory()
    try:
        return analyse_file(path)
    except OSError as error:
        return RankResult(path, problems=[f"the file cannot be read: {error.strerror or error}"])

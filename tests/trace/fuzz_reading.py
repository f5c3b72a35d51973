"""Fuzz the readers with atheris: no crash, no hang, memory bounded, nothing called whole that is not.

    python tests/trace/fuzz_reading.py [-max_total_time=60] [CORPUS…]

Bounded by libFuzzer's own flags (here 60 s, 10 s an input, 1 GB). atheris has wheels for Linux only, so CI runs
this where it can be imported; pytest does not collect it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["opsctl.trace"]):
    from opsctl.trace.rank import analyse_file

from tests.trace.kineto import decode_events, kineto, respelled

PATH = Path(tempfile.mkdtemp(prefix="opsctl-fuzz-")) / "rank0.json"
LIMITS = ["-max_total_time=60", "-timeout=10", "-rss_limit_mb=1024", "-max_len=16384"]


def one_input(data: bytes) -> None:
    """Analyse one file: any bytes give a result with problems, never an exception."""
    PATH.write_bytes(data)
    result = analyse_file(PATH)
    if result.whole != (not result.problems):
        raise AssertionError(result.problems)


def corpus() -> str:
    """Write seeds: both layouts, other spellings, cut ones."""
    folder = Path(tempfile.mkdtemp(prefix="opsctl-corpus-"))
    events = decode_events(steps=2, layers=1)
    for number, text in enumerate(
        [kineto(events), kineto(events, layout="2.13"), respelled(kineto(events), "minified"), kineto(events)[:900]]
    ):
        (folder / str(number)).write_bytes(text)
    return str(folder)


if __name__ == "__main__":
    own = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    given = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    sys.argv = [sys.argv[0], *LIMITS, *own, *(given or [corpus()])]
    os.environ.setdefault("ASAN_OPTIONS", "detect_leaks=0")
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()

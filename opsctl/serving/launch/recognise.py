"""Whether an argv starts a model server, by its program alone: wrappers are taken off before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from opsctl.engines import ENGINES, Engine

_PYTHON_VALUES = {"-X", "-W"}
_TORCHRUN = {"torchrun", "torch.distributed.run"}


def engine_of(words: Sequence[str]) -> Engine | None:
    """Return the engine whose program stands first, or None. What stands in some argument is no program."""
    own = _from_program(words)
    if not own:
        return None
    if PurePosixPath(own[0]).name in _TORCHRUN or own[:2] == ["-m", "torch.distributed.run"]:
        flags = [at for at, word in enumerate(own) if at > 1 and word in {"-m", "--module"}]
        return engine_of(["python", "-m", *own[flags[0] + 1 :]]) if flags else None
    # ``vllm serve``, ``-m MODULE``, ``-m PACKAGE serve``.
    longest = 3 if own[0] == "-m" else 2
    name = PurePosixPath(own[0]).name
    for engine in ENGINES.values():
        begins = engine.begins(own)
        if begins is not None and begins <= longest:
            return engine
        # Its subcommand is in a variable, or missing: no other one loads a model.
        if name == engine.package and (len(own) == 1 or own[1].startswith("$")):
            return engine
    return None


def _from_program(words: Sequence[str]) -> list[str]:
    """Return the words from the program on, or from ``-m``: without a Python and its own options."""
    own = list(words)
    if not own or not PurePosixPath(own[0]).name.startswith(("python", "pypy")):
        return own
    at = 1
    while at < len(own) and own[at].startswith("-") and own[at] != "-m":
        at += 2 if own[at] in _PYTHON_VALUES else 1
    return own[at:]

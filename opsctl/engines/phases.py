"""The phases of a load, and the lines by which a server's log announces them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class LoadPhase(StrEnum):
    """The phases of a load, in their order."""

    SPAWNED = "spawned"
    ENGINE_INIT = "engine init"
    WEIGHTS = "weights"
    AFTER_WEIGHTS = "after weights"
    HTTP_UP = "HTTP up"
    FIRST_TOKENS = "first tokens"

    @property
    def rank(self) -> int:
        """Position in the order, from 0."""
        return tuple(LoadPhase).index(self)


@dataclass(frozen=True)
class Mark:
    """A line that announces a phase. ``text`` is what the person reads."""

    phase: LoadPhase
    text: str
    pattern: re.Pattern[str]
    weak: bool = False
    """The line proves movement once its phase runs, but does not prove the phase: configurations hold the words too."""
    each: bool = False
    """Each line of its kind with another text is movement, not the first alone."""


def mark(phase: LoadPhase, text: str, pattern: str, *, weak: bool = False, each: bool = False) -> Mark:
    """Return a mark of a regular expression that is searched in a line."""
    return Mark(phase, text, re.compile(pattern), weak, each)


UVICORN = (
    mark(LoadPhase.HTTP_UP, "HTTP server starts", r"Started server process|Waiting for application startup"),
    mark(LoadPhase.HTTP_UP, "HTTP server answers", r"Application startup complete|Uvicorn running on"),
)
"""What every server on uvicorn prints."""

BARS = (
    mark(LoadPhase.WEIGHTS, "shards", r"[Ll]oading .*(?:shards|safetensors)|Loading weights"),
    mark(
        LoadPhase.AFTER_WEIGHTS,
        "",
        r"Captur|[Aa]uto[Tt]un|\bTuning\b|[Ww]arm ?up|DeepGEMM|[Cc]ompil|[Pp]recompile",
    ),
)
"""What the label of a progress bar says of the phase; a bar of any other label moves within the phase that runs."""

COMPILING = (
    mark(
        LoadPhase.AFTER_WEIGHTS,
        "compiling",
        r"Compil(?:ing|ed|ation) .*(?:num.tokens|num.reqs|input shapes|finished in)|Precompil\w+ .*(?:num.tokens|shape)"
        r"|^--> num_tokens|Finished (?:XLA|jit) compilation",
        each=True,
    ),
)
"""JAX and TPU: a line a shape, for as long as an hour."""

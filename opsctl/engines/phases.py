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


def mark(phase: LoadPhase, text: str, pattern: str, *, weak: bool = False) -> Mark:
    """Return a mark of a regular expression that is searched in a line."""
    return Mark(phase, text, re.compile(pattern), weak)


UVICORN = (
    mark(LoadPhase.HTTP_UP, "HTTP server starts", r"Started server process|Waiting for application startup"),
    mark(LoadPhase.HTTP_UP, "HTTP server answers", r"Application startup complete|Uvicorn running on"),
)
"""What every server on uvicorn prints."""

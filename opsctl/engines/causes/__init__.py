"""Tables of causes: why loads end, a TOML file an engine, and ``host`` for what any of them can meet.

Each row has a name, a pattern searched in a line, advice, the release or thread that it comes from, and an example.
``kind``: ``ends`` (no server was seen to go on after such a line), ``explains`` (a cause, should the server die;
healthy servers log it too), ``echo`` (says that a process is dead, not why). ``lasting``: another attempt does not
help.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["ends", "explains", "echo"]


@dataclass(frozen=True)
class Cause:
    """One row: a line of the log that says why the server ends."""

    name: str
    pattern: re.Pattern[str]
    kind: Kind
    lasting: bool
    advice: str
    source: str
    example: str

    @property
    def ends(self) -> bool:
        """Whether no server was seen to go on after such a line."""
        return self.kind != "explains"


@dataclass(frozen=True)
class Harmless:
    """A line that looks like a cause and is none. ``logger`` "" is any."""

    pattern: re.Pattern[str]
    logger: re.Pattern[str]
    source: str
    example: str


@dataclass(frozen=True)
class Table:
    """Rows in the order in which they are tried."""

    causes: tuple[Cause, ...]
    harmless: tuple[Harmless, ...]


@cache
def table(*names: str) -> Table:
    """Return the rows of several files, echoes first: they are the most particular lines."""
    causes: list[Cause] = []
    harmless: list[Harmless] = []
    for name in names:
        document = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))
        rows = document.get("cause", ())
        causes += [Cause(**{**row, "pattern": re.compile(row["pattern"])}) for row in rows]
        for row in document.get("harmless", ()):
            given = {"logger": "", "pattern": "", **row}
            compiled = {key: re.compile(given[key]) for key in ("logger", "pattern")}
            harmless.append(Harmless(**{**given, **compiled}))
    return Table(tuple(sorted(causes, key=lambda cause: cause.kind != "echo")), tuple(harmless))

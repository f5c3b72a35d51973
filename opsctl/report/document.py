"""What a report is made of, whatever it is rendered to: sections of prose, tables and charts.

Nothing here is markup. Text is text: the renderers (``markdown.py``, ``html.py``) escape all of it, so a
unit name or a server's error message can never become a link, a tag or a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Tone = Literal["plain", "good", "bad", "warn", "quiet", "code"]


@dataclass(frozen=True)
class Mark:
    """A piece of text with a meaning: a state, something to copy, or a link to a file of the run."""

    text: str
    tone: Tone = "plain"
    href: str = ""
    """A path relative to the page, or ``#anchor``."""
    page: bool = False
    """Whether the link leads to a page of the same site, not to a file of the run."""


Inline = str | Mark


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Callout:
    """A paragraph that must be seen."""

    text: str
    tone: Tone


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Inline, ...]


@dataclass(frozen=True)
class Table:
    """Rows under a head. ``numeric`` holds the indexes of the columns that align right."""

    head: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    numeric: frozenset[int] = frozenset()
    note: str = ""
    """How the figures were obtained."""
    folded: bool = False
    """Long and rarely read: HTML folds it under its caption."""
    caption: str = ""


@dataclass(frozen=True)
class Chart:
    """A Plotly figure as plain data (``data`` and ``layout``). The tables hold the same numbers for Markdown."""

    id: str
    title: str
    figure: dict[str, Any]
    note: str = ""


Block = Prose | Callout | Items | Table | Chart


@dataclass(frozen=True)
class Section:
    """A part of the report with an anchor of its own."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    short: str = ""
    """What the page's list of sections calls it."""


@dataclass(frozen=True)
class Tile:
    """One answer of the first screen."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    headline: str
    headline_note: str
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    footer: str = ""
    links: tuple[Mark, ...] = field(default=())


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[Inline]],
    *,
    numeric: Sequence[int] = (),
    note: str = "",
    folded: bool = False,
    caption: str = "",
) -> Table:
    """Return a Table from any sequences."""
    return Table(
        head=tuple(head),
        rows=tuple(tuple(row) for row in rows),
        numeric=frozenset(numeric),
        note=note,
        folded=folded,
        caption=caption,
    )

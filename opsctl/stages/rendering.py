"""How the figures of a stage are shown and kept: hints that stages give to reports, `opsctl bench` and the history.

Data only: stages say what stands in a column or on an axis, the report says how that looks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal


@dataclass(frozen=True)
class FigureKind:
    """Figures by their names (a glob, such as ``tpot.*``)."""

    names: str
    better: Literal["lower", "higher", ""] = ""
    """"": not known."""
    headline: bool = False
    """Shown before someone asks for all."""
    watched: Literal["lowest load", "highest load", ""] = ""
    """Alarms rest on it, at the cell with the lowest or highest load. Few: each more is one more false alarm."""

    def fits(self, name: str) -> bool:
        """Whether a figure is of this kind."""
        return fnmatchcase(name, self.names)

    def worse(self, change: float) -> bool | None:
        """Whether a change (b - a, of any scale) is to the bad; None where that is not known, or nothing changed."""
        if not self.better or not change:
            return None
        return (change > 0) is (self.better == "lower")


@dataclass(frozen=True)
class Column:
    """One column of the table of cells: a figure, or else the values of axes."""

    head: str
    figure: str = ""
    axes: tuple[str, ...] = ()
    """Joined by ×; () with no figure: every axis that has no column of its own, as name=value."""
    form: Literal["plain", "spread", "share", "size", "exponent"] = "plain"


@dataclass(frozen=True)
class LineChart:
    """Lines over the cells of a stage."""

    id: str
    title: str
    x: tuple[str, ...]
    """Axes of which the first that a cell has is its place on x, which is logarithmic."""
    x_title: str
    figures: tuple[str, ...]
    """On y: a line each."""
    y_title: str
    y_log: bool = False
    lines: tuple[str, ...] = ()
    """Axes whose values tell lines apart, beside the step; (): all but x and ``ticks``."""
    one_line_a_step: bool = False
    sizes: bool = False
    """x is in bytes."""
    ticks: str = ""
    """An axis that names some places on x: the model's own message sizes by their tokens."""
    roof: str = ""
    """A figure that is the share of a roof: y ÷ it is drawn as a line."""
    roof_title: str = ""


@dataclass(frozen=True)
class Rendering:
    """How the cells of a stage are shown."""

    title: str
    short: str
    """What a report's list of sections calls it."""
    columns: tuple[Column, ...]
    note: str = ""
    """How the figures were obtained."""
    charts: tuple[LineChart, ...] = ()
    statistics: tuple[str, ...] = ()
    """Figures that have every statistic (``NAME.p50`` …), shown in a table that is folded."""
    told: tuple[str, ...] = ()
    """Options that stand beside the table."""


@dataclass(frozen=True)
class ResultTable:
    """A table that a stage makes of a result, beside its cells. Values are shown with four digits."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str | float | None, ...], ...]
    note: str = ""

"""Stage command: any program as a measuring step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic import Field

from opsctl.options import Model
from opsctl.payload.command import Spec
from opsctl.quantities import Duration
from opsctl.results import Cell
from opsctl.stages.base import Invocation, Place, Stage, StageContext

_GRACE = 30.0  # seconds that the payload has, beyond the program's own limit, to write its outcome
_FIGURE = re.compile(r"[^#]+#[^#]+")


class Command(Model):
    """Any program as a stage."""

    argv: tuple[str, ...] = Field(min_length=1)
    """Program and arguments, run in the step's folder on the host. No shell."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment added to it. Recorded with the run: put no secret here."""
    collect: tuple[str, ...] = ()
    """Files to fetch, relative to the step's folder on the host; globs are allowed."""
    figures: dict[str, str] = Field(default_factory=dict)
    """Figure name: FILE#path.to.number in a JSON file that the program wrote."""
    limit: Duration = 10 * 60.0
    """Longest time for the step; the host itself ends it then."""


class CommandStage(Stage):
    """One cell: the program."""

    name = "command"
    options = Command

    def problems(self, options: Command, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield figures without a source, and files outside the step's folder."""
        for name, source in options.figures.items():
            if not _FIGURE.fullmatch(source):
                yield "figures", f"wanted FILE#path.to.number for `{name}`, found {source!r}"
        for path in options.collect:
            if path.startswith("/") or ".." in path.split("/"):
                yield "collect", f"wanted a path inside the step's folder, found {path!r}"

    def cells(self, options: Command, context: StageContext) -> tuple[Cell, ...]:
        """Return the one cell."""
        return (Cell(id="command", axes={"program": options.argv[0]}),)

    def invocation(self, options: Command, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run."""
        spec = Spec(options.argv, options.env, options.collect, options.figures, options.limit)
        collect = ("command.stdout", "command.stderr", *options.collect)
        return Invocation(stage=self.name, spec=spec, limit=options.limit + _GRACE, collect=collect)

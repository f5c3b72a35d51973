"""Stage command: any program as a measuring step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from opsctl.errors import StageError
from opsctl.playbook.models import Model
from opsctl.playbook.steps import Command
from opsctl.results import Cell, StepResult
from opsctl.stages.base import Invocation, StageContext
from opsctl.stages.judging import judge_records

_GRACE = 30.0  # seconds that the payload has, beyond the program's own limit, to write what became of it


class CommandStage:
    """One cell: the program."""

    name: ClassVar[str] = "command"
    options: ClassVar[type[Model]] = Command
    needs: ClassVar[Literal["serving", "nothing", "any"]] = "any"

    def cells(self, options: Command, context: StageContext) -> tuple[Cell, ...]:
        """Return the one cell."""
        return (Cell(id="command", axes={"program": options.argv[0]}),)

    def invocation(self, options: Command, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run. Raises StageError for a figure that does not read FILE#path."""
        for name, source in options.figures.items():
            file, mark, path = source.partition("#")
            if not (file and mark and path):
                raise StageError(
                    f"{context.step}: the figure {name} has no source",
                    wanted="FILE#path.to.number",
                    seen=source,
                )
        spec = options.model_dump(include={"argv", "env", "collect", "figures", "limit"})
        collect = ("command.stdout", "command.stderr", *options.collect)
        return Invocation(payload=self.name, spec=spec, limit=options.limit + _GRACE, collect=collect)

    def judge(
        self,
        options: Command,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return what the program gave."""
        return judge_records(self.name, planned, records)

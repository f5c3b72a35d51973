"""``opsctl report`` and ``opsctl site``: what a run found, and a static site over the history."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What a report is written as."""

    MD = "md"
    HTML = "html"


def report(
    run: Annotated[str | None, typer.Argument(help="Run, or the beginning of its id; default: the newest.")] = None,
    format_: Annotated[Format, typer.Option("--format", "-f", help="md for a wiki, html for a browser.")] = Format.MD,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write, - for standard output; default: the run's folder."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", help="Run to compare with; default: the last like it. none: no comparison."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where it was written, and the finding, as JSON.")
    ] = False,
) -> None:
    """Write a run's report.

    [bold]opsctl report[/bold]: the newest run, as Markdown, into its folder.

    [bold]opsctl report 20261130 -f html -o run.html[/bold]: one file that needs no network.
    """
    from opsctl.campaign.journal import Journal
    from opsctl.campaign.reading import find_run, load_run
    from opsctl.campaign.reporting import previous_run
    from opsctl.report import finding, render_html, render_markdown

    with Journal.open() as journal:
        record = load_run(journal, find_run(journal, run))
        if against == "none":
            previous = None
        elif against:
            previous = load_run(journal, find_run(journal, against))
        else:
            previous = previous_run(journal, record)
    text = (render_html if format_ is Format.HTML else render_markdown)(record, previous)
    if str(out) == "-":
        sys.stdout.write(text)
        return
    target = out or Path(record.folder) / f"report.{format_}"
    write_text(target, text)
    found = finding(record)
    if as_json:
        document = {
            "run": record.run,
            "report": str(target),
            "finding": found.sentence,
            "conclusive": found.conclusive,
            "value": found.value,
            "unit": found.unit,
            "spread": found.spread,
            "samples": found.samples,
            "source": found.source,
            "compared_with": previous.run if previous else None,
        }
        print(json.dumps(document))
    else:
        print(found.sentence)
        print(f"report: {target}")


def write_text(target: Path, text: str) -> None:
    """Write a file whole or not at all. Raises OpsctlError with the place and the cause."""
    from opsctl.errors import OpsctlError

    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OpsctlError(
            f"{target} could not be written", seen=error.strerror or str(error), hint="give another place with --out"
        ) from error

"""``opsctl report`` and ``opsctl site``: what a run found, and a static site over the history."""

from __future__ import annotations

import json as jsonlib
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from opsctl.record import RunRecord


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
    json: Annotated[bool, typer.Option("--json", help="Print where it was written, and the finding, as JSON.")] = False,
) -> None:
    """Write a run's report.

    [bold]Exit codes[/bold]: 0 written · 3 written, and production was NOT VERIFIED when the run was last recorded.

    [bold]Examples[/bold]

      opsctl report

      opsctl report 20261130 --format html --out run.html
    """
    from opsctl.errors import ExitCode
    from opsctl.production import production_words
    from opsctl.record import Standing
    from opsctl.report import finding, render_html, render_markdown

    record, previous = _records(run, against)
    text = (render_html if format_ is Format.HTML else render_markdown)(record, previous)
    unverified = [item for item in record.production if item.standing is Standing.UNVERIFIED]
    if str(out) == "-":
        sys.stdout.write(text)
        raise typer.Exit(ExitCode.PRODUCTION_NOT_VERIFIED if unverified else ExitCode.VERIFIED)
    target = out or Path(record.folder) / f"report.{format_}"
    write_text(target, text)
    found = finding(record)
    if json:
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
            "production": {item.host: item.standing for item in record.production},
        }
        print(jsonlib.dumps(document))
    else:
        print(found.sentence)
        print(f"report: {target}")
        for item in unverified:
            print(f"production {item.service} on {item.host}: {production_words(item)[0]}")
            print(f"  next: opsctl status {record.run}; opsctl rollback {item.host}")
    if unverified:
        raise typer.Exit(ExitCode.PRODUCTION_NOT_VERIFIED)


def _records(run: str | None, against: str | None) -> tuple[RunRecord, RunRecord | None]:
    """Return a run and the one that it is compared with."""
    from opsctl.campaign.reporting import previous_run
    from opsctl.runs.journal import Journal
    from opsctl.runs.reading import find_run, load_run

    with Journal.open() as journal:
        record = load_run(journal, find_run(journal, run))
        if against is None:
            return record, previous_run(journal, record)
        return record, None if against == "none" else load_run(journal, find_run(journal, against))


def site(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write the site into; made if missing.")],
    json: Annotated[bool, typer.Option("--json", help="Write what was done as one JSON document.")] = False,
) -> None:
    """Write a static site over the history: runs, trends with their changes, every run's report.

    [bold]Examples[/bold]

      opsctl site /var/www/opsctl

      opsctl site ./site && python3 -m http.server -d ./site
    """
    from opsctl.errors import OpsctlError
    from opsctl.report import site as site_pages
    from opsctl.runs.journal import Journal, state_home
    from opsctl.runs.reading import list_runs, load_run
    from opsctl.snapshots import FILE, History

    with Journal.open() as journal:
        records = [load_run(journal, summary.run) for summary in list_runs(journal)]
    with History(state_home() / FILE) as history:
        series = history.all_series()
    try:
        count = site_pages.write(folder, site_pages.pages(records, series))
    except OSError as error:
        raise OpsctlError(
            f"the site could not be written to {folder}",
            seen=error.strerror or str(error),
            hint="give a folder that you may write to",
        ) from error
    index = folder / "index.html"
    if json:
        document = {"index": str(index), "files": count, "runs": len(records), "series": len(series)}
        print(jsonlib.dumps(document))
    else:
        print(f"site: {index} ({len(records)} runs, {len(series)} figures over time)")


def write_text(target: Path, text: str) -> None:
    """Write a file completely or not at all. Raises OpsctlError with the place and the cause."""
    from opsctl.errors import OpsctlError

    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OpsctlError(
            f"{target} could not be written", seen=error.strerror or str(error), hint="give another place with --out"
        ) from error

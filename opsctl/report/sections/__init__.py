"""The report's parts, in the order in which a reader wants them."""

from __future__ import annotations

from opsctl.record import RunRecord
from opsctl.report.document import Document, Mark, Section
from opsctl.report.finding import finding_of
from opsctl.report.numbers import PLUS_MINUS, clock
from opsctl.report.reading import read
from opsctl.report.sections import advice, comparison, context, decode, measured, overview


def build(record: RunRecord, previous: RunRecord | None = None, *, home: str = "") -> Document:
    """Return the whole report of a run as a document.

    ``previous`` is a run to compare it with; ``home`` the page of a site that the report links back to.
    """
    material = read(record, previous)
    found = finding_of(material)
    parts: tuple[Section | None, ...] = (
        decode.decode_step(material),
        overview.timeline(material),
        overview.restore(material),
        decode.kernels(material),
        decode.collectives_in_step(material),
        decode.ranks(material),
        decode.beside_the_clock(material),
        *measured.sections(material),
        measured.others(material),
        comparison.with_last(material),
        advice.advice(material),
        context.scope(material),
        context.environment(material),
        context.sources(material),
    )
    return Document(
        title=f"{record.playbook} on {', '.join(record.hosts) or 'no host'}",
        subtitle=f"run {record.run}, {clock(record.started)} to {clock(record.ended)}",
        headline=found.sentence,
        headline_note=found.source,
        tiles=overview.tiles(material),
        sections=tuple(part for part in parts if part is not None),
        links=(Mark("All runs", href=home, page=True),) if home else (),
        footer=f"{PLUS_MINUS} Written by opsctl {record.opsctl_version} from the journal of run {record.run}.",
    )

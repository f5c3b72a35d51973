"""Reports of a run: ``report.md`` for a wiki or a pull request, ``report.html`` for a browser, and the finding.

Reads a ``RunRecord`` and the files in its folder, nothing else; needs no network.
"""

from __future__ import annotations

from opsctl.record import RunRecord
from opsctl.report.finding import Finding, finding

__all__ = ["Finding", "finding", "render_html", "render_markdown"]


def render_markdown(record: RunRecord, previous: RunRecord | None = None) -> str:
    """Return ``report.md`` of a run. ``previous`` is a run to compare it with."""
    from opsctl.report import markdown, sections  # noqa: PLC0415 - keeps `opsctl --help` quick

    return markdown.render(sections.build(record, previous))


def render_html(record: RunRecord, previous: RunRecord | None = None) -> str:
    """Return ``report.html`` of a run: one file that needs no network. ``previous`` is a run to compare it with."""
    from opsctl.report import html, sections  # noqa: PLC0415 - reads Plotly's script, 5 MB

    return html.render(sections.build(record, previous))

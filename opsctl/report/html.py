"""A report as one HTML file that needs no network, readable in light and dark, on a phone and on paper.

The page's own policy forbids what escaping should make impossible: no script runs but the ones whose hashes
stand in the head, and nothing is fetched from anywhere. Plotly's script travels gzipped inside the file
(1.8 MB instead of 4.8); for a site it lies beside the pages instead.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import posixpath
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from opsctl.errors import OpsctlError
from opsctl.report.document import Chart, Document

PLOTLY_FILE = "plotly.min.js"


@cache
def plotly_script() -> str:
    """Return Plotly's script from its Python package, without importing that (which takes a second)."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise OpsctlError(
            "charts need the package plotly", seen="it is not installed", hint="pip install plotly, or --format md"
        )
    return (Path(spec.origin).parent / "package_data" / PLOTLY_FILE).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    # mtime=0: the same report gives the same bytes. Base 85 is 6 % shorter than base 64; "<" could begin a comment in
    # a script element, and "," is no digit of it.
    return base64.b85encode(gzip.compress(plotly_script().encode(), 9, mtime=0)).decode().replace("<", ",")


@cache
def _asset(name: str) -> str:
    return resources.files("opsctl.report").joinpath("templates", name).read_text(encoding="utf-8")


def render(document: Document, *, kind: str = "opsctl report", plotly_file: str = "", link_files: bool = True) -> str:
    """Return the page.

    ``plotly_file`` is where Plotly's script lies, relative to the page; without it the script is packed into
    the page. ``link_files``: whether the run's files lie beside the page, so that their names can be links.
    """
    charts = [block for section in document.sections for block in section.blocks if isinstance(block, Chart)]
    script = _asset("page.js")
    allowed = [_hash(script), f"'self' {_hash(plotly_script())}" if plotly_file else _hash(plotly_script())]
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            kind=kind,
            policy=policy,
            style=Markup(_asset("page.css")),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            figures=_json({chart.id: chart.figure for chart in charts}) if charts else "",
            plotly_packed=Markup(_packed_plotly()) if charts and not plotly_file else "",  # noqa: S704 - base 85
            plotly_file=plotly_file,
            link_files=link_files,
        )
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _json(figures: dict[str, Any]) -> Markup:
    """Return JSON that cannot end the script element it stands in, whatever its strings hold."""
    text = json.dumps(figures, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped here


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("opsctl.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["visible"] = _visible
    environment.filters["relative"] = _relative
    environment.filters["kind"] = lambda block: type(block).__name__
    return environment


def _visible(text: str) -> str:
    """Return text without what a page cannot show: control characters and overrides of the writing direction."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def _relative(path: str) -> str:
    """Return a path as a link that stays beside the page: no scheme, no root, no way up and out."""
    up = 0
    clean = posixpath.normpath(path)
    if path.startswith("#"):
        return "#" + quote(path[1:])
    while clean.startswith("../"):
        clean, up = clean[3:], up + 1
    return "../" * min(up, 1) + quote(clean.lstrip("/"))

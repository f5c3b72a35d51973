from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import plotly.graph_objects
import pytest

from opsctl.record import RunRecord
from opsctl.report import render_html, sections
from opsctl.report.document import Chart
from tests.report import samples
from tests.report.browser import Page, chromium

# A browser on two busy cores can take minutes to start.
pytestmark = pytest.mark.timeout(400)

EVIL = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'>\"'`{{7*7}}"
CHARTS = {"decode-step", "timeline", "ranks", "tpot", "throughput", "gemm", "collectives"}

CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgb = (colour) => {
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return canvas.getImageData(0, 0, 1, 1).data;
};
const light = (colour) => {
  const part = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb(colour);
  return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
};
const paper = light(getComputedStyle(document.body).backgroundColor);
const worst = (selector, name) => Math.min(...[...document.querySelectorAll(selector)].map((element) => {
  const ink = light(getComputedStyle(element)[name]);
  return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}));
return [worst("p, td, h1, h2, dt, .mark", "color"), worst(".xtick text, .ytick text", "fill")];
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    path = folder / "report.html"
    path.write_text(render_html(samples.kimi_campaign(folder)))
    return path


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_it_is_drawn_whole_at_any_width(page: Page, report: Path, width: int, *, dark: bool) -> None:
    page.open(report, width=width, dark=dark, mobile=width < 500)
    assert page.complaints() == []
    assert page.overflow() <= 0
    drawn = page.run(
        "return Object.fromEntries([...document.querySelectorAll('.chart')].map((chart) => [chart.dataset.figure, "
        "[chart.querySelectorAll('.points path, .lines path').length, chart.scrollWidth - chart.clientWidth]]))"
    )
    assert set(drawn) == CHARTS
    assert all(marks > 0 and wider <= 0 for marks, wider in drawn.values()), drawn
    text, chart_text = page.run(CONTRAST)
    assert text >= 4.5
    assert chart_text >= 4.5


@pytest.mark.browser
def test_the_first_screen_answers(page: Page, report: Path) -> None:
    page.open(report, width=1440)
    above = page.run(
        "return [...document.querySelectorAll('.headline, .tile, #chart-decode-step')]"
        ".map((element) => element.getBoundingClientRect().top)"
    )
    assert len(above) == 8
    assert max(above) < 900
    tiles = page.run("return [...document.querySelectorAll('.tile')].map((tile) => tile.innerText)")
    assert tiles[0].startswith("Production\nserving, verified")
    assert tiles[1].startswith("Downtime\n2h 40m")


@pytest.mark.browser
def test_links_lead_somewhere_and_nothing_is_fetched(page: Page, report: Path) -> None:
    page.open(report)
    links = page.run("return [...document.querySelectorAll('a')].map((link) => link.getAttribute('href'))")
    anchors = [link[1:] for link in links if link.startswith("#")]
    files = [link for link in links if not link.startswith("#")]
    assert len(anchors) > 10
    assert [name for name in anchors if not page.run(f"return document.getElementById('{name}') !== null")] == []
    assert len(files) == 6
    assert [name for name in files if not (report.parent / unquote(name)).is_file()] == []
    assert page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


@pytest.mark.browser
def test_it_prints_with_everything_unfolded(page: Page, report: Path) -> None:
    page.open(report, width=1440, dark=True)
    page.run("dispatchEvent(new Event('beforeprint'))")
    widest, closed, ink = page.run(
        "return [Math.max(...[...document.querySelectorAll('.chart .main-svg')].map((svg) => svg.clientWidth)), "
        "document.querySelectorAll('details:not([open])').length, "
        "getComputedStyle(document.querySelector('.xtick text')).fill]"
    )
    assert widest <= 680
    assert closed == 0
    assert ink == "rgb(27, 31, 36)"
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run("return document.querySelectorAll('details:not([open])').length") > 0
    pdf = page.printed()
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3


@pytest.mark.browser
def test_hostile_names_do_nothing(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_html(hostile(tmp_path)))
    page.open(path)
    assert page.run("return window.pwned") is None
    assert page.complaints() == []
    assert page.run("return document.querySelectorAll('main img, main script').length") == 0
    assert EVIL in page.run("return document.body.textContent")


def hostile(folder: Path) -> RunRecord:
    """Return a run in which everything that a user or a server can name is an attack."""
    record = samples.kimi_campaign(folder)
    phases = []
    for phase in record.phases:
        steps = [
            step.model_copy(
                update={
                    "result": step.result.model_copy(
                        update={
                            "reason": EVIL,
                            "cells": tuple(
                                cell.model_copy(update={"id": cell.id + EVIL}) for cell in step.result.cells
                            ),
                        }
                    )
                    if step.result
                    else None
                }
            )
            for step in phase.steps
        ]
        phases.append(phase.model_copy(update={"name": EVIL, "serve": EVIL, "reason": EVIL, "steps": tuple(steps)}))
    holds = tuple(hold.model_copy(update={"holder": EVIL, "host": EVIL}) for hold in record.holds)
    return record.model_copy(
        update={"playbook": EVIL, "phases": tuple(phases), "holds": holds, "environment": {EVIL: {EVIL: EVIL}}}
    )


def test_the_page_allows_only_its_own_scripts(report: Path) -> None:
    head = report.read_text()[:4000]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', head)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe-inline&#39;; img" in policy[1]
    assert "script-src &#39;sha256-" in policy[1]
    assert "http" not in policy[1]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    record = samples.lab_campaign(tmp_path)
    assert render_html(record) == render_html(record)
    assert len(render_html(record)) < 2_000_000


@pytest.mark.parametrize("make", [samples.kimi_campaign, samples.lab_campaign, hostile])
def test_every_chart_is_valid_to_plotly(tmp_path: Path, make: object) -> None:
    document = sections.build(make(tmp_path))  # type: ignore[operator]
    charts = [block for section in document.sections for block in section.blocks if isinstance(block, Chart)]
    assert charts
    for chart in charts:
        plotly.graph_objects.Figure(chart.figure)  # raises ValueError on a key that Plotly does not know
    assert len({chart.id for chart in charts}) == len(charts)

from __future__ import annotations

import functools
import http.server
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import plotly.graph_objects
import pytest

from opsctl.record import RunRecord
from opsctl.report import site
from opsctl.report.document import Chart
from opsctl.snapshots import History, Series
from tests.report import samples
from tests.report.browser import Page, chromium
from tests.snapshots.nights import FINGERPRINT, night

# A browser on two busy cores can take minutes to start.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    return [
        samples.kimi_campaign(tmp_path_factory.mktemp("a"), run="20261123-0100-kimi").model_copy(
            update={"started": "2026-11-23T01:00:00+00:00"}
        ),
        samples.kimi_campaign(tmp_path_factory.mktemp("b"), scale=1.07),
        samples.lab_campaign(tmp_path_factory.mktemp("c")),
    ]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[Series]:
    source = random.Random(3)  # noqa: S311
    with History(tmp_path_factory.mktemp("history") / "history.sqlite") as history:
        for index in range(60):
            level = 12.1 * (1.06 if index >= 42 else 1.0) * (1 + source.gauss(0, 0.012)) * (1.4 if index == 20 else 1)
            version = {"versions.vllm": "0.30.0"} if index < 8 else {}
            history.add([night(index, level, output=1390 * 12.1 / level, fingerprint={**FINGERPRINT, **version})])
        return history.all_series()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, records: list[RunRecord], series: list[Series]) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert site.write(folder, site.pages(records, series)) == 5
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def test_the_index_says_what_changed_and_when(records: list[RunRecord], series: list[Series]) -> None:
    document = site.index(records, series)
    assert "tpot.p50 of vllm-kimi-k25-int4 +" in document.headline
    assert "from 2026-11-1" in document.headline
    assert document.tiles[0].value.startswith("back and verified")
    charts = [block for section in document.sections for block in section.blocks if isinstance(block, Chart)]
    assert len(charts) == 2
    for chart in charts:
        plotly.graph_objects.Figure(chart.figure)
    texts = {note["text"] for note in charts[0].figure["layout"]["annotations"]}
    assert "measured differently" in texts
    assert any(text.startswith("+") for text in texts)


@pytest.mark.parametrize(
    ("nights", "headline"),
    [
        (3, "No watched figure can be judged yet: too few nights."),
        (40, "No watched figure changed its level."),
    ],
)
def test_figures_that_nobody_could_judge_did_not_stay_the_same(nights: int, headline: str, tmp_path: Path) -> None:
    source = random.Random(5)  # noqa: S311
    with History(tmp_path / "history.sqlite") as history:
        for index in range(nights):
            level = 12.1 * (1 + source.gauss(0, 0.01))
            history.add([night(index, level, output=1390 * 12.1 / level, fingerprint=FINGERPRINT)])
        assert site.index([], history.all_series()).headline == headline
    assert site.index([], []).headline == "No watched figure can be judged yet: too few nights."


def test_an_empty_history_makes_a_site_too(tmp_path: Path) -> None:
    assert site.write(tmp_path, site.pages([], [])) == 2
    assert "No run yet." in (tmp_path / "index.html").read_text()


def test_the_page_of_a_run_cannot_leave_the_folder() -> None:
    assert site.page_of("../../etc/passwd") == "runs/..-..-etc-passwd.html"


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_the_site_is_whole_from_the_disk(page: Page, folder: Path, width: int) -> None:
    page.open(folder / "index.html", width=width, mobile=width < 500)
    assert page.complaints() == []
    assert page.overflow() <= 0
    assert page.run("return document.querySelectorAll('.chart .points path').length") > 100
    links = page.run("return [...document.querySelectorAll('td a')].map((link) => link.getAttribute('href'))")
    assert len(links) == 3
    for link in links:
        page.open(folder / link, width=width, mobile=width < 500)
        assert page.complaints() == []
        assert page.overflow() <= 0
        assert page.run("return document.querySelectorAll('.chart .points path, .chart .lines path').length") > 0
        back = page.run("return document.querySelector('nav a').href")
        assert back == (folder / "index.html").as_uri()
        assert page.run("return [...document.querySelectorAll('main a')].length") == 0


@pytest.mark.browser
def test_any_web_server_can_serve_it(page: Page, folder: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page.visit(f"http://127.0.0.1:{server.server_port}/")
            assert page.complaints() == []
            page.run("document.querySelector('td a').click()")
            page.wait("return location.pathname.startsWith('/runs/') && !!document.querySelector('.points path')")
            fetched = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
            assert fetched == [f"http://127.0.0.1:{server.server_port}/plotly.min.js"]
            assert page.complaints() == []
        finally:
            server.shutdown()
            thread.join(10)

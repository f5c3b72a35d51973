"""What is said of production follows from the journal: the tile, the message and the exit code never disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.errors import ExitCode
from opsctl.notifications import news_of
from opsctl.production import production_words
from opsctl.report.sections.overview import production_tile
from opsctl.results import Evidence
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.runs.verdict import verdict_of

RUN = "20261203-0100-test"
PROOF = [Evidence(asked="a completion", observed="4 tokens", time="2026-12-03T01:30:00+00:00")]
Story = Callable[[Journal], None]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as opened:
        opened.begin_run(RUN, playbook="p", file="p.yml", version="0", definition={})
        yield opened


def nothing(_: Journal) -> None:
    """The run ended before any host was reached."""


def looked_at(journal: Journal) -> None:
    journal.host(RUN, "kimi", production="vllm", unit="vllm.service")
    journal.update_host(RUN, "kimi", as_found="serving")


def armed_and_released(journal: Journal) -> None:
    looked_at(journal)
    for action in ("install guard", "arm", "release"):
        with journal.mutation(RUN, "kimi", action, "lease"):
            pass


def down(journal: Journal) -> None:
    armed_and_released(journal)
    with journal.mutation(RUN, "kimi", "stop", "vllm.service"):
        pass
    journal.update_host(RUN, "kimi", down_since="2026-12-03T01:10:00+00:00")


def back(journal: Journal) -> None:
    down(journal)
    journal.update_host(
        RUN, "kimi", verified=1, evidence=PROOF, back_at="2026-12-03T01:30:00+00:00", restored_by="controller"
    )


def left_down(journal: Journal) -> None:
    down(journal)
    journal.update_host(RUN, "kimi", left_down=1)


@pytest.mark.parametrize(
    ("story", "error", "shows", "kind", "code"),
    [
        (nothing, ExitCode.UNFIT, ("not touched", "plain"), "failed", ExitCode.UNFIT),
        (looked_at, ExitCode.UNFIT, ("not touched", "good"), "failed", ExitCode.UNFIT),
        (looked_at, ExitCode.HELD, ("not touched", "good"), "failed", ExitCode.HELD),
        (armed_and_released, ExitCode.UNFIT, ("not touched", "good"), "failed", ExitCode.UNFIT),
        (down, None, ("DOWN, NOT VERIFIED", "bad"), "production not verified", ExitCode.PRODUCTION_NOT_VERIFIED),
        (back, None, ("serving, verified", "good"), "finished", ExitCode.VERIFIED),
        (left_down, None, ("left down", "warn"), "finished", ExitCode.VERIFIED),
    ],
)
def test_tile_message_and_exit_code_agree(
    journal: Journal, story: Story, error: ExitCode | None, *, shows: tuple[str, str], kind: str, code: ExitCode
) -> None:
    story(journal)
    journal.run_failure(RUN, interrupted=False, error="gemm: no such model" if error else "", code=error)
    verdict = verdict_of(journal, RUN)
    journal.end_run(RUN, outcome=verdict.outcome, exit_code=int(verdict.code), reason=verdict.reason)
    record = load_run(journal, RUN)
    shown, news = production_tile(record), news_of(record)
    assert ((shown.value, shown.tone), news.kind, verdict.code) == (shows, kind, code)
    alarmed = code is ExitCode.PRODUCTION_NOT_VERIFIED
    assert ("look now" in news.body) is alarmed
    assert ("NOT VERIFIED" in news.title) is alarmed


def test_a_run_at_work_is_neither_verified_nor_alarming(journal: Journal) -> None:
    armed_and_released(journal)
    (production,) = load_run(journal, RUN).production
    assert production_words(production) == ("found serving", "good")
    journal.update_host(RUN, "kimi", down_since="2026-12-03T01:10:00+00:00")
    (production,) = load_run(journal, RUN).production
    words, tone = production_words(production)
    assert words.startswith("DOWN for ")
    assert tone == "bad"


def test_a_run_whose_controller_died_is_down_in_every_output(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.begin_run(RUN, playbook="p", file="p.yml", version="0", definition={})
        down(journal)
        journal.event(
            RUN, "2026-12-03T01:12:00+00:00", "gpus.free", host="kimi", phase="", step="", message="free", data={}
        )
    with Journal(tmp_path) as journal:
        record = load_run(journal, RUN)
    assert record.outcome == "controller died"
    (production,) = record.production
    assert production_words(production) == (
        "went DOWN at 01:10:00Z, and nobody looked after 01:12:00Z",
        "bad",
    )
    assert production_tile(record).value == "DOWN, NOT VERIFIED"

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from opsctl.record import RunRecord, Standing
from opsctl.report import finding, render_markdown
from opsctl.report.markdown import code, escape
from opsctl.results import State
from tests.report import samples


@pytest.fixture
def kimi(tmp_path: Path) -> RunRecord:
    return samples.kimi_campaign(tmp_path)


def plain(markdown: str) -> str:
    """Return what a reader of the rendered Markdown sees, refusing any element but a paragraph and code."""
    html = MarkdownIt("commonmark").enable("table").render(markdown)
    assert re.findall(r"<(?!/?(?:p|code)>)[^>]*>", html) == []
    inner = re.sub(r"</?(?:p|code)>", "", html).strip("\n")
    for entity, letter in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        inner = inner.replace(entity, letter)
    return inner


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "[click](javascript:alert(1))",
        "![x](http://example.invalid/a.png)",
        "**bold** _it_ ~~no~~ `code`",
        "| cell | border |",
        "# not a heading",
        "- not an item",
        "12. not a list",
        "snake_case_name __dunder__ _start end_",
        "a &lt; b &amp; c",
        "back\\slash \\` tick",
        "@team please look",
    ],
)
def test_text_is_shown_as_it_is(text: str) -> None:
    assert plain(escape(text)).replace("&#64;", "@") == text


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1))
def test_no_text_becomes_markup(text: str) -> None:
    assert plain(f"x{escape(text)}x") == f"x{text}x"


def test_line_breaks_and_escapes_of_terminals_do_not_pass() -> None:
    assert escape("a\nb\x1b[31mred\x00") == "a b\ufffd\\[31mred\ufffd"
    assert "\n" not in code("a\nb")
    assert code("a|b`c") == "a\\|b\\`c"


def test_the_finding_stands_first_with_number_spread_and_source(kimi: RunRecord) -> None:
    text = render_markdown(kimi)
    found = finding(kimi)
    assert found.conclusive
    assert found.value == pytest.approx(0.471, abs=0.01)
    assert found.spread is not None
    assert 0 < found.spread < 0.01
    assert found.samples == 3
    assert re.search(
        r"Communication is 47\.\d % \(4\d\.\d to 4\d\.\d\) of the time that the device is busy", found.sentence
    )
    first_heading = text.index("\n## ")
    assert found.sentence in text[:first_heading]
    assert "3 trace analyses of step kernel-profile/2-profile" in found.source


def test_every_planned_cell_is_listed_with_its_state(kimi: RunRecord) -> None:
    text = render_markdown(kimi)
    scope = text[text.index("## Scope") : text.index("## Environment")]
    cells = [(step, cell) for phase in kimi.phases for step in phase.steps for cell in step.result.cells]  # type: ignore[union-attr]
    assert len(cells) > 60
    for step, cell in cells:
        row = next(
            line
            for line in scope.splitlines()
            if f"`{step.id}`" in line and (f"`{cell.id}`" in line or escape(cell.id) in line)
        )
        assert cell.state in row
        if cell.state is not State.VERIFIED:
            assert escape(cell.reason) in scope
    assert "What this campaign did not look at" in scope


def test_production_and_its_downtime_are_told_with_evidence(kimi: RunRecord) -> None:
    text = render_markdown(kimi)
    section = text[text.index("## Production") : text.index("## Kernels")]
    assert "back and verified by the controller after 2h 40m. Downtime: 2h 40m" in section
    assert "16, 16, 16 tokens" in section


def test_production_that_is_not_verified_is_shouted(kimi: RunRecord) -> None:
    production = kimi.production[0].model_copy(
        update={"standing": Standing.UNVERIFIED, "back_at": None, "downtime_seconds": None}
    )
    text = render_markdown(kimi.model_copy(update={"production": (production,)}))
    assert "**DOWN, NOT VERIFIED**" in text
    assert "NOT VERIFIED, DOWN since" in text
    assert "serving, verified" not in text
    assert "| Downtime | *unknown* |" in text


def test_a_run_about_which_nothing_is_known_claims_nothing(tmp_path: Path) -> None:
    empty = RunRecord(run="r", playbook="p", started="2026-12-01T00:00:00+00:00", folder=str(tmp_path))
    text = render_markdown(empty)
    assert "No finding: the run planned no measurement." in text
    assert "| Production | *unknown* |" in text
    assert "verified |" not in text
    assert not finding(empty).conclusive


def test_a_collective_that_nobody_expected_is_named(kimi: RunRecord) -> None:
    assert "Not explained: all_reduce: 3 more than expected a step" in render_markdown(kimi).replace("\\_", "_")


def test_collectives_as_expected_raise_no_question(tmp_path: Path) -> None:
    assert "Not explained" not in render_markdown(samples.lab_campaign(tmp_path))


def test_hostile_names_stay_text(kimi: RunRecord) -> None:
    evil = "<img src=x onerror=alert(1)> | [a](javascript:b) \x1b[2J"
    phase = kimi.phases[0].model_copy(update={"name": evil, "reason": evil, "serve": evil})
    text = render_markdown(kimi.model_copy(update={"playbook": evil, "phases": (phase, *kimi.phases[1:])}))
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<img" not in html
    assert "href" not in html
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "Expecting value"),
        (b"{not json", "Expecting property name"),
        (b'{"format": 2, "ranks": 5}', "not an analysis: ranks"),
        (b'{"ranks": []}', "not an analysis of format 2"),
        (None, "No such file"),
    ],
)
def test_a_broken_analysis_is_named_and_the_others_are_used(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    record = samples.kimi_campaign(tmp_path)
    path = tmp_path / "kernel-profile/2-profile/trace-concurrency=1-window=2.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    text = render_markdown(record)
    assert problem in text
    assert "window=2.json: " in text
    assert finding(record).samples == 2


def test_an_analysis_outside_the_folder_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    record = samples.lab_campaign(folder)
    (tmp_path / "secret.json").write_text("{}")
    step = record.phases[1].steps[0]
    assert step.result is not None
    artifact = step.result.artifacts[0].model_copy(update={"path": "../secret.json"})
    result = step.result.model_copy(update={"artifacts": (artifact,)})
    phase = record.phases[1].model_copy(update={"steps": (step.model_copy(update={"result": result}),)})
    text = render_markdown(record.model_copy(update={"phases": (record.phases[0], phase)}))
    assert "lies outside the run's folder" in text


def test_without_a_profile_the_finding_is_the_served_token(tmp_path: Path) -> None:
    record = samples.kimi_campaign(tmp_path)
    found = finding(record.model_copy(update={"phases": record.phases[:1]}))
    assert found.sentence.startswith("At concurrency=1 a token takes 11.96 ms (95 % interval")
    assert "its parts are not known" in found.sentence
    assert "(output tokens - 1)" in found.source

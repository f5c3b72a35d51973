"""Why loads end: the tables row by row, whole logs of the corpus, and no healthy load taken for a dead one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.engines import ENGINES
from opsctl.engines.causes import Cause, Harmless, table
from opsctl.engines.lines import parse
from opsctl.serving.load.diagnosis import Judge, match_line
from opsctl.serving.load.explaining import explain
from opsctl.serving.load.progress import LoadParser

LOGS = Path(__file__).parents[2] / "data" / "logs"
CORPUS: dict[str, Any] = tomllib.loads((LOGS / "corpus.toml").read_text(encoding="utf-8"))
TABLES = sorted({engine.tables for engine in ENGINES.values()})
ROWS = [(tables, cause) for tables in TABLES for cause in table(*tables).causes]
HARMLESS = [(tables, row) for tables in TABLES for row in table(*tables).harmless]
GOOD = [
    *(log["text"].strip().splitlines() for log in CORPUS["log"] if log["verdict"] == "serves"),
    (LOGS / "composed" / "vllm-0.20-gpu-compile.log").read_text(encoding="utf-8").splitlines(),
]
NOISE = [*CORPUS["harmless"], *(row.example for _, row in HARMLESS)]
VLLM = ENGINES["vllm"].tables


@pytest.mark.parametrize(("tables", "cause"), ROWS, ids=lambda value: getattr(value, "name", None))
def test_a_row_names_its_own_example(tables: tuple[str, ...], cause: Cause) -> None:
    found = match_line(parse(cause.example), table(*tables))
    assert found is not None
    assert found.name == cause.name
    assert cause.advice
    assert cause.source
    assert cause.kind in {"ends", "explains", "echo"}


@pytest.mark.parametrize(("tables", "row"), HARMLESS, ids=lambda value: getattr(value, "source", None))
def test_a_harmless_row_clears_its_own_example(tables: tuple[str, ...], row: Harmless) -> None:
    line = parse(row.example)
    assert row.logger.search(line.logger)
    assert row.pattern.search(line.text)
    assert row.logger.pattern or row.pattern.pattern, "a row that clears every line"
    assert match_line(line, table(*tables)) is None


def test_names_are_unique_within_what_an_engine_uses() -> None:
    for tables in TABLES:
        names = [cause.name for cause in table(*tables).causes]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("log", CORPUS["log"], ids=lambda log: log["name"])
def test_a_log_of_the_corpus_is_explained(log: dict[str, Any]) -> None:
    said = explain(log["text"], ENGINES[log.get("engine", "vllm")])
    assert said.verdict == log["verdict"]
    if log["verdict"] == "ends":
        assert said.cause is not None
        assert said.cause.name == log["cause"]
        assert said.cause.transient is log.get("transient", False)
    assert set(log.get("shows", ())) <= {movement.text for movement in said.movements}
    assert all(any(words in line for line in said.quoted) for words in log.get("quotes", ()))
    assert said.version == log.get("version", said.version)
    assert list(said.phases) == log.get("phases", list(said.phases))
    assert explain(log["text"]).engine == log.get("engine", "vllm"), "the engine is guessed from its lines"


@pytest.mark.parametrize("line", CORPUS["harmless"])
def test_a_healthy_servers_line_suggests_nothing(line: str) -> None:
    for tables in TABLES:
        judge = Judge(tables)
        judge.feed(parse(line), 1.0)
        assert judge.suggestion is None
        assert tables != VLLM or judge.finding() is None


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_prefix_of_a_good_load_is_judged_dead_whatever_noise_is_in_it(data: st.DataObject) -> None:
    lines = [line for line in data.draw(st.sampled_from(GOOD)) if "tuner.py:70" not in line]
    end = data.draw(st.integers(0, len(lines)))
    at = data.draw(st.integers(0, end))
    noise = data.draw(st.sampled_from(NOISE))
    engine = ENGINES[data.draw(st.sampled_from(sorted(ENGINES)))]
    parser = LoadParser(0.0, engine)
    for number, line in enumerate([*lines[:at], noise, *lines[at:end]]):
        parser.feed(line, float(number))
    assert parser.judge.suggestion is None
    assert parser.state.fatal is None


def test_the_whole_real_log_holds_no_cause_before_its_stop(startup_log: list[str]) -> None:
    assert [line for line in startup_log if match_line(parse(line), table(*VLLM))] == []


def judged(*lines: str) -> Judge:
    judge = Judge(VLLM)
    for number, line in enumerate(lines):
        judge.feed(parse(line), float(number))
    return judge


def test_the_first_cause_is_quoted_and_not_the_last_echo() -> None:
    judge = judged(
        "(Worker_TP3 pid=9) ERROR 12-01 01:00:00 [w.py:1] FileNotFoundError: [Errno 2] No such file: '/models/k/3'",
        "(Worker_TP1 pid=7) ERROR 12-01 01:00:00 [w.py:1] torch.distributed.DistNetworkError: Connection reset by peer",
        "(EngineCore pid=5) ERROR 12-01 01:00:00 [core.py:9] EngineCore failed to start.",
    )
    finding = judge.finding()
    assert finding is not None
    assert (finding.name, finding.when, finding.transient) == ("missing file", 0.0, False)
    assert len(judge.quoted()) == 3
    assert judge.suggestion is not None
    assert judge.suggestion.pid == 5


def test_an_exception_that_is_in_no_row_still_explains() -> None:
    line = "(Worker pid=7) ERROR 12-01 01:00:00 [w.py:1] KeyError: 'model.layers.3.mlp.gate'"
    assert judged(line).finding() is not None
    finding = judged(line, "EngineCore failed to start.").finding()
    assert finding is not None
    assert "KeyError" in finding.line
    assert finding.name == "engine did not start"


def test_a_cause_that_is_logged_after_the_echo_is_still_the_cause() -> None:
    judge = judged("ERROR 12-01 01:00:00 [m.py:772] WorkerProc failed to start.")
    assert judge.suggestion is not None
    judge.feed(parse("ERROR 12-01 01:00:00 [m.py:772] torch.OutOfMemoryError: CUDA out of memory."), 1.1)
    finding = judge.finding()
    assert finding is not None
    assert finding.name == "out of GPU memory"


def test_nothing_logged_is_nothing_found() -> None:
    assert judged("a line").finding() is None
    assert judged("a line").quoted() == ()


def test_a_dying_server_that_never_stops_talking_is_kept_small() -> None:
    judge = judged(*(line for number in range(3000) for line in (f"NCCL error {number}", f"OddError: {number}")))
    assert len(judge.quoted()) <= 7

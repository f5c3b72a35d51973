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
CORPORA = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(LOGS.glob("corpus*.toml"))]
CORPUS: list[dict[str, Any]] = [log for corpus in CORPORA for log in corpus["log"]]
HEALTHY: list[str] = [line for corpus in CORPORA for line in corpus.get("harmless", ())]
WHOLE = {
    "vllm-0.26-h200-load.log": "vllm",
    "vllm-0.32-cpu-tp2-startup.log": "vllm",
    "composed/vllm-0.6-gpu-tp2.log": "vllm",
    "composed/vllm-0.20-gpu-compile.log": "vllm",
    "composed/sglang-0.5-tp8.log": "sglang",
}
"""Whole logs of loads that ended well, and their engines."""
TABLES = sorted({engine.tables for engine in ENGINES.values()})
ROWS = [(tables, cause) for tables in TABLES for cause in table(*tables).causes]
HARMLESS = [(tables, row) for tables in TABLES for row in table(*tables).harmless]
GOOD = [
    *((log.get("engine", "vllm"), log["text"].strip().splitlines()) for log in CORPUS if log["verdict"] == "serves"),
    *((engine, (LOGS / name).read_text(encoding="utf-8").splitlines()) for name, engine in WHOLE.items()),
]
NOISE = [*HEALTHY, *(row.example for _, row in HARMLESS)]
VLLM = ENGINES["vllm"].tables


@pytest.mark.parametrize(("tables", "cause"), ROWS, ids=lambda value: getattr(value, "name", None))
def test_a_row_names_its_own_example(tables: tuple[str, ...], cause: Cause) -> None:
    found = match_line(parse(cause.example), table(*tables))
    assert cause.name in {row.name for row in found}
    assert cause.advice
    assert cause.source
    assert cause.kind in {"ends", "explains", "echo"}


@pytest.mark.parametrize(("tables", "row"), HARMLESS, ids=lambda value: getattr(value, "source", None))
def test_a_harmless_row_clears_its_own_example(tables: tuple[str, ...], row: Harmless) -> None:
    line = parse(row.example)
    assert row.logger.search(line.logger)
    assert row.pattern.search(line.text)
    assert row.logger.pattern or row.pattern.pattern, "a row that clears every line"
    assert match_line(line, table(*tables)) == ()


def test_names_are_unique_within_what_an_engine_uses() -> None:
    for tables in TABLES:
        names = [cause.name for cause in table(*tables).causes]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("log", CORPUS, ids=lambda log: log["name"])
def test_a_log_of_the_corpus_is_explained(log: dict[str, Any]) -> None:
    said = explain(log["text"], ENGINES[log.get("engine", "vllm")])
    assert said.verdict == log["verdict"]
    if log["verdict"] == "ends":
        assert said.cause is not None
        assert said.cause.name == log["cause"]
        assert said.cause.transient is log.get("transient", False)
    assert set(log.get("shows", ())) <= {movement.text for movement in said.movements}
    least, most = log.get("eta", (None, None))
    if least is not None:
        assert said.eta is not None
        assert least <= said.eta <= most
    assert said.eta is None or 0 < said.eta < 24 * 3600, "no load takes a day"
    assert all(movement.seconds is None or movement.seconds < 24 * 3600 for movement in said.movements)
    assert all(any(words in line for line in said.quoted) for words in log.get("quotes", ()))
    assert said.version == log.get("version", said.version)
    assert list(said.phases) == log.get("phases", list(said.phases))
    assert explain(log["text"]).engine == log.get("engine", "vllm"), "the engine is guessed from its lines"


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_servers_line_suggests_nothing(line: str) -> None:
    for tables in TABLES:
        judge = Judge(tables)
        judge.feed(parse(line), 1.0)
        assert judge.suggestion is None
        assert tables != VLLM or judge.finding() is None


def test_the_corpus_is_large_enough_and_names_each_log_once() -> None:
    names = [log["name"] for log in CORPUS]
    assert len(set(names)) == len(names)
    assert len(names) + len(WHOLE) >= 60


@pytest.mark.parametrize(("name", "engine"), WHOLE.items(), ids=str)
def test_a_whole_log_of_a_good_load_is_explained(name: str, engine: str) -> None:
    said = explain((LOGS / name).read_text(encoding="utf-8"))
    assert said.engine == engine
    assert said.verdict in {"serves", "stopped"}
    assert said.cause is None
    assert len(said.phases) == 5


def _suggestions(engine: str, lines: list[str], noise: str, at: int) -> list[str]:
    """Return what each prefix of a log is taken for, a line of noise in it: the names of the causes suggested."""
    parser = LoadParser(0.0, ENGINES[engine])
    said = []
    for number, line in enumerate([*lines[:at], noise, *lines[at:]]):
        parser.feed(line, float(number))
        if parser.judge.suggestion is not None or parser.state.fatal is not None:
            said.append(f"{number}: {line[:100]}")
    return said


def _good(lines: list[str]) -> list[str]:
    """Return a log up to the stop that was asked, without the one line that suggests an end and is refuted."""
    end = next((number for number, line in enumerate(lines) if "[shutdown]" in line), len(lines))
    return [line for line in lines[:end] if "tuner.py:70" not in line]


@pytest.mark.parametrize("noise", NOISE, ids=lambda line: line[:60])
def test_no_prefix_of_a_good_load_is_judged_dead_whatever_line_begins_or_ends_it(noise: str) -> None:
    for engine, lines in GOOD:
        if len(lines) < 30:
            assert _suggestions(engine, _good(lines), noise, 0) == []
            assert _suggestions(engine, _good(lines), noise, len(lines)) == []


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_prefix_of_a_good_load_is_judged_dead_whatever_line_is_in_it(data: st.DataObject) -> None:
    engine, log = data.draw(st.sampled_from(GOOD))
    lines = _good(log)
    noise = data.draw(st.sampled_from(NOISE))
    judged_as = data.draw(st.sampled_from([engine, engine, *sorted(ENGINES)]))
    assert _suggestions(judged_as, lines, noise, data.draw(st.integers(0, len(lines)))) == []


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

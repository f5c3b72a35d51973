"""The table of what kills a load: each row by a line as servers print it, and what is quoted."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.serving.load.diagnosis import CAUSES, VERDICTS, Autopsy, match_line

LINES = [
    line.split("\t", 3)
    for line in (Path(__file__).parents[2] / "data" / "logs" / "fatal-lines.tsv")
    .read_text(encoding="utf-8")
    .splitlines()
]


@pytest.mark.parametrize(("name", "transient", "ends", "line"), LINES)
def test_a_line_is_named(name: str, transient: str, ends: str, line: str) -> None:
    cause = match_line(line)
    assert cause is not None
    assert (cause.name, cause.transient, cause.ends) == (name, transient == "transient", ends == "ends")
    assert cause.advice


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 12-01 [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.",
        "(Worker_TP0 pid=6167) WARNING 12-01 [utils.py:597] Failed to create oneDNN linear. Exception: could not",
        'INFO:     127.0.0.1:1 - "GET /v1/models?x=CUDA out of memory HTTP/1.1" 404 Not Found',
        "(APIServer pid=1) INFO 12-01 [x.py:1] non-default args: {'x': 'FileNotFoundError: No such file or directory'}",
        "[2025-11-02 10:00:00] server_args=ServerArgs(model_path='No such file or directory')",
        "/opt/vllm/x.py:83: FutureWarning: `torch.distributed.all_gather_into_tensor` is deprecated.",
        "[2025-11-02 10:05:34 TP0] INFO: ImportError: flash_attn is not there, another kernel is used",
    ],
)
def test_lines_of_healthy_servers_are_no_cause(line: str) -> None:
    assert match_line(line) is None


def test_the_whole_real_log_holds_no_cause_before_its_stop(startup_log: list[str]) -> None:
    named = [line for line in startup_log if match_line(line)]
    assert named == []


def test_the_first_cause_is_quoted_and_not_the_last_echo() -> None:
    autopsy = Autopsy()
    lines = [
        "(Worker_TP3 pid=9) ERROR [w.py:1] FileNotFoundError: [Errno 2] No such file or directory: '/models/k/3'",
        "(Worker_TP1 pid=7) ERROR [w.py:1] torch.distributed.DistNetworkError: Connection reset by peer",
        "(EngineCore pid=5) ERROR [core.py:9] EngineCore failed to start.",
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
    ]
    for number, line in enumerate(lines):
        autopsy.feed(line, float(number))
    finding = autopsy.finding()
    assert finding is not None
    assert (finding.name, finding.when, finding.transient) == ("missing file", 0.0, False)
    assert autopsy.quoted() == (lines[0], lines[1], lines[2])


def test_an_exception_that_is_in_no_row_still_explains() -> None:
    autopsy = Autopsy()
    autopsy.feed("(Worker pid=7) ERROR [w.py] KeyError: 'model.layers.3.mlp.gate'", 1.0)
    assert autopsy.finding() is not None
    autopsy.feed("EngineCore failed to start.", 2.0)
    finding = autopsy.finding()
    assert finding is not None
    assert "KeyError" in finding.line
    assert finding.name == "engine did not start"


def test_a_cause_that_is_logged_after_the_verdict_is_still_the_cause() -> None:
    autopsy = Autopsy()
    autopsy.feed("(Worker_TP1 pid=7) ERROR [multiproc_executor.py:772] WorkerProc failed to start.", 1.0)
    assert autopsy.verdict is not None
    assert autopsy.verdict.name == "a worker died"
    autopsy.feed("(Worker_TP1 pid=7) ERROR [x.py:772] torch.OutOfMemoryError: CUDA out of memory.", 1.1)
    assert autopsy.verdict.name == "out of GPU memory"


def test_nothing_logged_is_nothing_found() -> None:
    autopsy = Autopsy()
    autopsy.feed("a line", 0.0)
    assert autopsy.finding() is None
    assert autopsy.quoted() == ()


def test_a_dying_server_that_never_stops_talking_is_kept_small() -> None:
    autopsy = Autopsy()
    for number in range(10_000):
        autopsy.feed(f"RuntimeError: NCCL error {number}", float(number))
        autopsy.feed(f"OddError: {number}", float(number))
    assert len(autopsy.quoted()) <= 6


def test_every_row_says_what_to_do_and_names_are_unique() -> None:
    rows = (*CAUSES, *VERDICTS)
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.advice and row.pattern.pattern for row in rows)

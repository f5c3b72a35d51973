from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from opsctl.commands.trace import trace
from opsctl.errors import TraceError, UnfitError
from tests.trace.kineto import decode_events, kineto, write


def run(*arguments: str, columns: int = 160) -> Result:
    app = typer.Typer()
    app.command()(trace)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        events = decode_events(slow=1_000 * rank)
        write(tmp_path / f"rank{rank}.pt.trace.json.gz", kineto(events, rank=rank, world=2))
    return tmp_path


def test_the_finding_comes_first(folder: Path) -> None:
    said = run(str(folder), "--expected", "all_reduce=4", "--tpot-off", "0.1", "--jobs", "1")
    assert said.exit_code == 0, said.output
    first = said.output.splitlines()[0]
    assert first.startswith("20 decode steps of batch 1: 0.160 ms a step on average, busy 0.051 ms (moe-gemm 58.8%")
    for text in ("Collectives", "all_reduce", "rank 1 (100%)", "marlin_moe_wna16", "Beside the clock"):
        assert text in said.output


def test_json_is_one_document_with_the_promised_keys(folder: Path) -> None:
    document = json.loads(run(str(folder), "--json", "--jobs", "1").output)
    assert document.keys() >= {
        "ranks", "steps", "categories", "kernels", "collectives", "problems",
        "busy_us", "sum_us", "idle_us", "window_us",
    }  # fmt: skip
    assert document["ranks"][0].keys() >= {"rank", "file", "events", "device", "problems"}
    assert document["steps"]["decode"].keys() >= {"count", "batch", "wall_us"}
    assert document["steps"]["decode"]["wall_us"].keys() == {"p50", "mean", "cv"}
    assert document["categories"][0].keys() >= {"name", "busy_us_per_step", "sum_us_per_step", "share_of_busy"}
    assert document["kernels"][0].keys() >= {
        "name", "category", "calls", "calls_per_step", "sum_us", "mean_us", "share_of_sum",
    }  # fmt: skip
    assert document["collectives"][0].keys() >= {
        "op", "calls_per_step", "expected_per_step", "communication_us_per_step", "straggler_wait_us_per_step",
    }  # fmt: skip


def figures(output: str, title: str) -> list[list[str]]:
    """Return the words of a table's rows."""
    below = output.split(title, 1)[1].split("─\n", 1)[-1].split("─ \n", 1)[-1]
    return [line.split() for line in itertools.takewhile(str.strip, below.splitlines())]


def test_eighty_columns_break_no_figure(folder: Path) -> None:
    narrow, roomy = (run(str(folder), "--jobs", "1", columns=columns).output for columns in (80, 160))
    assert max(map(len, narrow.splitlines())) <= 80
    assert "Below 100 columns" in narrow
    assert "Below 100 columns" not in roomy
    for title in ("Steps, by", "What the device is busy with", "Collectives"):
        assert figures(narrow, title)[0] == figures(roomy, title)[0]


def test_a_comparison_fits_eighty_columns(folder: Path) -> None:
    one, other = (str(folder / f"rank{rank}.pt.trace.json.gz") for rank in range(2))
    narrow = run(one, other, "--jobs", "1", columns=80).output
    assert max(map(len, narrow.splitlines())) <= 80
    assert [row[0] for row in figures(narrow, "A step")[:4]] == ["wall_us", "busy_us", "sum_us", "idle_us"]


def test_two_paths_are_compared(folder: Path) -> None:
    one, other = (str(folder / f"rank{rank}.pt.trace.json.gz") for rank in range(2))
    said = run(one, other, "--jobs", "1")
    assert said.exit_code == 0, said.output
    assert "faster" in said.output  # rank 1's all-reduces
    assert json.loads(run(one, other, "--json", "--jobs", "1").output)["counts"] == []


def test_an_excerpt_is_written_and_named(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json.gz"
    said = run(str(folder), "--excerpt", str(out), "--jobs", "1")
    assert said.exit_code == 0, said.output
    assert "excerpt:" in said.output
    assert out.stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a", "b", "c"], UnfitError),
        (["a", "--expected", "all_reduce=many"], UnfitError),
        (["a", "b", "--excerpt", "x.json"], UnfitError),
        (["/nowhere"], TraceError),
    ],
)
def test_bad_input_is_a_clear_error(arguments: list[str], error: type[Exception]) -> None:
    assert isinstance(run(*arguments).exception, error)


def test_a_broken_file_is_named_and_the_rest_is_shown(folder: Path) -> None:
    path = folder / "rank1.pt.trace.json.gz"
    path.write_bytes(path.read_bytes()[:-100])
    said = run(str(folder), "--jobs", "1")
    assert said.exit_code == 0, said.output
    assert "problem: rank1.pt.trace.json.gz: the gzip data ends without its trailer" in said.output.replace("\n", " ")

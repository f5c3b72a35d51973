"""Times that cannot be: what is repaired, what is left out, what is left alone; and that it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.errors import TraceError
from opsctl.trace import TraceAnalysis, analyse
from tests.trace.kineto import GEMM, MARLIN, NCCL, Event, host, kernel, kineto, launch, respelled, write

US = 1_000
READERS = ["", "numpy", "numpy,msgspec,isal"]


@pytest.fixture(params=READERS)
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", request.param)


def good(base: int = 10_000_000) -> list[Event]:
    """Return six decode steps of batch 4, 600 of 1000 µs busy each, every kernel launched on its own."""
    events: list[Event] = []
    for step in range(6):
        at = (base + step * 1000) * US
        events.append(host("user_annotation", "execute_context_0(0)_generation_4(4)", at, 900 * US))
        for place, (name, start, length) in enumerate([(GEMM, 20, 300), (MARLIN, 320, 200), (NCCL, 520, 100)]):
            key = 1 + step * 3 + place
            events.append(launch("cudaLaunchKernel", at + (5 + place) * US, key))
            events.append(kernel(name, at + start * US, length * US, correlation=key))
    return events


def analysed(folder: Path, text: bytes) -> TraceAnalysis:
    analysis = analyse([write(folder / "rank0.json", text)])
    assert analysis.main.count == 6
    return analysis


def kernels(events: list[Event]) -> list[Event]:
    return [event for event in events if event["cat"] == "kernel"]


@pytest.mark.usefixtures("_reader")
def test_nothing_is_repaired_where_nothing_is_wrong(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, kineto(good()))
    assert (analysis.busy_us, analysis.notes, analysis.problems) == (3600.0, (), ())


@pytest.mark.usefixtures("_reader")
def test_an_end_that_came_late_is_cut(tmp_path: Path) -> None:
    events = good()
    kernels(events)[3]["dur"] = 2500 * US
    analysis = analysed(tmp_path, kineto(events))
    assert analysis.busy_us == 3600.0
    assert analysis.main.idle_us is not None
    assert analysis.main.idle_us.mean == 400.0
    assert [note for note in analysis.notes if GEMM in note and "an end after later work" in note]


@pytest.mark.usefixtures("_reader")
def test_programmatic_launch_and_graphs_overlap_truly(tmp_path: Path) -> None:
    early, graph = good(), good()
    for event in kernels(early)[1::3]:
        event["ts"] -= 30 * US
    analysis = analysed(tmp_path, kineto(early))
    assert (analysis.busy_us, analysis.notes) == (3600.0 - 6 * 30, ())
    for event in graph:
        if event["cat"] in ("kernel", "cuda_runtime"):
            event["args"]["correlation"] = 1 + (event["args"]["correlation"] - 1) // 3
    for event in kernels(graph)[::3]:
        event["dur"] = 700 * US
    assert analysed(tmp_path, kineto(graph)).busy_us == 6 * 700.0


@pytest.mark.usefixtures("_reader")
def test_a_negative_duration_counts_with_no_time(tmp_path: Path) -> None:
    text = respelled(kineto(good()), "minified").replace(b'"dur":300.000', b'"dur":-5', 1)
    analysis = analysed(tmp_path, text)
    assert (analysis.busy_us, analysis.sum_us) == (3300.0, 3300.0)
    assert any("a negative duration: counted" in note for note in analysis.notes)


@pytest.mark.usefixtures("_reader")
def test_work_without_a_start_is_left_out_by_name(tmp_path: Path) -> None:
    events = good(base=1_661_938_466_000_000)
    for event in kernels(events)[1:6:3]:
        event["ts"] = 0
    analysis = analysed(tmp_path, kineto(events))
    assert (analysis.busy_us, analysis.window_us) == (3200.0, 5600.0)
    assert analysis.main.used == 6
    (note,) = analysis.notes
    assert "2 pieces of device work (" in note
    assert MARLIN in note
    assert note.endswith("left out")


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("old", "new", "note"),
    [
        (b'"queued":0', b'"queued":inf', "not valid JSON (inf, a control byte)"),
        (b'"queued":0', b'"queued":"\x01"', "not valid JSON (inf, a control byte)"),
        (b'"ts":10000020.000', b'"ts":"10000020.000"', "times that are strings"),
        (b'"traceName":"/tmp/x.json"', b'"INFO":["device = 0, "event_id": 4"]', "unescaped quotes"),
    ],
)
def test_odd_spellings_cost_nothing_and_are_said(tmp_path: Path, old: bytes, new: bytes, note: str) -> None:
    text = respelled(kineto(good()), "minified")
    assert old in text
    analysis = analysed(tmp_path, text.replace(old, new, 1))
    assert (analysis.busy_us, analysis.problems) == (3600.0, ())
    assert any(note in said for said in analysis.notes), analysis.notes


def test_a_bracket_in_the_name_of_a_trace_is_no_end(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, kineto(good()).replace(b"/tmp/x.json", b"fit-[Strategy]Single.pt.trace.json"))
    assert (analysis.busy_us, analysis.problems, analysis.notes) == (3600.0, (), ())


def test_no_kernels_are_no_zeros(tmp_path: Path) -> None:
    events = [event for event in good() if event["cat"] != "kernel"]
    with pytest.raises(TraceError) as caught:
        analyse([write(tmp_path / "rank0.json", kineto(events))])
    assert "no device events" in (caught.value.seen or "")

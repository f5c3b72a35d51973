from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsctl.trace import inflate
from opsctl.trace.events import Columns, Role
from opsctl.trace.reading import TraceFile, read_file
from tests.trace.kineto import decode_events, host, kernel, kineto, respelled, write

READERS = ["", "numpy", "numpy,msgspec", "numpy,msgspec,isal"]
EVENTS = [
    *decode_events(steps=3),
    host("cpu_op", "aten::mm", 900_000_000, 5_000),
    kernel('a "quoted" name, {braces}, [brackets] and \\ é', 990_000_000, 7_001, correlation=3),
    {**kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", 991_000_000, 8_000, stream=23, correlation=4),
     "args": {"device": 0, "stream": 23, "correlation": 4, "Collective name": "allreduce", "In msg nelems": 7168,
              "dtype": "BFloat16", "Group size": 8, "ranges": [{"name": "x"}, {"name": "y"}]}},
]  # fmt: skip


def said(columns: Columns) -> dict[str, object]:
    """Return what columns hold, whatever order and numbers the reader gave to names."""
    spans = {
        role.name: sorted(
            (columns.names[name], columns.lanes[lane], start, duration, correlation)
            for name, lane, start, duration, correlation in zip(
                own.name, own.lane, own.start, own.duration, own.correlation, strict=True
            )
        )
        for role, own in columns.spans.items()
    }
    messages = {
        (start, columns.lanes[lane], columns.names[name]): message
        for (start, lane, name), message in columns.messages.items()
    }
    return {"spans": spans, "messages": messages, "events": columns.events, "end": columns.window_end}


def read(tmp_path: Path, text: bytes, name: str = "rank0.pt.trace.json") -> TraceFile:
    return read_file(write(tmp_path / name, text))


@pytest.mark.parametrize("without", READERS)
@pytest.mark.parametrize("layout", ["2.11", "2.13"])
@pytest.mark.parametrize("spelling", ["kineto", "minified", "indented", "sorted", "array"])
def test_every_reader_reads_every_spelling_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, layout: str, spelling: str
) -> None:
    expected = said(read(tmp_path, kineto(EVENTS)).columns)
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    text = kineto(EVENTS, layout=layout)
    file = read(tmp_path, text if spelling == "kineto" else respelled(text, spelling), "rank0.json.gz")
    assert said(file.columns) == expected
    assert file.problems == []
    assert file.whole
    assert len(file.columns.device) == 3 * 10 + 2
    if spelling != "array":
        assert (file.metadata.rank, file.metadata.world_size, file.metadata.device) == (0, 1, "NVIDIA H200")
        assert file.metadata.base_ns == 1_790_857_026_000_000_000
    assert file.layout == ("kineto" if spelling == "kineto" else "any")


def test_sizes_of_messages_are_read_where_the_trace_says_them(tmp_path: Path) -> None:
    (message,) = read(tmp_path, kineto(EVENTS)).columns.messages.values()
    assert (message.op, message.elements, message.dtype, message.group_size) == ("allreduce", 7168, "BFloat16", 8)


def test_names_that_differ_in_one_byte_anywhere_are_told_apart(tmp_path: Path) -> None:
    """The fast reader guesses a head from a few bytes of it, so heads must be met that agree in all of those."""
    plain = "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<float>, std::array<char*> >"
    names = [plain, *(f"{plain[:place]}#{plain[place + 1 :]}" for place in range(len(plain)))]
    events = []
    for index, name in enumerate(names * 3):
        events.append(kernel(name, 1_000_000 + 10_000 * index, 1_000 + index, stream=7 + index % 2, correlation=index))
        events.append(host("cpu_op", name, 1_000_000 + 10_000 * index, 5))
    columns = read_file(write(tmp_path / "names.json", kineto(events))).columns
    device = columns.device
    seen = sorted(
        (start, columns.names[name][1], columns.lanes[lane][1], duration)
        for name, lane, start, duration in zip(device.name, device.lane, device.start, device.duration, strict=True)
    )
    assert [row[1:] for row in seen] == [
        (name, str(7 + index % 2), 1_000 + index) for index, name in enumerate(names * 3)
    ]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 4000), spelling=st.sampled_from(["2.11", "2.13", "minified", "indented"]))
def test_where_the_stream_is_split_makes_no_difference(
    tmp_path_factory: pytest.TempPathFactory, size: int, spelling: str
) -> None:
    text = kineto(EVENTS, layout=spelling) if spelling[0] == "2" else respelled(kineto(EVENTS), spelling)
    path = write(tmp_path_factory.mktemp("split") / "rank0.json", text)
    expected = read_file(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflate, "BLOCK", size)
        file = read_file(path)
    assert said(file.columns) == said(expected.columns)
    assert (file.problems, file.metadata) == (expected.problems, expected.metadata)


@pytest.mark.parametrize("spelling", ["2.11", "2.13", "minified"])
def test_a_split_at_every_single_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    few = [EVENTS[0], EVENTS[2], EVENTS[-2], EVENTS[-1]]
    text = kineto(few, layout=spelling) if spelling[0] == "2" else respelled(kineto(few), spelling)
    path = write(tmp_path / "rank0.json", text)
    expected = said(read_file(path).columns)
    for size in range(1, len(text)):
        monkeypatch.setattr(inflate, "BLOCK", size)
        assert said(read_file(path).columns) == expected, size


@pytest.mark.parametrize("without", READERS)
@pytest.mark.parametrize("layout", ["2.11", "2.13"])
def test_a_file_cut_at_any_byte_gives_its_whole_events_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, layout: str
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    events = EVENTS[:4]
    text = kineto(events, layout=layout)
    whole = read(tmp_path, text)
    for cut in range(0, len(text) - 1, 1 if without == "" else 13):
        file = read(tmp_path, text[:cut])
        assert not file.whole, cut
        assert file.problems, cut
        assert file.columns.events <= whole.columns.events
        # An event counts once its closing brace is there; the last one has no arguments.
        complete = text[:cut].count(b"\n    }\n  }") + (b"Record Window End" in text[:cut].rpartition(b"\n  }")[0])
        assert file.columns.events == (complete if b"traceEvents" in text[:cut] else 0), cut


def test_a_gzip_cut_in_the_middle_is_salvaged_and_named(tmp_path: Path) -> None:
    data = gzip.compress(kineto(decode_events(steps=50)))
    path = tmp_path / "rank0.pt.trace.json.gz"
    path.write_bytes(data[: len(data) // 2])
    file = read_file(path)
    assert not file.whole
    assert 50 < len(file.columns.device) < 500
    assert any(
        "the gzip data ends without its trailer" in problem and "salvaged" in problem for problem in file.problems
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "empty (0 bytes)"),
        (b"\x1f\x8b", "without its trailer"),
        (b"not json at all", "no Kineto trace"),
        (b'{"schemaVersion": 1}', "no Kineto trace"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [', "does not close"),
        (b"[]", "no events"),
        (b"{}", "no Kineto trace"),
        (b"\x00" * 1000, "no Kineto trace"),
    ],
)
@pytest.mark.parametrize("without", READERS)
def test_what_is_no_trace_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, text: bytes, problem: str
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    file = read(tmp_path, text)
    assert any(problem in said for said in file.problems), file.problems
    assert not file.whole


@pytest.mark.parametrize("without", READERS)
@pytest.mark.parametrize("layout", ["2.11", "2.13"])
@pytest.mark.parametrize("raw", ["bad \\x escape", 'un"escaped "quotes"', "C:\\path\\users"])
def test_names_that_are_not_json_are_kept_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, layout: str, raw: str
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    events = [*decode_events(steps=2), {**kernel("x", 5_000, 6_000, correlation=9), "raw_name": raw}]
    file = read(tmp_path, kineto(events, layout=layout))
    assert ("kernel", raw) in file.columns.names
    assert len(file.columns.device) == 21
    assert file.problems == ["1 events have names that are not valid JSON text: they are shown as they are written"]


@pytest.mark.parametrize("without", READERS)
def test_bytes_that_are_no_utf8_and_nan_in_arguments_do_not_lose_the_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    events = [*decode_events(steps=2), kernel("BYTES", 5_000, 6_000, correlation=9, bandwidth=float("nan"))]
    file = read(tmp_path, kineto(events).replace(b"BYTES", b"b\xff\xfe").replace(b"NaN", b"nan"))
    assert ("kernel", "b\ufffd\ufffd") in file.columns.names
    assert len(file.columns.device) == 21
    assert file.columns.bad_names == 1


@pytest.mark.parametrize("without", READERS)
def test_an_event_without_a_time_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    monkeypatch.setenv("OPSCTL_TRACE_WITHOUT", without)
    text = respelled(kineto(decode_events(steps=2)), "minified").replace(b'"ts":1000050.000', b'"ts":null', 1)
    file = read(tmp_path, text)
    assert len(file.columns.device) == 19
    assert any("1 of 27 events could not be read" in problem for problem in file.problems), file.problems


def test_old_files_hold_epoch_times_and_whole_microseconds(tmp_path: Path) -> None:
    text = b"""{"schemaVersion": 1, "traceEvents": [
  {
    "ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7,
    "ts": 1669852800123456, "dur": 12,
    "args": {
      "correlation": 5
    }
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 1669852800123999
  }
]}"""
    file = read(tmp_path, text)
    assert list(file.columns.device.start) == [1_669_852_800_123_456_000]
    assert list(file.columns.device.duration) == [12_000]
    assert file.metadata.base_ns == 0
    assert file.problems == []


def test_a_rewritten_file_without_its_window_end_is_named(tmp_path: Path) -> None:
    text = kineto(decode_events(steps=1)).replace(b"Record Window End", b"something else...")
    assert any("Record Window End" in problem for problem in read(tmp_path, text).problems)


def test_a_file_without_device_work_keeps_the_host_operators(tmp_path: Path) -> None:
    events = [host("cpu_op", "aten::mm", 1_000, 500), host("user_annotation", "gloo:all_reduce", 2_000, 500)]
    for device in (None, "NVIDIA H200"):
        file = read(tmp_path, kineto(events, device=device))
        assert not file.on_device
        assert len(file.columns.spans[Role.OPERATION]) == 1
        assert len(file.columns.spans[Role.ANNOTATION]) == 1


def test_the_rank_is_told_by_the_file_or_by_its_name(tmp_path: Path) -> None:
    events = decode_events(steps=1)
    assert read(tmp_path, kineto(events, rank=3, world=8), "rank1.json").rank == 3
    for name, rank in (
        ("dp0_pp0_tp1_dcp0_ep0_rank5.176.pt.trace.json", 5),
        ("vm-rank-2.pt.trace.json", 2),
        ("1757-TP-3-DECODE.trace.json", 3),
        ("trace.json", None),
    ):
        assert read(tmp_path, kineto(events, rank=None), name).rank == rank

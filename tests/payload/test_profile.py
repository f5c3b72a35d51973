import json
import signal
from pathlib import Path
from typing import Any

import pytest

from opsctl.engines import ENGINES
from opsctl.payload import profile
from opsctl.payload.main import run_stage
from opsctl.payload.output import Output, read_records
from opsctl.payload.profile import check_file
from opsctl.payload.profile_spec import Spec
from opsctl.payload.tracefiles import snapshot
from tests.payload.pacing import cells, figures, paced_server, run_payload, stamps


def spec(url: str, traces: Path, **changes: Any) -> dict[str, Any]:
    return {
        "url": url,
        "model": "paced",
        "trace_dir": str(traces),
        "ranks": 2,
        "profiler": "torch",
        "warmup_requests": 1,
        "requests": 2,
        "input_tokens": 10,
        "output_tokens": 6,
        "flush_limit": 30.0,
        "request_limit": 20.0,
        "limit": 90.0,
        "version": [["/version", "version"]],
        "expected": {"all_reduce": 1, "all_gather": 1},
        "token_bytes": 1024,
        "cells": [{"id": "concurrency=2/window=1", "concurrency": 2, "window": 1}],
        **changes,
    }


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    (tmp_path / "traces").mkdir()
    return tmp_path / "traces"


def test_windows_from_end_to_end(tmp_path: Path, traces: Path) -> None:
    windows = [{"id": f"concurrency=1/window={n}", "concurrency": 1, "window": n} for n in (1, 2)]
    with paced_server("--trace-dir", str(traces)) as url:
        records = run_payload("profile", spec(url, traces, cells=windows), tmp_path / "step")
        profiled = stamps(url)["profiled"]
    assert records[-1]["state"] == "verified"
    # Warm-up and the plain half come before each start, in each window.
    assert [each["requests"] for each in profiled] == [3, 8]
    for window in windows:
        cell = cells(records)[str(window["id"])]
        assert cell["state"] == "verified"
        assert len(cell["detail"]["files"]) == 2
        assert cell["detail"]["device_events"] is True
        assert {"tpot.unprofiled", "tpot.profiled", "profiler.slowdown", "flush.time"} == set(figures(cell))
    kinds = [record["kind"] for record in records if record["record"] == "artifact"]
    assert kinds.count("trace") == 4
    assert kinds.count("trace-analysis") == 2
    document = json.loads((tmp_path / "step" / "trace-concurrency-1-window-1.json").read_bytes())
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1]
    counted = {each["op"]: (each["calls_per_step"], each["expected_per_step"]) for each in document["collectives"]}
    assert counted["all_reduce"] == (1, 1)
    assert document["beside_the_clock"]["tpot_armed_us"] is not None
    # The ranks' files moved into the step's folder; the front end's stayed, being no rank.
    assert {path.name.split(".")[1] for path in traces.iterdir()} == {"async_llm"}


def test_a_file_that_is_still_written_is_waited_for(tmp_path: Path, traces: Path) -> None:
    with paced_server("--trace-dir", str(traces), "--fault", "profile-late-file") as url:
        records = run_payload("profile", spec(url, traces), tmp_path / "step")
    assert records[-1]["state"] == "verified"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("profile-404", "was not started with its profiler on"),
        ("profile-missing-rank", "1 of 2 rank files appeared"),
        ("profile-cut-file", "rank0"),
        ("profile-no-work", "hold nothing to analyse"),
        ("profile-hang", "/stop_profile was not answered within 3 s"),
    ],
)
def test_200_proves_nothing(
    tmp_path: Path, traces: Path, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paced_server("--trace-dir", str(traces), "--fault", fault) as url:
        records = run_here(spec(url, traces, flush_limit=3.0), tmp_path / "step", monkeypatch)
    cell = cells(records)["concurrency=2/window=1"]
    assert cell["state"] == "failed"
    assert said in cell["reason"]
    assert records[-1]["record"] == "end"


def test_no_kernels_are_told_not_hidden(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with paced_server("--trace-dir", str(traces), "--fault", "profile-no-kernels") as url:
        records = run_here(spec(url, traces), tmp_path / "step", monkeypatch)
    cell = cells(records)["concurrency=2/window=1"]
    assert cell["detail"]["device_events"] is False
    assert "no device kernels" in cell["detail"]["note"]


def test_another_rank_count_than_the_servers(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with paced_server("--trace-dir", str(traces), "--ranks", "3") as url:
        records = run_here(spec(url, traces), tmp_path / "step", monkeypatch)
    assert "3 rank files for 2 ranks" in cells(records)["concurrency=2/window=1"]["reason"]


def test_nsys_where_there_is_none(tmp_path: Path, traces: Path) -> None:
    with paced_server() as url:
        records = run_payload("profile", spec(url, traces, profiler="nsys"), tmp_path / "step")
    assert records[-1]["state"] == "failed"
    assert "nsys is not on this host's PATH" in records[-1]["reason"]


def test_nsys_reports_are_taken(tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nsys").write_text("#!/bin/sh\n")
    (tools / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    calls = iter(range(100))

    def with_report(folder: Path) -> Any:
        if next(calls) == 3:
            (folder / "report1.nsys-rep").write_bytes(b"NSYS")
        return snapshot(folder)

    monkeypatch.setattr(profile, "snapshot", with_report)
    with paced_server() as url:
        records = run_here(spec(url, traces, profiler="nsys"), tmp_path / "step", monkeypatch)
    assert cells(records)["concurrency=2/window=1"]["detail"]["files"] == ["report1.nsys-rep"]


def test_sglang_is_told_where_to_write_and_its_refusal_is_believed(
    tmp_path: Path, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with paced_server("--trace-dir", str(traces)) as url:
        routes = ENGINES["sglang"].profile_routes(str(traces), "torch")
        assert routes is not None
        own = {"start": routes.start, "stop": routes.stop, "start_body": routes.body, "accepted": routes.accepted}
        records = run_here(spec(url, traces, **own), tmp_path / "step", monkeypatch)
        body = json.loads(stamps(url)["profiled"][0]["body"])
    assert body == {"output_dir": str(traces), "activities": ["CPU", "GPU"], "with_stack": False}
    assert "answered 200: no text" in cells(records)["concurrency=2/window=1"]["reason"]


def test_check_file_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "rank0.pt.trace.json").write_bytes(b'{"traceEvents": [')
    assert all(problem.startswith("rank0.pt.trace.json: ") for problem in check_file(tmp_path / "rank0.pt.trace.json"))
    assert check_file(tmp_path / "rank0.pt.trace.json")
    assert check_file(tmp_path / "none.json")


def run_here(spec: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Run the stage in this process, with short waits."""
    monkeypatch.setattr(profile, "_SETTLE", 4.0)
    monkeypatch.setattr(profile, "_POLL", 0.2)
    folder.mkdir(parents=True)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Output(folder / "results.jsonl") as output:
            run_stage(profile.run, Spec.from_dict(spec), output)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return read_records(folder / "results.jsonl")

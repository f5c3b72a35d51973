"""report, compare, history, export, site and runs prune, run as people run them, over a real journal and history."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from opsctl.record import Standing
from opsctl.snapshots import History, record_run
from opsctl.snapshots.store import FILE
from tests.report import samples
from tests.report.journalled import store
from tests.snapshots.nights import FINGERPRINT, night
from tests.snapshots.test_changes import noisy

Opsctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("state")
    for run, scale in (("20261129-0100-kimi", 1.0), ("20261130-0100-kimi", 1.08)):
        record = samples.kimi_campaign(tmp_path_factory.mktemp("run"), run=run, scale=scale)
        store(record, home / "opsctl")
        record_run(
            record.model_copy(update={"started": f"{run[:4]}-{run[4:6]}-{run[6:8]}T01:00:00+00:00"}), home / "opsctl"
        )
    levels = [*noisy(12.0, 30, 1), *noisy(13.0, 10, 2)]
    with History(home / "opsctl" / FILE) as history:
        for index, level in enumerate(levels):
            print_ = FINGERPRINT if index < 40 else {**FINGERPRINT, "driver": "590"}
            history.add([night(index, level, host="nightly", output=12_000 / level, fingerprint=print_)])
        steady = (12.0, 12.1, 11.9, 12.05, 11.95, 12.02, 12.7)
        history.add([night(50 + index, level, half=None, host="steady") for index, level in enumerate(steady)])
        history.add([night(40, 13.1, host="nightly", fingerprint={**FINGERPRINT, "driver": "590.1"})])
    return home


@pytest.fixture
def opsctl(state: Path) -> Opsctl:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
            env={**os.environ, "XDG_STATE_HOME": str(state), "COLUMNS": "100", "NO_COLOR": "1"},
        )
        assert done.returncode == code, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return done

    return run


def document(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_report_writes_into_the_runs_folder_and_says_what_was_found(opsctl: Opsctl, state: Path) -> None:
    said = document(opsctl("report", "20261130", "--against", "20261129", "--json"))
    path = state / "opsctl/runs/20261130-0100-kimi/report.md"
    assert said["report"] == str(path)
    assert said["conclusive"] is True
    assert said["compared_with"] == "20261129-0100-kimi"
    text = path.read_text()
    assert said["finding"] in text
    assert "## Beside the last run" in text
    row = r"`concurrency=1` \| tpot\.p50 \| 11\.96 ms \| 12\.92 ms \| \+8\.0 % \| \+\d\.\d to \+\d+\.\d % \| \*\*larger"
    assert re.search(row, text), next(line for line in text.splitlines() if "tpot.p50 | 11.96" in line)


def test_report_as_html_and_to_standard_output(opsctl: Opsctl, tmp_path: Path) -> None:
    target = tmp_path / "new" / "run.html"
    opsctl("report", "20261130", "--format", "html", "--out", str(target))
    assert target.read_text().startswith("<!doctype html>")
    assert opsctl("report", "20261130", "--out", "-").stdout.startswith("# profile-campaign on kimi")


def test_the_report_of_a_run_that_left_production_down_exits_3(tmp_path: Path) -> None:
    record = samples.kimi_campaign(tmp_path / "run")
    down = record.production[0].model_copy(update={"standing": Standing.UNVERIFIED, "back_at": None})
    store(record.model_copy(update={"production": (down,), "exit_code": 3}), tmp_path / "opsctl")
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    for words in (["--format", "md"], ["-o", "-"], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", "report", *words],
            capture_output=True, text=True, check=False, timeout=110, env=env,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert "DOWN" in done.stdout or '"not verified"' in done.stdout


def test_report_says_what_is_wrong(opsctl: Opsctl, tmp_path: Path) -> None:
    assert "no run '2030'" in opsctl("report", "2030", code=2).stderr
    (tmp_path / "file").write_text("")
    assert "could not be written" in opsctl("report", "20261130", "-o", str(tmp_path / "file/x.md"), code=1).stderr


def test_compare_runs_with_intervals_and_verdicts(opsctl: Opsctl) -> None:
    compared = document(opsctl("compare", "20261129", "20261130", "--json"))["comparisons"]
    assert [item["service"] for item in compared] == [samples.BASE, "nothing"]
    figure = next(item for item in compared[0]["metrics"] if item["key"]["name"] == "tpot.p50")
    assert figure["verdict"] == "larger"
    assert figure["better"] is False
    assert figure["change_low"] < figure["change"] < figure["change_high"]
    text = opsctl("compare", "20261129", "20261130").stdout
    assert "concurrency=1 tpot.p50" in text
    assert "noise: spread within each run" in text
    assert "more figures: --all" in text


def test_compare_sets_the_exit_code(opsctl: Opsctl) -> None:
    done = opsctl("compare", "20261129", "20261130", "--fail-on", "tpot.p50 > +5%", code=1)
    assert "broken: serving-benchmark/concurrency=1/tpot.p50: +8.0 % breaks 'tpot.p50 > +5%'" in done.stdout
    opsctl("compare", "20261129", "20261130", "--fail-on", "tpot.p50 > +20%", "--fail-on", "*throughput < -20%")
    assert "concerns no figure" in opsctl("compare", "20261129", "20261130", "--fail-on", "x > +5%", code=2).stderr
    assert "cannot be read" in opsctl("compare", "20261129", "20261130", "--fail-on", "tpot", code=2).stderr


def test_compare_with_the_baseline_of_nights(opsctl: Opsctl) -> None:
    (compared,) = document(opsctl("compare", "baseline", "night-056", "--json"))["comparisons"]
    figure = next(item for item in compared["metrics"] if item["key"]["name"] == "tpot.p50")
    assert "6 nights" in figure["noise"]
    assert figure["verdict"] == "larger"
    assert "nothing to compare" in opsctl("compare", "baseline", "night-000", code=2).stderr


def test_compare_refuses_what_was_not_measured_alike_until_asked(opsctl: Opsctl) -> None:
    refused = opsctl("compare", "night-039", "night-040", code=2)
    assert "driver: 580.95.05 → 590.1" in refused.stderr
    done = opsctl("compare", "night-039", "night-040", "--force")
    assert "not alike driver: 580.95.05 → 590.1" in done.stdout
    assert done.stdout.index("not alike") < done.stdout.index("tpot.p50")


def test_history_in_the_terminal(opsctl: Opsctl) -> None:
    text = opsctl("history", "tpot.p50", "--host", "nightly").stdout
    assert any(bar in text for bar in "▁▂▃▄▅▆▇█")
    assert "change +" in text
    assert "(run night-03" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_history_for_programs(opsctl: Opsctl) -> None:
    (series,) = document(opsctl("history", "tpot.p50", "--host", "nightly", "--json"))["series"]
    assert len(series["points"]) == 41
    assert len(series["changes"]) == 1
    assert series["changes"][0]["relative"] == pytest.approx(1 / 12, abs=0.02)
    assert len(series["measured_differently_from"]) == 1
    rows = list(csv.DictReader(io.StringIO(opsctl("history", "tpot.p50", "--host", "nightly", "--csv").stdout)))
    assert len(rows) == 41
    assert float(rows[0]["value"]) == series["points"][0]["value"]


def test_history_of_what_is_not_there_names_what_is(opsctl: Opsctl) -> None:
    error = opsctl("history", "tpot.p5O", code=2).stderr
    assert re.search(r"nearest: .*tpot\.p50", error)


def test_export_reads_as_both_formats_of_prometheus(opsctl: Opsctl, tmp_path: Path) -> None:
    target = tmp_path / "opsctl.prom"
    opsctl("export", "-f", "openmetrics", "-o", str(target))
    text = target.read_text()
    assert text.endswith("# EOF\n")
    for parse in (open_metrics, plain_text):
        families = {family.name: family for family in parse(text)}
        mine = [
            sample
            for sample in families["opsctl_tpot_p50_seconds"].samples
            if sample.labels["host"] == "nightly" and sample.labels["cell"] == "concurrency=1"
        ]
        assert len(mine) == 1
        assert mine[0].value == pytest.approx(0.0131)
        assert "opsctl_gemm_bandwidth_bytes_per_second" in families
        assert "opsctl_snapshot_time_seconds" in families


def test_export_of_everything(opsctl: Opsctl) -> None:
    rows = list(csv.DictReader(io.StringIO(opsctl("export", "--host", "nightly").stdout)))
    lines = [json.loads(line) for line in opsctl("export", "-f", "jsonl", "--host", "nightly").stdout.splitlines()]
    assert len(rows) == len(lines) == 81
    assert {row["figure"] for row in rows} == {"tpot.p50", "output_throughput"}
    assert lines[0]["value"] == float(rows[0]["value"])


def test_site(opsctl: Opsctl, tmp_path: Path) -> None:
    said = document(opsctl("site", str(tmp_path / "www"), "--json"))
    assert said["runs"] == 2
    assert (tmp_path / "www/index.html").is_file()
    assert (tmp_path / "www/runs/20261130-0100-kimi.html").is_file()
    (tmp_path / "file").write_text("")
    assert "could not be written" in opsctl("site", str(tmp_path / "file"), code=1).stderr


def test_prune_keeps_figures_and_reports(opsctl: Opsctl, tmp_path: Path, state: Path) -> None:
    folder = state / "opsctl/runs/20261129-0100-kimi"
    (folder / "kernel-profile/rank0.pt.trace.json.gz").write_bytes(b"x" * 4096)
    (folder / "kernel-profile/link").symlink_to(tmp_path)
    (tmp_path / "precious").write_text("stays")
    (folder / "report.md").write_text("stays")
    planned = document(opsctl("runs", "prune", "--keep", "1", "--dry-run", "--json"))
    assert [item["run"] for item in planned["runs"]] == ["20261129-0100-kimi"]
    assert (folder / "kernel-profile/rank0.pt.trace.json.gz").exists()
    done = document(opsctl("runs", "prune", "--keep", "1", "--json"))
    assert done["freed_bytes"] >= 4096
    assert not (folder / "kernel-profile/rank0.pt.trace.json.gz").exists()
    assert (folder / "report.md").exists()
    assert (tmp_path / "precious").exists()
    assert document(opsctl("report", "20261129", "--json"))["conclusive"] is True
    assert document(opsctl("history", "tpot.p50", "--host", "kimi", "--cell", "concurrency=1", "--json"))["series"]

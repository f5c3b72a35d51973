from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.record import RunRecord
from opsctl.report import finding, render_markdown
from opsctl.report.numbers import amount, clock, count, digits, in_words, mean_of_few, plus_minus, share, with_spread
from opsctl.report.reading import read
from opsctl.report.traces import unique
from opsctl.results import Artifact, Cell, Figure, State, StepResult
from tests.report import samples


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.3456, "12.35"),
        (0.00123456, "0.001235"),
        (1234567.0, "1,234,567"),
        (0, "0"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (999.96, "1,000.0"),
        (-3.0, "-3.000"),
    ],
)
def test_digits(value: float | None, shown: str) -> None:
    assert digits(value) == shown


def test_numbers_in_words() -> None:
    assert (share(0.5153), count(9.0), count(9.25), amount(0.5, "ratio")) == ("51.5 %", "9", "9.25", "50.0 %")
    both = Figure(name="x", value=12.0, unit="ms", low=11.8, high=12.2, spread=0.4, samples=24)
    assert with_spread(both) == "12.00 ± 0.20"
    assert in_words(both) == "12.00 ms (95 % interval 11.80 to 12.20, 24 samples)"
    assert with_spread(both.model_copy(update={"low": None})) == "12.00 (s 0.40)"
    assert in_words(Figure(name="x", value=1.0, unit="s")) == "1.000 s (1 sample, no spread known)"
    assert clock("2026-11-30T01:00:00+00:00") == "2026-11-30 01:00:00 UTC"
    assert clock("soon") == "soon"


@pytest.mark.parametrize(
    ("value", "half", "shown"),
    [
        (6.374, 0.00043, "6.374 ± <0.001"),
        (12.3456, 0.21, "12.35 ± 0.21"),
        (12.3456, 2.1, "12.3 ± 2.1"),
        (4255.2, 31.0, "4,255 ± 31"),
        (123456.0, 4321.0, "123,500 ± 4,300"),
        (0.0012, 0.00011, "0.00120 ± 0.00011"),
        (3.0, 0.0, "3.000 ± <0.001"),
    ],
)
def test_a_value_ends_where_its_interval_begins(value: float, half: float, shown: str) -> None:
    assert plus_minus(value, half) == shown


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.406, 1.40602], "1.406"),
        ([0.0000015, 0.000003], "0.0000"),
        ([0.0, 0.0], "0"),
        ([12.1, 12.3, 12.2], "12.20 (12.10 to 12.30)"),
        ([12.0, 12.1, 12.2, 12.1, 12.1], "12.10 ± 0.09"),
    ],
)
def test_few_values_have_a_range_and_more_an_interval(values: list[float], shown: str) -> None:
    assert mean_of_few(values) == shown


def test_an_interval_that_no_time_can_have_is_replaced_by_the_range() -> None:
    tpot = Figure(name="tpot.p50", value=71.0, unit="ms", samples=12, low=-123.9, high=265.8, least=12.1, most=160.4)
    assert with_spread(tpot) == "spread too wide: 12 samples, 12.10 … 160.4"
    assert in_words(tpot) == "71.00 ms (spread too wide: 12 samples, 12.10 … 160.4)"
    wide = Figure(name="x", value=26.09, unit="us", samples=3, low=-2300.0, high=2352.0)
    assert with_spread(wide) == "spread too wide: 3 samples, half of the interval is 2,326"


def test_a_verified_cell_that_decides_nothing_is_not_green(tmp_path: Path) -> None:
    record = samples.lab_campaign(tmp_path)
    tpot = Figure(name="tpot.p50", value=71.0, unit="ms", samples=12, low=-123.9, high=265.8, least=12.1, most=160.4)
    cells = (Cell(id="concurrency=1", axes={"concurrency": 1}, state=State.VERIFIED, figures=(tpot,)),)
    text = render_markdown(changed(record, 0, 0, cells=cells))
    assert "*verified, not conclusive: tpot.p50*" in text
    assert "1 conclusive; every planned cell" in text, "the profile's window is; this cell is not"
    assert text.count("± is half of the 95 % confidence interval") == 1


def changed(record: RunRecord, phase: int, step: int, **update: Any) -> RunRecord:
    """Return the run with fields of one step's result changed."""
    old = record.phases[phase].steps[step]
    assert old.result is not None
    result = old.result.model_copy(update=update)
    steps = list(record.phases[phase].steps)
    steps[step] = old.model_copy(update={"result": result})
    phases = list(record.phases)
    phases[phase] = phases[phase].model_copy(update={"steps": tuple(steps)})
    return record.model_copy(update={"phases": tuple(phases)})


def section(text: str, title: str) -> str:
    start = text.index(f"## {title}")
    return text[start : text.find("\n## ", start + 3)]


ADVICE = {
    "topology": "8 GPUs, PCIe host bridges, no NVLink",
    "lines": ["8 tokens: tensor parallel, 3.21 ms of collectives a step against 9.87 ms with expert parallel"],
    "assumptions": ["experts are hit evenly"],
    "choices": [
        {
            "tokens": 8,
            "tensor_parallel_us": 3210.0,
            "expert_parallel_us": 9870.0,
            "missing": [],
            "settings": {"all_reduce": "NCCL_PROTO=LL128"},
        },
        {
            "tokens": 64,
            "tensor_parallel_us": None,
            "expert_parallel_us": None,
            "missing": ["all_to_all"],
            "settings": {},
        },
    ],
}


def test_advice_is_the_stages_own_with_its_assumptions(tmp_path: Path) -> None:
    record = changed(
        samples.kimi_campaign(tmp_path),
        1,
        1,
        detail={"advice": ADVICE, "findings": ["P2P is claimed and does not work"]},
    )
    text = section(render_markdown(record), "Advice")
    assert "3.21 ms of collectives a step against 9.87 ms" in text
    assert "experts are hit evenly" in text
    assert "P2P is claimed" in text
    assert "NCCL_PROTO=LL128" in text
    assert "| 64 | – | – | – | all_to_all |" in text


def test_without_measured_collectives_nothing_is_advised(tmp_path: Path) -> None:
    text = section(render_markdown(samples.lab_campaign(tmp_path)), "Advice")
    assert "None: advice on parallelism comes from collectives measured" in text


def test_the_sum_of_a_steps_products_stands_beside_its_floor(tmp_path: Path) -> None:
    sums = [
        {"tokens": 1, "gemm_us_per_step": 7200.0, "weight_floor_us": 4000.0, "missing": []},
        {"tokens": 64, "gemm_us_per_step": 40000.0, "weight_floor_us": None, "missing": ["routed w13"]},
    ]
    record = changed(samples.kimi_campaign(tmp_path), 1, 0, detail={"sums": sums})
    text = section(render_markdown(record), "Matrix products against")
    assert "| 1 | 7.200 | 4.000 | 1.80 × | nothing |" in text
    assert "| 64 | 40.00 | – | – | routed w13 |" in text


def with_documents(tmp_path: Path, **update: Any) -> RunRecord:
    record = samples.kimi_campaign(tmp_path)
    for path in (tmp_path / "kernel-profile/2-profile").glob("trace-concurrency=1-*.json"):
        document = json.loads(path.read_text())
        document["steps"]["decode"] |= update
        path.write_text(json.dumps(document))
    return record


def test_windows_that_are_too_short_make_no_conclusive_finding(tmp_path: Path) -> None:
    because = "steps vary by 26.2% over 149 steps"
    found = finding(with_documents(tmp_path, verdict="inconclusive", verdict_because=because))
    assert not found.conclusive
    assert found.sentence.endswith(f"Inconclusive in 3 of 3 windows: {because}.")
    text = render_markdown(
        with_documents(tmp_path, verdict="inconclusive", verdict_because=because, dropped=1, dropped_because="warm-up")
    )
    assert f"*inconclusive: {because} (1 first step dropped: warm-up)*" in text


def test_the_front_ends_file_is_no_rank(tmp_path: Path) -> None:
    record = samples.lab_campaign(tmp_path)
    path = tmp_path / "kernel-profile/1-profile/trace-1.json"
    document = json.loads(path.read_text())
    document["ranks"].append({"rank": None, "file": "x.async_llm.1.pt.trace.json.gz", "role": "front end", "events": 7})
    document["method"] = "vLLM's step markers"
    document["other"] = [{"name": "aten::slice", "share_of_sum": 0.0084}]
    path.write_text(json.dumps(document))
    text = render_markdown(record)
    assert "async_llm" not in text
    assert "Steps told apart by vLLM's step markers" in text
    assert "| `aten::slice` | 0.8 % |" in text


def test_a_file_that_is_named_twice_is_one_file(tmp_path: Path) -> None:
    here = samples.write_artifact(tmp_path, "kernel-profile-1-profile/trace-a.json", "{}", "trace-analysis")
    on_the_host = here.model_copy(update={"path": "trace-a.json"})
    only_there = Artifact(path="traces/a/rank0.gz", size=5, sha256="f" * 64, kind="trace")
    assert unique([on_the_host, here, only_there], tmp_path) == [here, only_there]
    assert unique([here, on_the_host], tmp_path) == [here]
    record = samples.lab_campaign(tmp_path / "run")
    step = record.phases[1].steps[0]
    assert step.result is not None
    twice = (step.result.artifacts[0].model_copy(update={"path": "trace-1.json"}), *step.result.artifacts)
    traces = read(changed(record, 1, 0, artifacts=twice)).traces
    assert (len(traces.readings), traces.problems) == (1, ())


def test_several_hosts_and_rounds_are_told_apart(tmp_path: Path) -> None:
    record = samples.kimi_campaign(tmp_path)
    first = record.phases[0]
    phases = (first, first.model_copy(update={"round": 2}), first.model_copy(update={"host": "kimi-2"}))
    text = render_markdown(record.model_copy(update={"phases": phases}))
    for place in ("on kimi, round 1", "on kimi, round 2", "on kimi-2, round 1"):
        assert f"baseline/1-serving-benchmark {place}" in text


def test_a_step_without_a_result_is_in_the_scope(tmp_path: Path) -> None:
    record = samples.kimi_campaign(tmp_path)
    step = record.phases[0].steps[0].model_copy(update={"result": None, "state": State.PENDING})
    phase = record.phases[0].model_copy(update={"steps": (step,)})
    text = render_markdown(record.model_copy(update={"phases": (phase,)}))
    assert "step baseline/1-serving-benchmark, which has no result" in text


def test_other_stages_figures_are_listed(tmp_path: Path) -> None:
    record = samples.lab_campaign(tmp_path)
    cell = samples.serving_cell(1).model_copy(
        update={"figures": (Figure(name="nccl.busbw", value=41.5, unit="GB/s", formula="results.json#busbw"),)}
    )
    step = (
        record.phases[0]
        .steps[0]
        .model_copy(
            update={"stage": "command", "result": StepResult(stage="command", state=State.VERIFIED, cells=(cell,))}
        )
    )
    phase = record.phases[0].model_copy(update={"steps": (step,)})
    text = section(render_markdown(record.model_copy(update={"phases": (phase,)})), "Other measurements")
    assert "| nccl.busbw | 41.50 GB/s | – | 1 | results.json\\#busbw |" in text


def test_the_environment_stands_once_and_a_step_adds_what_differs(tmp_path: Path) -> None:
    record = samples.lab_campaign(tmp_path)
    facts = {"torch": "2.13", "topology": "\x1b[4mGPU0 NUMA\x1b[0m 0-15"}
    record = changed(record, 0, 0, environment={**facts, "gloo": "yes"})
    text = render_markdown(record.model_copy(update={"environment": {"lab-1": facts}}))
    assert text.count("| topology | `GPU0 NUMA 0-15` |") == 1
    step = text[text.index("Environment of baseline/1-serving-benchmark, where it differs") :]
    assert "| gloo | `yes` |" in step

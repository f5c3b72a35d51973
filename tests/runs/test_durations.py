from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.playbook.hashing import content_hash
from opsctl.results import State, StepResult
from opsctl.runs import durations
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.stages.gemm import Gemm

OPTIONS = Gemm(tokens=(1, 8))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as made:
        made.begin_run("r", playbook="p", file="p.yml", version="1", definition={})
        yield made


def add_step(journal: Journal, position: int, state: State, ended: str, options: Gemm = OPTIONS) -> None:
    planned = StepResult(stage="gemm", state=State.PENDING)
    journal.step(
        "r", "h", 0, position, id_=f"s{position}", stage="gemm", name="g", options=options, hash_="x", planned=planned
    )
    journal._db.execute(
        "UPDATE steps SET state=?, started='2026-12-01T02:00:00+00:00', ended=? WHERE position=?",
        (str(state), ended, position),
    )


def test_steps_are_known_by_what_they_ask_for(journal: Journal) -> None:
    add_step(journal, 0, State.VERIFIED, "2026-12-01T02:01:00+00:00")
    add_step(journal, 1, State.VERIFIED, "2026-12-01T02:01:02+00:00")
    add_step(journal, 2, State.FAILED, "2026-12-01T02:00:01+00:00")
    add_step(journal, 3, State.VERIFIED, "2026-12-01T02:00:05+00:00", Gemm(tokens=(1,)))
    found = durations.steps(journal, "h")
    assert found[content_hash(OPTIONS)].seconds == 61.0
    assert found[content_hash(OPTIONS)].samples == 2
    assert found[content_hash(Gemm(tokens=(1,)))].seconds == 5.0
    assert durations.steps(journal, "elsewhere") == {}


def test_options_that_are_none_any_more_say_nothing(journal: Journal) -> None:
    add_step(journal, 0, State.VERIFIED, "2026-12-01T02:01:00+00:00")
    journal._db.execute("UPDATE steps SET options='{\"tokenz\": [1]}'")
    assert durations.steps(journal, "h") == {}


def test_only_loads_that_became_ready_count(journal: Journal) -> None:
    for seconds, outcome in ((100.0, "ready"), (102.0, "ready"), (3.0, "LoadFailed: it died")):
        load = journal.begin_load("r", "h", service="prod", unit="prod.service", attempt=1)
        journal.end_load(load, outcome=outcome, seconds=seconds)
    (name, estimate), *rest = durations.loads(journal, "h").items()
    assert rest == []
    assert (name, estimate.seconds, estimate.samples) == ("prod", 101.0, 2)


def test_the_estimate_of_loads_is_a_median_with_the_longest_of_each_phase(journal: Journal) -> None:
    for seconds in (100.0, 110.0, 150.0):
        load = journal.begin_load("r", "h", service="prod", unit="prod.service", attempt=1)
        journal.end_load(load, outcome="ready", seconds=seconds, phases={"weights": seconds * 0.8})
    estimate = durations.loads(journal, "h")["prod"]
    assert (estimate.seconds, estimate.samples, estimate.slowest) == (110.0, 3, 150.0)
    assert str(estimate) == "1m 50s ± 26.5 s (n=3)"
    assert dict(estimate.longest_phases) == {"weights": pytest.approx(120.0)}
    assert estimate.slower_than_ever(151)
    assert not estimate.slower_than_ever(149)
    assert durations.loads(journal, "h", before=3)["prod"].seconds == 105.0
    assert durations.loads(journal, "elsewhere") == {}


def test_a_run_is_shown_beside_what_its_loads_took_before(journal: Journal) -> None:
    for run, seconds in (("r", 100.0), ("s", 300.0)):
        if run != "r":
            journal.begin_run(run, playbook="p", file="p.yml", version="1", definition={})
        load = journal.begin_load(run, "h", service="prod", unit="prod.service", attempt=1)
        journal.end_load(load, outcome="ready", seconds=seconds)
    assert [load.usual for load in load_run(journal, "r").loads] == [None]
    assert [load.usual for load in load_run(journal, "s").loads] == [100.0]


def test_a_stop_ends_when_the_gpus_are_free(journal: Journal) -> None:
    for time, event, data in (
        ("02:00:00", "service.stopping", '{"service": "prod"}'),
        ("02:00:09", "gpus.free", "{}"),
        ("02:10:00", "service.stopping", '{"service": "v"}'),
        # It never got free: no sample.
        ("02:20:00", "service.stopping", '{"service": "prod"}'),
        ("02:20:11", "gpus.free", "{}"),
    ):
        journal._db.execute(
            "INSERT INTO events (run, time, event, host, phase, step, message, data) VALUES ('r',?,?,'h','','','',?)",
            (f"2026-12-01T{time}+00:00", event, data),
        )
    found = durations.stops(journal, "h")
    assert {name: (one.seconds, one.samples) for name, one in found.items()} == {"prod": (10.0, 2)}


def test_only_the_latest_count(journal: Journal) -> None:
    for number in range(30):
        load = journal.begin_load("r", "h", service="prod", unit="prod.service", attempt=1)
        journal.end_load(load, outcome="ready", seconds=1000.0 if number < 10 else 10.0)
    assert durations.loads(journal, "h")["prod"].seconds == 10.0

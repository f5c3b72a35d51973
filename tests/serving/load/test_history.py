"""History of loads, in a real SQLite file; and the stall limits that follow from it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from opsctl.engines.phases import LoadPhase
from opsctl.errors import JournalError
from opsctl.lab.units import Standin
from opsctl.playbook.models import Readiness
from opsctl.serving.load.history import LoadHistory
from opsctl.serving.load.stalls import GENEROUS, LEAST, StallLimits
from tests.serving.conftest import service_for

SERVICE = service_for(Standin(), host="gpu07", readiness=Readiness())


@pytest.fixture
def history(tmp_path: Path) -> LoadHistory:
    return LoadHistory(tmp_path / "state" / "loads.sqlite")


def add(history: LoadHistory, seconds: float, version: str = "0.32.0", **about: str) -> None:
    phases = {"weights": seconds * 0.8, "after weights": seconds * 0.2}
    history.add(
        host=about.get("host", "gpu07"),
        service=about.get("service", SERVICE.name),
        seconds=seconds,
        version=version,
        phases=phases,
    )


def test_without_any_load_nothing_is_estimated(history: LoadHistory) -> None:
    assert history.estimate(host="gpu07", service=SERVICE.name) is None
    assert not history.path.exists(), "looking makes no file"


def test_an_estimate_has_its_spread_and_its_count(history: LoadHistory) -> None:
    for seconds in (100.0, 110.0, 150.0):
        add(history, seconds)
    estimate = history.estimate(host="gpu07", service=SERVICE.name, version="0.32.0")
    assert estimate is not None
    assert (estimate.seconds, estimate.samples, estimate.fastest, estimate.slowest) == (110.0, 3, 100.0, 150.0)
    assert estimate.spread == pytest.approx(26.46, abs=0.01)
    assert estimate.phases["weights"] == pytest.approx(88.0)
    assert str(estimate) == "1m 50s ± 26.5 s (n=3)"
    assert estimate.remaining(40) == 70.0
    assert estimate.remaining(200) == 0.0
    assert estimate.slower_than_ever(151)
    assert not estimate.slower_than_ever(149)


def test_one_load_has_no_spread(history: LoadHistory) -> None:
    add(history, 100.0)
    estimate = history.estimate(host="gpu07", service=SERVICE.name)
    assert estimate is not None
    assert estimate.spread is None


def test_this_version_comes_first_and_others_stand_in(history: LoadHistory) -> None:
    add(history, 100.0, "0.30.0")
    add(history, 200.0, "0.32.0")
    same = history.estimate(host="gpu07", service=SERVICE.name, version="0.32.0")
    other = history.estimate(host="gpu07", service=SERVICE.name, version="0.33.0")
    assert same is not None
    assert other is not None
    assert (same.seconds, same.version) == (200.0, "0.32.0")
    assert (other.seconds, other.version, other.samples) == (150.0, "", 2)


def test_hosts_and_services_do_not_mix(history: LoadHistory) -> None:
    add(history, 100.0, host="gpu08")
    add(history, 100.0, service="other")
    assert history.estimate(host="gpu07", service=SERVICE.name) is None


def test_stalls_follow_from_the_longest_phase_so_far(history: LoadHistory) -> None:
    add(history, 1000.0)
    add(history, 500.0)
    limits = history.stalls(SERVICE)
    assert limits.seconds[LoadPhase.WEIGHTS] == 3 * 800.0
    assert limits.seconds[LoadPhase.AFTER_WEIGHTS] == 3 * 200.0
    assert limits.seconds[LoadPhase.ENGINE_INIT] == GENEROUS[LoadPhase.ENGINE_INIT], "a phase that was never seen"
    assert "2 earlier loads" in limits.source
    assert not limits.explicit


def test_a_short_phase_keeps_a_floor(history: LoadHistory) -> None:
    add(history, 1.0)
    assert history.stalls(SERVICE).seconds[LoadPhase.WEIGHTS] == LEAST


def test_without_history_the_limits_are_generous_and_say_so(history: LoadHistory) -> None:
    limits = history.stalls(SERVICE)
    assert limits.seconds == GENEROUS
    assert "no earlier load" in limits.source


def test_the_users_limit_holds_for_every_phase() -> None:
    limits = StallLimits.for_service(service_for(Standin(), readiness=Readiness(stall=7.0)), {"weights": 9.0}, 3)
    assert set(limits.seconds.values()) == {7.0}
    assert limits.explicit


def test_a_file_that_is_no_database_is_an_error_with_its_path(history: LoadHistory) -> None:
    history.path.parent.mkdir()
    history.path.write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(JournalError) as raised:
        history.estimate(host="gpu07", service=SERVICE.name)
    assert str(history.path) in str(raised.value.where)


def test_what_was_added_is_on_disk_at_once(history: LoadHistory) -> None:
    add(history, 100.0)
    base = sqlite3.connect(history.path)
    try:
        assert base.execute("SELECT count(*) FROM loads").fetchone() == (1,)
    finally:
        base.close()

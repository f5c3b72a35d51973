"""How long a phase may stand still: the user's word, else earlier loads, else generous."""

from __future__ import annotations

from opsctl.estimate import Estimate
from opsctl.lab.units import Standin
from opsctl.playbook.models import Readiness
from opsctl.serving.load.progress import LoadPhase
from opsctl.serving.load.stalls import GENEROUS, LEAST, StallLimits
from tests.serving.conftest import service_for

SERVICE = service_for(Standin(), host="gpu07", readiness=Readiness())


def test_stalls_follow_from_the_longest_phase_so_far() -> None:
    loads = Estimate.of((1000.0, 500.0), ({"weights": 800.0, "after weights": 200.0}, {"weights": 400.0}))
    limits = StallLimits.for_service(SERVICE, loads)
    assert limits.seconds[LoadPhase.WEIGHTS] == 3 * 800.0
    assert limits.seconds[LoadPhase.AFTER_WEIGHTS] == 3 * 200.0
    assert limits.seconds[LoadPhase.ENGINE_INIT] == GENEROUS[LoadPhase.ENGINE_INIT], "a phase that was never seen"
    assert "2 earlier loads" in limits.source
    assert not limits.explicit


def test_a_short_phase_keeps_a_floor() -> None:
    loads = Estimate.of((1.0,), ({"weights": 0.8},))
    assert StallLimits.for_service(SERVICE, loads).seconds[LoadPhase.WEIGHTS] == LEAST


def test_without_earlier_loads_the_limits_are_generous_and_say_so() -> None:
    limits = StallLimits.for_service(SERVICE)
    assert limits.seconds == GENEROUS
    assert "no earlier load" in limits.source


def test_the_users_limit_holds_for_every_phase() -> None:
    service = service_for(Standin(), readiness=Readiness(stall=7.0))
    limits = StallLimits.for_service(service, Estimate.of((9.0,), ({"weights": 9.0},)))
    assert set(limits.seconds.values()) == {7.0}
    assert limits.explicit

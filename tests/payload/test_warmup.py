"""When a warm-up ends: from the seconds that its waves take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from opsctl.payload.warmup import MOST_WAVES, is_steady, streams_of, warm_up


@pytest.mark.parametrize(
    ("seconds", "steady"),
    [
        ([], False),
        ([9.0], False),
        ([9.0, 4.0], False),
        ([9.0, 4.0, 4.1], True),
        ([4.0, 9.0], False),
        ([0.010, 0.045], True),
        ([10.0, 9.05], True),
        ([10.0, 8.9], False),
    ],
)
def test_two_waves_that_take_equally_long_are_steady(seconds: list[float], steady: bool) -> None:
    assert is_steady(seconds) is steady


def warmed(seconds: Sequence[float], *, left: float = 1e9) -> tuple[object, list[tuple[int, int]]]:
    sent: list[tuple[int, int]] = []
    times = iter(seconds)

    def send(streams: int, count: int) -> float:
        sent.append((streams, count))
        return next(times)

    return warm_up(send, 8, at_least=2, time_left=lambda: left), sent


def test_a_server_that_compiles_for_two_waves_gets_four() -> None:
    made, sent = warmed([30.0, 12.0, 5.0, 5.1])
    assert sent == [(8, 16)] * 4
    assert str(made) == "4 waves, 64 requests, 52.1 s, steady"


def test_a_server_that_is_warm_gets_two() -> None:
    made, sent = warmed([5.0, 5.1])
    assert len(sent) == 2
    assert str(made).endswith("steady")


def test_one_that_never_is_steady_is_measured_and_told() -> None:
    made, sent = warmed([2.0 ** (wave % 2) for wave in range(MOST_WAVES)])
    assert len(sent) == MOST_WAVES
    assert str(made).endswith("not steady yet")


def test_no_wave_begins_that_would_not_end_in_time() -> None:
    made, sent = warmed([30.0, 12.0], left=20.0)
    assert len(sent) == 1
    assert str(made) == "1 waves, 16 requests, 30.0 s, not steady yet"


def test_an_open_loop_has_as_many_in_flight_as_arrive_during_one() -> None:
    assert [streams_of(4.0, 2.6), streams_of(0.1, 1.0), streams_of(1000.0, 5.0)] == [11, 1, 256]

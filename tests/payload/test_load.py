import time
from itertools import pairwise

import pytest

from opsctl.payload.errors import PayloadError
from opsctl.payload.load import Offer, offer_load, poisson_arrivals
from opsctl.payload.serving_benchmark import request_body
from tests.payload.pacing import paced_server, stamps


def bodies(count: int, tokens: int = 5) -> list[bytes]:
    return [request_body("paced", f"prompt {index}", tokens) for index in range(count)]


@pytest.mark.parametrize("processes", [1, 2])
def test_closed_loop_keeps_so_many_in_flight(processes: int) -> None:
    with paced_server(ttft=0.05, interval=0.01) as url:
        load = offer_load(Offer(url, bodies(24), concurrency=6), processes=processes, limit=60)
        seen = stamps(url)
    assert load.processes == processes
    assert [exchange.error for exchange in load.exchanges] == [""] * 24
    assert seen["prompts"] == 24  # each body was sent once
    flying, most = 0, 0
    events = sorted([(e.sent, 1) for e in load.exchanges] + [(e.ended, -1) for e in load.exchanges])
    for _, step in events:
        flying += step
        most = max(most, flying)
    assert most == 6


def test_open_loop_sends_at_its_times_whatever_the_server_does() -> None:
    arrivals = poisson_arrivals(40.0, 20, seed=7)
    with paced_server("--fault", "stall", ttft=0.2, interval=0.05) as url:
        load = offer_load(Offer(url, bodies(20), arrivals=arrivals, request_limit=1.5), limit=60)
    # A stalled third holds nobody up: each request is sent at its arrival, not when another has ended.
    lags = sorted(exchange.sent - exchange.scheduled for exchange in load.exchanges)
    assert len(lags) == 20
    assert lags[len(lags) // 2] < 0.05
    assert sum(bool(exchange.error) for exchange in load.exchanges) == 6


def test_a_duration_ends_the_round() -> None:
    with paced_server(ttft=0.02, interval=0.002) as url:
        load = offer_load(Offer(url, bodies(5000), concurrency=2, duration=1.0), limit=60)
    assert 10 < len(load.exchanges) < 200
    assert not load.exhausted
    assert max(exchange.sent for exchange in load.exchanges) - load.started < 1.2


def test_running_out_of_prompts_is_told() -> None:
    with paced_server(ttft=0.001, interval=0.001) as url:
        load = offer_load(Offer(url, bodies(3), concurrency=1, duration=30.0), limit=60)
    assert load.exhausted
    assert len(load.exchanges) == 3


def test_the_limit_ends_it() -> None:
    began = time.monotonic()
    with paced_server(ttft=30) as url, pytest.raises(PayloadError, match="did not end within 1 s"):
        offer_load(Offer(url, bodies(2), concurrency=2), limit=1.0)
    assert time.monotonic() - began < 10


def test_progress_counts_up() -> None:
    told: list[tuple[int, int]] = []
    with paced_server(ttft=0.05) as url:
        offer_load(Offer(url, bodies(30), concurrency=3), limit=60, progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (30, 30)
    assert all(a[0] <= b[0] for a, b in pairwise(told))


def test_poisson_arrivals_have_their_rate_and_their_seed() -> None:
    times = poisson_arrivals(5.0, 4000, seed=3)
    gaps = [b - a for a, b in pairwise(times)]
    assert times == poisson_arrivals(5.0, 4000, seed=3) != poisson_arrivals(5.0, 4000, seed=4)
    assert sum(gaps) / len(gaps) == pytest.approx(0.2, rel=0.05)
    # Of an exponential distribution the standard deviation is the mean.
    variance = sum((gap - 0.2) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(0.2, rel=0.1)

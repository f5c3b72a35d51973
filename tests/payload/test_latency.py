import pytest

from opsctl.payload.latency import Window, figures, measure_round, series, steady_window, summarise, tokens_within
from opsctl.payload.sse import Exchange


def made(sent: float, ttft: float, gaps: list[float], *, tokens: int | None = None, error: str = "") -> Exchange:
    first = sent + ttft
    last = first + sum(gaps)
    return Exchange(
        0,
        scheduled=sent,
        sent=sent,
        first=first,
        last=last,
        ended=last,
        gaps=gaps,
        status=200,
        prompt_tokens=10,
        output_tokens=len(gaps) + 1 if tokens is None else tokens,
        error=error,
    )


def test_tpot_is_vllms_definition() -> None:
    found = series([made(0.0, 0.1, [0.01] * 10)])
    assert found["ttft"] == [pytest.approx(100)]
    assert found["tpot"] == [pytest.approx(10)]
    assert found["e2el"] == [pytest.approx(200)]
    assert found["itl"] == pytest.approx([10] * 10)


def test_tokens_come_from_usage_not_from_chunks() -> None:
    # Speculative decoding: 5 gaps, 11 tokens.
    found = series([made(0.0, 0.1, [0.02] * 5, tokens=11)])
    assert found["tpot"] == [pytest.approx(10)]


def test_one_token_has_no_tpot() -> None:
    assert series([made(0.0, 0.1, [])])["tpot"] == []


def test_failed_requests_enter_no_latency_and_count_apart() -> None:
    result = measure_round([made(0, 0.1, [0.01] * 9), made(0, 9.0, [9.0], error="cut")], started=0.0, asked_output=10)
    assert (result.completed, result.failed, result.output_tokens) == (1, 1, 10)
    assert result.statistics["ttft"]["p99"] == pytest.approx(100)
    assert result.duration == pytest.approx(18)
    assert result.rates["request_throughput"] == pytest.approx(1 / 18)


def test_steady_window_leaves_ramp_and_drain_out() -> None:
    # Two streams: the second starts at 1, the first one's last request ends at 8, the second's at 10.
    exchanges = [made(0, 1, [3.0]), made(1, 1, [4.0]), made(4, 1, [3.0]), made(6, 1, [3.0])]
    window = steady_window(exchanges, 2)
    assert window == Window(1, 8)


def test_never_steady_is_none() -> None:
    assert steady_window([made(0, 1, [1.0]), made(5, 1, [1.0])], 2) is None


def test_tokens_within_a_window() -> None:
    exchange = made(0, 1, [1.0] * 9, tokens=20)  # ten chunks at 1…10, two tokens each
    assert tokens_within(exchange, Window(3, 6)) == 8


def test_goodput_wants_every_limit() -> None:
    exchanges = [made(0, 0.1, [0.01] * 9), made(0, 0.1, [0.05] * 9), made(0, 0.5, [0.01] * 9)]
    result = measure_round(exchanges, started=0, asked_output=10, slo={"ttft": 0.2, "tpot": 0.02})
    assert result.rates["goodput"] == pytest.approx(1 / result.duration)


def test_short_answers_are_counted() -> None:
    assert measure_round([made(0, 0.1, [0.1], tokens=2)], started=0, asked_output=3).short == 1


def test_figures_carry_the_interval_over_rounds() -> None:
    rounds = [
        measure_round([made(0, ttft, [0.01] * 9)], started=0, asked_output=10, concurrency=1)
        for ttft in (0.1, 0.11, 0.12)
    ]
    by_name = {figure.name: figure for figure in figures(rounds)}
    p50 = by_name["ttft.p50"]
    assert p50.value == pytest.approx(110)
    assert (p50.unit, p50.samples) == ("ms", 3)
    assert p50.low == pytest.approx(110 - 4.303 * 10 / 3**0.5, rel=1e-3)
    assert "mean over 3 rounds" in p50.formula
    assert by_name["tpot.mean"].formula.count("(E2EL − TTFT) / (output tokens − 1)") == 1
    assert by_name["output_throughput"].unit == "tok/s"
    assert by_name["request_throughput"].unit == "req/s"
    assert by_name["achieved_concurrency"].unit == "count"


def test_summary_has_vllms_statistics() -> None:
    assert summarise([1.0, 2.0, 3.0, 4.0]) == {
        "mean": 2.5,
        "std": pytest.approx(1.1180, abs=1e-4),
        "p50": 2.5,
        "p90": pytest.approx(3.7),
        "p95": pytest.approx(3.85),
        "p99": pytest.approx(3.97),
    }

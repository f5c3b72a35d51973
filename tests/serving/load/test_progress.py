"""Progress read from a real log, and from composed ones in the wording of other versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.engines import ENGINES
from opsctl.engines.lines import split
from opsctl.engines.phases import LoadPhase
from opsctl.host.protocol import JournalLine
from opsctl.serving.load.progress import LoadParser, LoadProgress

VLLM = ENGINES["vllm"]

LOGS = Path(__file__).parents[2] / "data" / "logs"
ALL_PHASES = ["spawned", "engine init", "weights", "after weights", "HTTP up"]


def parse(path: Path, *, until: str = "Application startup complete") -> tuple[LoadParser, list[LoadProgress]]:
    parser, states = LoadParser(1000.0, ENGINES[path.name.partition("-")[0]]), []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        parser.feed(line, 1000.0 + number)
        states.append(parser.state)
        if until in line:
            break
    return parser, states


@pytest.mark.parametrize(
    ("name", "shards", "gib", "version"),
    [
        ("vllm-0.32-cpu-tp2-startup.log", 6, 0.02, "0.32.0"),
        ("composed/vllm-0.6-gpu-tp2.log", 4, 7.5122, "0.6.3"),
        ("composed/vllm-0.20-gpu-compile.log", 64, 72.1, "0.20.1"),
        ("composed/sglang-0.5-tp8.log", 64, 72.95, None),
    ],
)
def test_a_whole_log_goes_through_every_phase(name: str, shards: int, gib: float, version: str | None) -> None:
    parser, states = parse(LOGS / name)
    final = parser.state
    assert list(final.seconds_by_phase) == ALL_PHASES
    assert all(seconds > 0 for seconds in final.seconds_by_phase.values())
    assert (final.shards_done, final.shards_total) == (shards, shards)
    assert final.gib == gib
    assert final.version == version
    assert final.fatal is None
    ranks = [state.phase.rank for state in states]
    assert ranks == sorted(ranks), "a load never goes back a phase"


def test_phases_are_timed_by_the_lines_that_begin_them() -> None:
    parser = LoadParser(0.0, VLLM)
    parser.feed("(APIServer pid=1) INFO 12-01 01:18:32 [api_utils.py:286] non-default args: {'port': 8001}", 5.0)
    parser.feed("(Worker_TP0 pid=2) INFO 12-01 01:18:59 [x.py:68] Starting to load model /models/tiny...", 30.0)
    parser.feed("(Worker_TP0 pid=2) INFO 12-01 01:18:59 [x.py:501] Loading weights took 70.03 seconds", 100.0)
    parser.tick(110.0)
    assert parser.state.seconds_by_phase == {"spawned": 5, "engine init": 25, "weights": 70, "after weights": 10}


def test_rate_and_eta_come_from_the_last_updates() -> None:
    parser = LoadParser(0.0, VLLM)
    for done in range(30):
        line = f"Loading safetensors checkpoint shards: 45% Completed | {done}/64 [05:12<06:20, 10.86s/it]"
        parser.feed(line, 10.0 * done)
    state = parser.state
    assert state.phase is LoadPhase.WEIGHTS
    assert state.rate == pytest.approx(0.1)
    assert state.eta == pytest.approx(350.0)
    assert state.text == "weights 29/64 shards, 0.1 shards/s, 5m 50s left"


def test_updates_between_carriage_returns_in_one_entry_are_all_seen() -> None:
    bar = "Loading safetensors checkpoint shards: {}% Completed | {}/4 [00:00<00:00, 1.0it/s]"
    entry = "\r" + bar.format(25, 1) + "\r" + bar.format(50, 2) + "\r\n" + bar.format(75, 3)
    parser = LoadParser(0.0, VLLM)
    parser.feed(JournalLine(time=7.0, message=entry))
    assert parser.state.shards_done == 3
    assert parser.state.rate is None, "updates at one instant have no rate"


def test_colour_codes_are_no_part_of_a_line() -> None:
    assert split("\x1b[1;36m(EngineCore)\x1b[0;0m INFO\r\n") == ("(EngineCore) INFO",)


def test_a_rank_that_lags_never_takes_the_load_back() -> None:
    parser = LoadParser(0.0, VLLM)
    parser.feed("Loading safetensors checkpoint shards: 100% Completed | 4/4 [00:40<00:00, 10.00s/it]", 10.0)
    parser.feed("INFO 12-01 01:18:59 [x.py:1] Loading weights took 3.0 seconds", 11.0)
    parser.feed("Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:20<00:20, 10.02s/it]", 12.0)
    parser.feed("INFO [x.py:68] Starting to load model /models/tiny...", 13.0)
    state = parser.state
    assert (state.phase, state.shards_done) == (LoadPhase.AFTER_WEIGHTS, 4)


def test_lines_that_say_nothing_new_are_no_movement() -> None:
    parser = LoadParser(0.0, VLLM)
    parser.feed("INFO [x.py] Available KV cache memory: 9 GiB", 10.0)
    for minute in range(1, 60):
        parser.feed(
            "INFO [shm_broadcast.py:466] No available shared memory broadcast block found in 60 seconds.", 60.0 * minute
        )
        parser.feed('INFO:     127.0.0.1:43782 - "GET /health HTTP/1.1" 200 OK', 60.0 * minute)
    assert parser.state.moved == 10.0
    assert parser.state.fatal is None


def test_graph_capture_moves_by_its_counter() -> None:
    parser = LoadParser(0.0, VLLM)
    parser.feed("Capturing CUDA graphs (decode, FULL):  10%|#   | 3/35 [00:01<00:09, 3.4it/s]", 5.0)
    parser.feed("Capturing CUDA graphs (decode, FULL):  50%|#   | 17/35 [00:05<00:05, 3.4it/s]", 9.0)
    assert parser.state.moved == 9.0
    assert parser.state.last_mark == "Capturing CUDA graphs (decode, FULL) 17/35"


def test_what_was_seen_elsewhere_counts() -> None:
    parser = LoadParser(0.0, VLLM)
    parser.reached(LoadPhase.FIRST_TOKENS, 12.0, "the model is listed")
    parser.tick(15.0)
    parser.finish(16.0)
    assert parser.state.seconds_by_phase == {"spawned": 12.0, "first tokens": 4.0}


def test_unknown_lines_change_nothing_and_are_never_fatal() -> None:
    parser = LoadParser(0.0, VLLM)
    before = parser.state
    for line in ("", "\r\r\r", "hello", "█ █ █▄", "Traceback of a thought", "\x1b[31m", "x" * 100_000, "0/0 [", "50%|"):
        parser.feed(line, 0.0)
    assert parser.state == before

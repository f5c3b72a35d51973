"""Each fault, on a running stand-in: what it looks like from outside is what facts say a real server looks like."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
import zlib
from pathlib import Path

import httpx
import pytest

from opsctl.lab.standin.faults import FAULTS, of_this_start, parse
from tests.lab.standin.running import Running, standin


def profile(running: Running) -> httpx.Response:
    """Start the profiler, decode a little, stop it."""
    with running.client() as client:
        assert client.post("/start_profile").status_code == 200
        running.completion(max_tokens=6)
        return client.post("/stop_profile")


def ranks(running: Running) -> dict[int, Path]:
    found = running.traces.glob("rank*.pt.trace.json.gz")
    return {int(path.name.split(".")[0].removeprefix("rank")): path for path in found}


def test_names_and_values() -> None:
    faults = parse("dies-at-shard, slow-stop-profile=2.5")
    assert faults.value("dies-at-shard") == 3
    assert faults.value("slow-stop-profile") == 2.5
    assert faults.value("stuck-at-shard") is None
    assert parse(faults.text()) == faults
    with pytest.raises(ValueError, match="did you mean cut-rank"):
        parse("cut-rnak")
    with pytest.raises(ValueError, match="takes no value"):
        parse("leaves-child=3")
    with pytest.raises(KeyError):
        faults.value("no-such-fault")


def test_every_fault_says_what_it_does() -> None:
    assert all(says for _, says in FAULTS.values())


def test_a_fault_that_is_used_up(tmp_path: Path) -> None:
    environment = {"STANDIN_FAULT": "dies-at-shard=2,times=2", "STANDIN_STATE": str(tmp_path)}
    assert ["dies-at-shard" in of_this_start(environment) for _ in range(4)] == [True, True, False, False]


def test_stuck_at_a_shard(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="stuck-at-shard=3") as running:
        running.await_log("| 2/6")
        with pytest.raises(httpx.ConnectError):
            running.completion()
        assert running.process.poll() is None
        assert "| 3/6" not in running.log
        assert running.stop() == -signal.SIGTERM


def test_stuck_after_the_last_shard(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="stuck-after-load") as running:
        running.await_log("No available shared memory broadcast block found in 60 seconds")
        assert "| 6/6" in running.log
        assert "Loading weights took" not in running.log


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("dies-at-shard=3", "Input/output error"), ("out-of-memory", "CUDA out of memory")],
)
def test_a_load_that_dies(tmp_path: Path, fault: str, cause: str) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT=fault) as running:
        assert running.process.wait(15) == 1
        assert cause in running.log
        assert "Engine core initialization failed" in running.log


def test_it_dies_at_the_first_start_only(tmp_path: Path) -> None:
    for expected_to_live in (False, True):
        with standin(tmp_path / "s", STANDIN_FAULT="dies-at-shard=2,times=1") as running:
            if expected_to_live:
                running.await_health()
            else:
                assert running.process.wait(15) == 1


def test_healthy_but_dead(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="healthy-but-dead") as running:
        running.await_health()
        with running.client(0.5) as client:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json={"prompt": "x"})
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").status_code == 200
        assert running.stop() == 0


def test_no_tokens_and_failing_completions(tmp_path: Path) -> None:
    with standin(tmp_path / "a", STANDIN_FAULT="no-tokens") as running:
        running.await_health()
        assert running.completion().json()["usage"]["completion_tokens"] == 0
        assert running.stop() == 0
    with standin(tmp_path / "b", STANDIN_FAULT="failing-completions") as running:
        running.await_health()
        assert running.completion().status_code == 500


def test_an_engine_that_dies_while_serving(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="dies-after=0.3") as running:
        assert running.process.wait(20) == 1
        assert "Worker proc VllmWorker-1 died unexpectedly" in running.log


def test_a_killed_worker_ends_the_engine(tmp_path: Path) -> None:
    with standin(tmp_path / "s") as running:
        running.await_health()
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        subprocess.run(["kill", "-KILL", children[-1]], check=True)
        assert running.completion().status_code == 500
        assert running.process.wait(10) == 1
        assert "died unexpectedly" in running.log


def test_it_refuses_sigterm(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="ignores-sigterm") as running:
        running.await_health()
        with pytest.raises(subprocess.TimeoutExpired):
            running.stop(0.7)
        assert running.completion().status_code == 200


def test_a_slow_stop(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_FAULT="slow-stop=0.8") as running:
        running.await_health()
        begun = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - begun > 0.8


def test_profiles_are_whole_and_count_what_a_step_does(tmp_path: Path) -> None:
    with standin(tmp_path / "s", profile=True) as running:
        running.await_health()
        assert profile(running).status_code == 200
        assert sorted(ranks(running)) == [0, 1]
        for rank, path in ranks(running).items():
            document = json.loads(gzip.decompress(path.read_bytes()))
            names = [event["name"] for event in document["traceEvents"]]
            assert document["distributedInfo"] == {"backend": "gloo", "rank": rank, "world_size": 2}
            assert names.count("execute_context_0(0)_generation_1(1)") == 5
            assert names.count("execute_context_1(5)_generation_0(0)") == 1
            assert names.count("gloo:all_reduce") == 6 * 9
            assert names.count("gloo:all_gather") == 6
            assert names[-1] == "Record Window End"
        assert len(list(running.traces.glob("*.async_llm.*.pt.trace.json.gz"))) == 1
        assert (running.traces / "rank0.profiler_out.txt").exists()


@pytest.mark.parametrize(
    ("version", "worker", "step"),
    [
        ("0.12.0", "-rank-1.", "execute_new_0_cached_1"),
        ("0.20.0", "dp0_pp0_tp1_dcp0_ep0_rank1.", "execute_context_0(0)_generation_1(1)"),
    ],
)
def test_names_of_other_versions(tmp_path: Path, version: str, worker: str, step: str) -> None:
    # ≤ 0.12 by the environment, and both are given: an old one refuses the flag.
    new = version != "0.12.0"
    variables = {"STANDIN_VERSION": version, "VLLM_TORCH_PROFILER_DIR": str(tmp_path / "s" / "traces")}
    with standin(tmp_path / "s", profile=new, **variables) as running:
        running.await_health()
        assert profile(running).status_code == 200
        path = next(path for path in running.traces.iterdir() if worker in path.name and path.suffix == ".gz")
        assert step in gzip.decompress(path.read_bytes()).decode()
        assert (running.traces / "profiler_out_1.txt").exists()


def test_without_the_profiler_there_are_no_routes(tmp_path: Path) -> None:
    with standin(tmp_path / "s", VLLM_TORCH_PROFILER_DIR="/x") as running:
        running.await_health()
        with running.client() as client:
            assert client.post("/start_profile").status_code == 404


def test_spoilt_ranks(tmp_path: Path) -> None:
    fault = "cut-rank=1"
    with standin(tmp_path / "s", profile=True, STANDIN_FAULT=fault) as running:
        running.await_health()
        assert profile(running).status_code == 200
        gzip.decompress(ranks(running)[0].read_bytes())
        with pytest.raises((EOFError, zlib.error)):
            gzip.decompress(ranks(running)[1].read_bytes())


@pytest.mark.parametrize(
    ("fault", "left", "size"),
    [("missing-rank=0", [1], None), ("empty-rank=0", [0, 1], 0), ("silent-stop-profile", [], None)],
)
def test_missing_and_empty_ranks(tmp_path: Path, fault: str, left: list[int], size: int | None) -> None:
    with standin(tmp_path / "s", profile=True, STANDIN_FAULT=fault) as running:
        running.await_health()
        assert profile(running).status_code == 200
        assert sorted(ranks(running)) == left
        if size is not None:
            assert ranks(running)[0].stat().st_size == size


def test_a_start_that_failed_inside_the_workers_answers_200_and_records_nothing(tmp_path: Path) -> None:
    with standin(tmp_path / "s", profile=True, STANDIN_FAULT="failing-start-profile") as running:
        running.await_health()
        assert profile(running).status_code == 200
        assert ranks(running) == {}
        assert "Failed to start profiler" in running.log


def test_a_stop_that_fails_one_that_is_slow_and_one_that_hangs(tmp_path: Path) -> None:
    with standin(tmp_path / "a", profile=True, STANDIN_FAULT="failing-stop-profile") as running:
        running.await_health()
        assert profile(running).status_code == 500
        assert running.stop() == 0
    with standin(tmp_path / "b", profile=True, STANDIN_FAULT="slow-stop-profile=0.8") as running:
        running.await_health()
        begun = time.monotonic()
        assert profile(running).status_code == 200
        assert time.monotonic() - begun > 0.8
        assert running.stop() == 0
    with standin(tmp_path / "c", profile=True, STANDIN_FAULT="hanging-stop-profile") as running:
        running.await_health()
        with running.client(0.5) as client:
            client.post("/start_profile")
            with pytest.raises(httpx.ReadTimeout):
                client.post("/stop_profile")
            assert client.get("/health").status_code == 200
            with pytest.raises(httpx.ReadTimeout):  # the engine is in the flush
                client.post("/v1/completions", json={"prompt": "x"})
        assert running.stop() == 0


def test_an_engine_that_dies_in_the_flush(tmp_path: Path) -> None:
    with standin(tmp_path / "s", profile=True, STANDIN_FAULT="dies-in-flush") as running:
        running.await_health()
        assert profile(running).status_code == 500
        assert running.process.wait(10) == 1
        with pytest.raises((EOFError, zlib.error)):
            gzip.decompress(ranks(running)[0].read_bytes())

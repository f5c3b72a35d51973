"""The engine with a real model: what its ranks compute, exchange and record."""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.lab.standin.weights import CONFIG, make_model, shapes
from tests.lab.standin.running import Running, standin

PROMPT = "The lease is on the host."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "m"
    make_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("torch") / "two"
    with standin(folder, profile=True, model=str(model), STANDIN_ENGINE="torch") as running:
        running.await_health(90)
        yield running


def text(running: Running, prompt: str = PROMPT, tokens: int = 24) -> str:
    answer = running.completion(prompt=prompt, max_tokens=tokens).json()
    assert answer["usage"]["completion_tokens"] == tokens
    return str(answer["choices"][0]["text"])


def test_the_model_is_in_real_shards(model: Path) -> None:
    index = json.loads((model / "model.safetensors.index.json").read_text())
    config = {name: value for name, value in CONFIG.items() if isinstance(value, int)}
    assert index["weight_map"].keys() == shapes(config).keys()
    assert {path.name for path in model.glob("*.safetensors")} == set(index["weight_map"].values())


@pytest.mark.timeout(240)
def test_two_ranks_say_what_one_says(server: Running, model: Path, tmp_path: Path) -> None:
    """The sums and slices of tensor parallelism are right: the greedy text does not depend on the ranks."""
    alone = standin(tmp_path / "one", "--tensor-parallel-size", "1", model=str(model), STANDIN_ENGINE="torch")
    with alone as running:
        running.await_health(90)
        assert text(running) == text(server)


def test_a_batch_says_what_each_says_alone(server: Running) -> None:
    prompts = [f"{PROMPT} {number}" for number in range(4)]
    alone = [text(server, prompt) for prompt in prompts]
    together: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda prompt=prompt: together.update({prompt: text(server, prompt)}))
        for prompt in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[prompt] for prompt in prompts] == alone


def test_traces_are_torchs_own_and_count_the_collectives(server: Running) -> None:
    with server.client(60) as client:
        assert client.post("/start_profile").status_code == 200
        text(server, "steady decode", 12)
        assert client.post("/stop_profile").status_code == 200
    files = sorted(server.traces.glob("rank*.pt.trace.json.gz"))
    assert [path.name.split(".")[0] for path in files] == ["rank0", "rank1"]
    layers = CONFIG["num_hidden_layers"]
    assert isinstance(layers, int)
    for rank, path in enumerate(files):
        document = json.loads(gzip.decompress(path.read_bytes()))
        assert document["distributedInfo"]["rank"] == rank
        assert document["distributedInfo"]["world_size"] == 2
        names = Counter(event["name"] for event in document["traceEvents"])
        assert names["execute_context_1(13)_generation_0(0)"] == 1
        assert names["execute_context_0(0)_generation_1(1)"] == 11
        assert names["gloo:all_reduce"] == 12 * (1 + 2 * layers)
        assert names["gloo:all_gather"] == 12
        assert names["aten::mm"] > 0
        assert names["Record Window End"] == 1
        assert "gloo:all_reduce" in (server.traces / f"rank{rank}.profiler_out.txt").read_text()


def test_a_killed_rank_ends_the_engine(model: Path, tmp_path: Path) -> None:
    with standin(tmp_path / "s", model=str(model), STANDIN_ENGINE="torch") as running:
        running.await_health(90)
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)
        assert running.completion().status_code == 500
        assert running.process.wait(10) == 1
        assert "Worker proc VllmWorker-1 died unexpectedly" in running.log


def test_a_model_that_is_not_there_ends_the_load(tmp_path: Path) -> None:
    with standin(tmp_path / "s", STANDIN_ENGINE="torch") as running:
        assert running.process.wait(90) == 1
        assert "Engine core initialization failed" in running.log


def test_the_load_is_paced_and_stops_where_it_is_told(model: Path, tmp_path: Path) -> None:
    with standin(tmp_path / "s", model=str(model), STANDIN_ENGINE="torch", STANDIN_FAULT="dies-at-shard=3") as running:
        assert running.process.wait(90) == 1
        assert "| 2/6" in running.log
        assert "| 3/6" not in running.log

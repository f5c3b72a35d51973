"""vLLM's HTTP surface, on a running paced stand-in."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.lab.standin.running import MODEL, Running, standin


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with standin(tmp_path_factory.mktemp("standin") / "one", profile=True) as running:
        running.await_health()
        yield running


def test_it_starts_in_under_a_second_of_processor_time(tmp_path: Path) -> None:
    """Others may run here, so not the clock but its own processor time is judged."""
    with standin(tmp_path / "quick") as running:
        running.await_health()
        fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
        spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        assert spent < 1.0


def test_plain_routes(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").content == b""
        assert client.get("/version").json() == {"version": "0.32.0"}
        models = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == [MODEL]
        assert client.post("/tokenize", json={"prompt": "abc"}).json()["count"] == 3
        assert client.get("/nowhere").status_code == 404


def test_a_whole_completion(server: Running) -> None:
    answer = server.completion(max_tokens=12).json()
    assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 17, "completion_tokens": 12}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["text"]


def test_a_streamed_completion_has_chunks_without_text_and_usage_last(server: Running) -> None:
    with server.client() as client:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 12, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        lines = [line for line in client.post("/v1/completions", json=body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    texts = [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
    assert len(texts) == 12
    assert "" in texts
    assert any(texts)


def test_without_usage_asked_for_there_is_none(server: Running) -> None:
    assert "usage" not in server.completion(stream=True).text


def test_lengths_fall_short_unless_eos_is_ignored(server: Running) -> None:
    lengths = [
        server.completion(max_tokens=400, ignore_eos=False).json()["usage"]["completion_tokens"] for _ in range(3)
    ]
    assert min(lengths) < 400


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"prompt": 3}, 400, "prompt"),
        ({"prompt": ""}, 400, "empty"),
        ({"max_tokens": 0}, 400, "at least 1"),
        ({"max_tokens": 9000}, 400, "maximum context length"),
    ],
)
def test_refused_requests(server: Running, fields: dict[str, object], status: int, says: str) -> None:
    refused = server.completion(**fields)
    assert refused.status_code == status
    assert says in refused.json()["error"]["message"]


def metric(server: Running, name: str) -> float:
    with server.client() as client:
        page = client.get("/metrics").text
    return float(next(line for line in page.splitlines() if line.startswith(f"vllm:{name}{{")).rpartition(" ")[2])


def test_metrics_count_tokens_and_prefix_hits(server: Running) -> None:
    before = metric(server, "generation_tokens_total")
    hits = metric(server, "prefix_cache_hits_total")
    prompt = "a prompt of its own that fills more than two blocks of sixteen tokens"
    for _ in range(2):
        server.completion(prompt=prompt, max_tokens=4)
    assert metric(server, "generation_tokens_total") == before + 8
    assert metric(server, "prefix_cache_hits_total") == hits + len(prompt) // 16 * 16
    assert metric(server, "num_requests_running") == 0


def test_requests_run_side_by_side(server: Running) -> None:
    """Continuous batching: eight requests together take little longer than one, not eight times."""
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(server.completion(prompt=f"{i}", max_tokens=50)))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [50] * 8


def test_log_lines_are_vllms(server: Running) -> None:
    log = (server.folder / "log").read_bytes().decode()
    assert "Starting to load model /models/none..." in log
    assert "\rLoading safetensors checkpoint shards:  50% Completed | 3/6 [00:00<" in log
    assert "Available KV cache memory" in log
    assert "init engine (profile, create kv cache, warmup model) took" in log
    assert "Application startup complete." in log
    assert '"GET /health HTTP/1.1" 200 OK' in log


def test_the_key_guards_v1_alone(tmp_path: Path) -> None:
    with standin(tmp_path / "guarded", VLLM_API_KEY="sesame") as running:
        running.await_health()
        with running.client() as client:
            assert client.get("/v1/models").status_code == 401
            assert client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert client.get("/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200
            assert client.get("/health").status_code == 200
            assert client.get("/metrics").status_code == 200
        assert "sesame" not in running.log


def test_a_healthy_server_stops_at_once_and_well(tmp_path: Path) -> None:
    with standin(tmp_path / "stops") as running:
        running.await_health()
        assert running.stop(5) == 0


def test_a_port_that_is_taken_ends_the_start(server: Running, tmp_path: Path) -> None:
    with standin(tmp_path / "second", "--port", str(server.port), STANDIN_GPU_DIR=str(tmp_path / "g")) as second:
        assert second.process.wait(10) != 0
        assert "address already in use" in second.log

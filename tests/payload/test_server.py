from pathlib import Path

import pytest

from opsctl.payload.errors import PayloadError
from opsctl.payload.server import Server, parse_metrics, read_api_key
from tests.payload.pacing import paced_server

METRICS = """# HELP vllm:prefix_cache_queries_total x
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="a b"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="a b"} 20.5
vllm:num_requests_running 3
vllm:broken{x="y"} notanumber
python_info{version="3"} 1.0 1700000000
"""


def test_metrics_are_summed_over_labels() -> None:
    assert parse_metrics(METRICS) == {
        "vllm:prefix_cache_queries_total": 120.5,
        "vllm:num_requests_running": 3.0,
        "python_info": 1.0,
    }


def test_the_key_of_a_file_opens_the_server(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret-1\n")
    with paced_server("--key", "secret-1") as url:
        with Server(url, api_key_file=str(tmp_path / "key")) as server:
            assert server.models() == ["paced"]
            assert server.count_tokens("paced", "a b") == 3
        with Server(url) as server, pytest.raises(PayloadError, match="401: the API key is missing or wrong"):
            server.models()


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "holds no key"), (b"a\nb\n", "more than one line"), (b"\xff\xfe", "not text")]
)
def test_a_bad_key_file_is_named_and_its_content_is_not(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(PayloadError, match=said):
        read_api_key(str(tmp_path / "key"))


def test_a_missing_key_file(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="No such file"):
        read_api_key(str(tmp_path / "none"))


def test_what_a_server_does_not_serve_is_unknown() -> None:
    with paced_server("--fault", "no-metrics", "--fault", "no-tokenize") as url, Server(url) as server:
        assert server.metrics() == {}
        assert server.count_tokens("paced", "a b") is None
        assert server.version((("/none", "version"), ("/version", "build"), ("/version", "version"))) == "0.32.0"


def test_nobody_listens() -> None:
    with Server("http://127.0.0.1:9") as server, pytest.raises(PayloadError, match="failed"):
        server.models()

from opsctl.results import Cell
from opsctl.stages.vllm_format import vllm_document

KEYS = {
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
    "max_concurrency",
    "request_rate",
} | {
    f"{statistic}_{name}_ms"
    for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99")
    for name in ("ttft", "tpot", "itl", "e2el")
}


def test_the_keys_of_vllm_bench_serve() -> None:
    pooled = {"mean": 1.0, "std": 2.0, "p50": 3.0, "p90": 4.0, "p95": 5.0, "p99": 6.0}
    detail = {
        "duration": 10.0,
        "completed": 20,
        "failed": 1,
        "total_input_tokens": 200,
        "total_output_tokens": 400,
        "max_concurrency": 8,
        "pooled": dict.fromkeys(("ttft", "tpot", "itl", "e2el"), pooled),
    }
    document = vllm_document(Cell(id="concurrency=8", detail=detail))
    assert set(document) == KEYS
    assert document["total_token_throughput"] == 60
    assert document["median_tpot_ms"] == document["p50_tpot_ms"] == 3
    assert document["request_rate"] == "inf"


def test_nothing_measured_invents_no_latency() -> None:
    document = vllm_document(Cell(id="concurrency=8"))
    assert document["completed"] == 0
    assert document["request_throughput"] == 0
    assert not [key for key in document if key.endswith("_ms")]

"""A cell of serving-benchmark with the keys that ``vllm bench serve --save-result`` writes. Pure."""

from __future__ import annotations

from typing import Any

from opsctl.results import Cell

_PERCENTILES = (50, 90, 95, 99)


def vllm_document(cell: Cell) -> dict[str, Any]:
    """Return the document of a measured cell; latencies are over all rounds' requests together."""
    detail = cell.detail
    duration = float(detail.get("duration") or 0.0)
    completed = int(detail.get("completed") or 0)
    outputs, inputs = int(detail.get("total_output_tokens") or 0), int(detail.get("total_input_tokens") or 0)

    def rate(count: float) -> float:
        return count / duration if duration else 0.0

    document: dict[str, Any] = {
        "duration": duration,
        "completed": completed,
        "failed": int(detail.get("failed") or 0),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": rate(completed),
        "output_throughput": rate(outputs),
        "total_token_throughput": rate(inputs + outputs),
        "max_concurrency": detail.get("max_concurrency"),
        "request_rate": detail.get("request_rate") or "inf",
    }
    for name in ("ttft", "tpot", "itl", "e2el"):
        pooled = dict(detail.get("pooled", {}).get(name) or {})
        if not pooled:
            continue
        document[f"mean_{name}_ms"] = pooled["mean"]
        document[f"median_{name}_ms"] = pooled["p50"]
        document[f"std_{name}_ms"] = pooled["std"]
        for share in _PERCENTILES:
            document[f"p{share}_{name}_ms"] = pooled[f"p{share}"]
    return document

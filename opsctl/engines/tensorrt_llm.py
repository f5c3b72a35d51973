"""TensorRT-LLM's server, ``trtllm-serve``, with the PyTorch backend. From sources and public logs of 0.17 to 1.2.

Profiling is by environment and ends with the process (``TLLM_TORCH_PROFILE_TRACE``): no route starts or stops it, so
a profile step is refused. ``/metrics`` holds records of iterations as JSON, no counters of requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import Engine, module_at, program_at
from opsctl.engines.phases import UVICORN, LoadPhase, mark


class TensorRtLlm(Engine):
    """``trtllm-serve MODEL`` and ``trtllm-serve serve MODEL``, also behind ``trtllm-llmapi-launch``."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM"
    package = "tensorrt_llm"
    aliases = {  # noqa: RUF012 - a constant
        "tp-size": "tensor-parallel-size",
        "pp-size": "pipeline-parallel-size",
        "ep-size": "expert-parallel-size",
    }
    variables = ("TLLM_", "TRTLLM_")
    marks = (
        mark(LoadPhase.ENGINE_INIT, "configuration read", r"TensorRT-LLM version: |Using LLM with|LLM Args:|LlmArgs"),
        mark(LoadPhase.ENGINE_INIT, "ranks meet", r"MPI size: \d+|Rank \d+ is using GPU|MpiSession|rank\d+: .*world"),
        mark(LoadPhase.WEIGHTS, "weights begin", r"Start(?:ing)? to load|Prefetching .*checkpoint|Loading weights"),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "model loaded",
            r"Loaded engine size|moe_max_num_tokens|Use \d+(?:\.\d+)? GB for model weights",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "KV cache",
            r"max tokens in paged KV cache|Max KV cache (?:blocks|pages) per sequence",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "warming up",
            r"[Rr]un (?:autotuning|generation|CUDA graph) warmup|Autotuner|[Ww]arm ?up",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS, "capturing graphs", r"CUDA graph.*captur|Creating CUDA graph instances", each=True
        ),
        *UVICORN,
    )
    tables = ("tensorrt_llm", "host")

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after the program and its subcommand ``serve``; other subcommands are other programs."""
        found = program_at(argv, "trtllm-serve")
        if found is None:
            found = module_at(argv, "tensorrt_llm.commands.serve")
        if found is None:
            return None
        own = found + 1
        if list(argv[own : own + 1]) == ["serve"]:
            return own + 1
        return None if own < len(argv) and argv[own] in {"disaggregated", "disaggregated_mpi_worker"} else own

"""LMDeploy's server, on TurboMind or PyTorch. From sources and public logs of 0.2 to 0.11.

No route starts its profiler (``LMDEPLOY_PROFILE_CUDA`` is by environment and ends with the process), and none tells
its version. Its C++ engine writes ``[TM][ERROR]`` and aborts. ``/metrics`` is there with ``--enable-metrics``.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import Engine, Routes, module_at, program_at
from opsctl.engines.phases import UVICORN, LoadPhase, mark


class LmDeploy(Engine):
    """``lmdeploy serve api_server MODEL`` and ``python -m lmdeploy.serve.openai.api_server MODEL``."""

    name = "lmdeploy"
    title = "LMDeploy"
    package = "lmdeploy"
    port = 23333
    name_flags = ("model-name",)
    aliases = {  # noqa: RUF012 - a constant
        "tp": "tensor-parallel-size",
        "dp": "data-parallel-size",
        "ep": "expert-parallel-size",
        "server-name": "host",
        "server-port": "port",
    }
    routes = Routes(
        version=(),
        running=("lmdeploy:num_requests_running",),
        waiting=("lmdeploy:num_requests_waiting",),
    )
    marks = (
        mark(
            LoadPhase.ENGINE_INIT,
            "configuration read",
            r"input backend=(?:turbomind|pytorch)|input chat_template_config",
        ),
        mark(LoadPhase.ENGINE_INIT, "ranks meet", r"MASTER_ADDR=|[Ii]nit(?:ialize)? distributed"),
        mark(
            LoadPhase.WEIGHTS,
            "weights begin",
            r"model_config:$|turbomind model config:|start loading model|[Bb]uild model",
        ),
        mark(LoadPhase.WEIGHTS, "tensors are read", r"get \d+ model params"),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "KV cache",
            r"\[BlockManager\]|block_size = \d+ MB|max cached tokens|[Bb]uild CacheEngine|num_gpu_blocks",
        ),
        mark(LoadPhase.AFTER_WEIGHTS, "tuning kernels", r"\[Gemm2?\] ", each=True),
        mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"[Ww]arm(?:ing)? ?up|gemm_config\.in is not found", weak=True),
        *UVICORN,
    )
    tables = ("lmdeploy", "host")
    variables = ("LMDEPLOY_", "TM_")

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after ``serve api_server``, or after the module."""
        found = program_at(argv, "lmdeploy")
        if found is not None:
            return found + 3 if list(argv[found + 1 : found + 3]) == ["serve", "api_server"] else None
        module = module_at(argv, "lmdeploy.serve.openai.api_server")
        return None if module is None else module + 1

"""llama.cpp's server: ``llama-server`` and its Python binding's ``llama_cpp.server``. From sources b4200 to b11549.

It has no torch profiler, so a profile step is refused. While it loads, every route answers 503; ``/metrics`` is
there only with ``--metrics``; the served name is ``--alias``, else the path as given.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import Engine, Routes, module_at, program_at
from opsctl.engines.phases import UVICORN, LoadPhase, mark


class LlamaCpp(Engine):
    """``llama-server -m MODEL.gguf`` and ``python -m llama_cpp.server --model MODEL.gguf``."""

    name = "llama.cpp"
    title = "llama.cpp"
    port = 8080
    name_flags = ("alias",)
    aliases = {  # noqa: RUF012 - a constant
        "m": "model",
        "a": "alias",
        "model-alias": "alias",
        "c": "ctx-size",
        "np": "parallel",
        "ngl": "gpu-layers",
        "n-gpu-layers": "gpu-layers",
        "b": "batch-size",
        "ub": "ubatch-size",
        "t": "threads",
        "fa": "flash-attn",
        "ctk": "cache-type-k",
        "ctv": "cache-type-v",
        "ts": "tensor-split",
        "sm": "split-mode",
        "hf": "hf-repo",
    }
    routes = Routes(
        version=(("/props", "build_info"),),
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
    )
    marks = (
        mark(
            LoadPhase.ENGINE_INIT,
            "configuration read",
            r"^build: \d+ \(|^system_info: n_threads|^srv +init: build_info: ",
        ),
        mark(
            LoadPhase.WEIGHTS, "weights begin", r"srv +load_model: loading model |^llama_model_loader: loaded meta data"
        ),
        mark(LoadPhase.WEIGHTS, "tensors are read", r"^load_tensors: (?:loading model tensors|offload)"),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "context",
            r"^llama_(?:context|init_from_model|new_context\w*): (?:constructing|n_ctx)",
        ),
        mark(LoadPhase.AFTER_WEIGHTS, "KV cache", r"^llama_kv_cache\w*: .*(?:KV buffer size|size =)"),
        mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"warming up the model with an empty run"),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "model loaded",
            r"^main: model loaded|^srv +init: model loaded|^srv +(?:init|load_model): initializing.*slots",
        ),
        mark(
            LoadPhase.HTTP_UP,
            "HTTP server answers",
            r"^main: server is listening on|^srv +init: listening on http|^srv +update_slots: all slots are idle",
        ),
        *UVICORN,
    )
    tables = ("llama_cpp", "host")
    variables = ("LLAMA_", "GGML_")

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after the program, or after the module."""
        found = program_at(argv, "llama-server")
        if found is None:
            found = module_at(argv, "llama_cpp.server")
        return None if found is None else found + 1

"""Text Generation Inference, from the launcher's and router's sources and public logs of 1.0 to 3.3.

It has no torch profiler behind a route, so a profile step is refused. The launcher starts a shard a GPU; the router
answers only after the warm-up, so ``Starting Webserver`` is not yet a server. ``/info`` tells the version.
"""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import Engine, Routes, program_at
from opsctl.engines.phases import LoadPhase, mark


class Tgi(Engine):
    """``text-generation-launcher --model-id MODEL --num-shard N``."""

    name = "tgi"
    title = "Text Generation Inference"
    package = "text_generation_server"
    port = 3000
    model_flags = ("model-id",)
    name_flags = ()
    parallel_flag = "num-shard"
    aliases = {"p": "port"}  # noqa: RUF012 - a constant
    routes = Routes(
        version=(("/info", "version"),),
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        finished=("tgi_request_success",),
    )
    marks = (
        mark(LoadPhase.ENGINE_INIT, "configuration read", r"^Args \{|Args \{$"),
        mark(LoadPhase.ENGINE_INIT, "", r"^Download(?:ed)? file|^Downloaded /|^Download: \[", each=True),
        mark(
            LoadPhase.ENGINE_INIT,
            "files are there",
            r"Starting (?:check and )?download process|Files are already present|Successfully downloaded weights",
        ),
        mark(LoadPhase.WEIGHTS, "weights begin", r"^Starting shard"),
        mark(LoadPhase.AFTER_WEIGHTS, "model loaded", r"^Server started at unix:|^Shard (?:\d+ )?ready in"),
        mark(LoadPhase.AFTER_WEIGHTS, "router starts", r"^Starting Webserver"),
        mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"Warming up model"),
        mark(LoadPhase.AFTER_WEIGHTS, "capturing graphs", r"Cuda Graphs are enabled for sizes"),
        mark(LoadPhase.AFTER_WEIGHTS, "KV cache", r"Setting max batch total tokens to|KV-cache blocks: \d+"),
        mark(LoadPhase.HTTP_UP, "HTTP server answers", r"^(?:router/\S+ |backends/\S+ )?Connected$"),
    )
    tables = ("tgi", "host")

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after the launcher; the router and the shards are its own children."""
        found = program_at(argv, "text-generation-launcher")
        return None if found is None else found + 1

"""SGLang, from the releases' own sources (0.4 to 0.5)."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.engines.base import Engine, ProfileRoutes, ProfilerSwitch, Routes, Switch, module_at, program_at
from opsctl.engines.phases import COMPILING, UVICORN, LoadPhase, mark


class Sglang(Engine):
    """``python -m sglang.launch_server --model-path MODEL`` and ``sglang serve``."""

    name = "sglang"
    title = "SGLang"
    package = "sglang"
    port = 30000
    model_flags = ("model-path",)
    aliases = {  # noqa: RUF012 - a constant
        "tp": "tensor-parallel-size",
        "tp-size": "tensor-parallel-size",
        "dp": "data-parallel-size",
        "dp-size": "data-parallel-size",
        "ep": "expert-parallel-size",
        "ep-size": "expert-parallel-size",
        "pp": "pipeline-parallel-size",
        "pp-size": "pipeline-parallel-size",
        "model": "model-path",
    }
    routes = Routes(
        version=(("/get_server_info", "version"), ("/get_server_info", "sglang_version")),
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        finished=("sglang:num_requests_total",),
    )
    marks = (
        mark(LoadPhase.ENGINE_INIT, "configuration read", r"server_args=ServerArgs"),
        mark(LoadPhase.ENGINE_INIT, "ranks meet", r"Init torch distributed (?:begin|ends)"),
        mark(LoadPhase.WEIGHTS, "weights begin", r"Load weight begin"),
        mark(LoadPhase.AFTER_WEIGHTS, "model loaded", r"Load weight end"),
        mark(LoadPhase.AFTER_WEIGHTS, "KV cache", r"KV Cache is allocated|Memory pool end"),
        mark(LoadPhase.AFTER_WEIGHTS, "capturing graphs", r"Capture (?:draft )?cuda graph begin|Capturing batches"),
        mark(LoadPhase.AFTER_WEIGHTS, "graphs captured", r"Capture (?:draft )?cuda graph end"),
        mark(LoadPhase.AFTER_WEIGHTS, "engine ready", r"max_total_num_tokens=\d"),
        mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"\b[Aa]uto[Tt]un|[Ww]arming up|[Ww]armup", weak=True),
        *COMPILING,
        *UVICORN,
        mark(LoadPhase.HTTP_UP, "HTTP server answers", r"The server is fired up and ready to roll"),
    )
    tables = ("sglang", "host")
    variables = ("SGLANG_", "SGL_")
    process_title = "sglang:"

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after the module, or after ``sglang serve``."""
        module = module_at(argv, "sglang.launch_server")
        if module is not None:
            return module + 1
        program = program_at(argv, "sglang")
        return None if program is None or list(argv[program + 1 : program + 2]) != ["serve"] else program + 2

    def profiler_switch(self, version: str | None) -> Switch:  # noqa: ARG002 - the same in every version
        """Every version takes the environment, and the request's body over it."""
        return "environment"

    def switch_on(self, switch: Switch, trace_dir: str, *, version: str | None) -> ProfilerSwitch:  # noqa: ARG002
        """Name the folder in the environment, as the default of each request."""
        env = {"SGLANG_TORCH_PROFILER_DIR": trace_dir, "SGLANG_PROFILE_WITH_STACK": "false"}
        return ProfilerSwitch(env=env, how="SGLang: the request names the folder, the environment its default")

    def profile_routes(self, trace_dir: str, tool: str) -> ProfileRoutes:
        """SGLang is told where to write with each start, would record stacks by itself, and refuses with a 200."""
        activities = ["CPU", "GPU"] if tool == "torch" else ["CUDA_PROFILER"]
        body = {"output_dir": trace_dir, "activities": activities, "with_stack": False}
        return ProfileRoutes(body=body, accepted="start profiling")

    def rank_files(self, rank: int) -> tuple[str, ...]:
        """``1700….123-TP-0.trace.json.gz``, ``…-TP-0-DP-1-PP-0-EP-0-DECODE.trace.json.gz``."""
        return (f"*-TP-{rank}[-.]*.json*",)

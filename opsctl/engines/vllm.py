"""vLLM, from the releases' own sources (0.6 to 0.33).

The profiler: up to 0.12 there is only the environment, 0.13 and 0.14 know both, from 0.16 on there is only
``--profiler-config`` (with the environment alone the routes answer 404). A development build such as
``0.16.0rc2.dev344`` sorts below 0.16 in PEP 440 and behaves as 0.16: release numbers are compared, nothing else.
Where that is not sure (0.15, builds without a tag) the binary is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from opsctl.engines.argv import flag_value
from opsctl.engines.base import Engine, ProfileRoutes, ProfilerSwitch, Routes, Switch, module_at, program_at, release_of
from opsctl.engines.phases import COMPILING, UVICORN, LoadPhase, mark
from opsctl.errors import UnfitError

FLAG = "--profiler-config"
STEP_LIMIT = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
"""Environment variable: seconds after which the front end gives up a step of the workers."""


class Vllm(Engine):
    """``vllm serve MODEL`` and ``python -m vllm.entrypoints.openai.api_server --model MODEL``."""

    name = "vllm"
    title = "vLLM"
    package = "vllm"
    aliases = {  # noqa: RUF012 - a constant
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "dp": "data-parallel-size",
        "ep": "enable-expert-parallel",
        "dcp": "decode-context-parallel-size",
        "q": "quantization",
        "O": "compilation-config",
        "cc": "compilation-config",
        "n": "nnodes",
        "r": "node-rank",
        "sc": "speculative-config",
    }
    routes = Routes(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        finished=("vllm:request_success_total",),
        cache_hits=("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        cache_queries=("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    )
    marks = (
        mark(
            LoadPhase.ENGINE_INIT,
            "configuration read",
            r"non-default args|vLLM API server version|\bargs: Namespace\(",
        ),
        mark(LoadPhase.ENGINE_INIT, "engine starts", r"Initializing an? (?:V\d )?LLM engine"),
        mark(
            LoadPhase.ENGINE_INIT,
            "ranks meet",
            r"world_size=\d+ rank=\d+|rank \d+ in world size \d+|vLLM is using nccl==",
        ),
        mark(LoadPhase.ENGINE_INIT, "waiting for Ray's placement group", r"Waiting for creating a placement group"),
        mark(LoadPhase.WEIGHTS, "weights begin", r"Starting to load model|Loading model weights(?! took)"),
        mark(LoadPhase.AFTER_WEIGHTS, "weights read", r"Loading weights took [\d.]+ s"),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "model loaded",
            r"Model loading took|Loading model weights took|Loading drafter model",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "compiling",
            r"Dynamo bytecode transform|torch\.compile takes|Compiling a graph"
            r"|Directly load(?:ing)? the .*(?:graph|AOT)"
            r"|Cache the graph|Using cache directory: .*torch\.compile|torch\.compile took|Computation graph .*cached",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "KV cache",
            r"Available KV cache memory|KV cache size: [\d,]+ tokens|# (?:GPU|CPU|cuda|cpu) blocks:"
            r"|GiB for KV cache|Memory profiling (?:takes|results)|Maximum concurrency for",
        ),
        mark(
            LoadPhase.AFTER_WEIGHTS,
            "capturing graphs",
            r"Capturing the model for CUDA graphs|Capturing (?:cudagraphs|CUDA graph)",
        ),
        mark(LoadPhase.AFTER_WEIGHTS, "graphs captured", r"Graph capturing finished"),
        mark(LoadPhase.AFTER_WEIGHTS, "engine ready", r"init engine \(profile"),
        mark(LoadPhase.AFTER_WEIGHTS, "warming up", r"\b[Aa]uto[Tt]un|[Ww]arming up|[Ww]armup", weak=True),
        mark(LoadPhase.HTTP_UP, "HTTP server starts", r"Starting vLLM (?:API )?server"),
        *COMPILING,
        *UVICORN,
    )
    tables = ("vllm", "host")
    images = {r"vllm-openai[\w.-]*": ("vllm", "serve")}  # noqa: RUF012 - a constant
    variables = ("VLLM_",)
    process_title = "vllm:"
    load_limit = "VLLM_ENGINE_READY_TIMEOUT_S"

    def begins(self, argv: Sequence[str]) -> int | None:
        """Return the position after ``serve``, or after the module that ``python -m`` runs."""
        program = program_at(argv, "vllm")
        if program is None:
            program = module_at(argv, "vllm.entrypoints.cli.main")
        if program is not None:
            return program + 2 if list(argv[program + 1 : program + 2]) == ["serve"] else None
        module = module_at(argv, "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
        return None if module is None else module + 1

    def profiler_switch(self, version: str | None) -> Switch:
        """Choose by the release number alone."""
        release = release_of(version)
        if release is None or release[:2] == (0, 15) or (release[:2] < (0, 6) and ".dev" in (version or "")):
            # Builds without a tag call themselves 0.1.dev…: their number says nothing.
            return "unsure"
        return "argument" if release >= (0, 13) else "environment"

    def profiler_question(self, argv: Sequence[str]) -> tuple[tuple[str, ...], str] | None:
        """Ask ``serve --help=all``: the command up to and with ``serve``."""
        words = list(argv)
        if "serve" not in words:
            return None
        return (*words[: words.index("serve") + 1], "--help=all"), FLAG

    def switch_on(self, switch: Switch, trace_dir: str, *, version: str | None) -> ProfilerSwitch:
        """Never set ``max_iterations``: it moves the flush into an RPC of 300 s, and its stop test is off by one.

        The table of sums by operator is off: on an H200 it took 20 of the 33 s that ``/stop_profile`` needed for 160
        tokens, and the traces say the same. So is the front end's own trace, which no analysis reads.
        """
        if switch == "argument":
            config = {
                "profiler": "torch",
                "torch_profiler_dir": trace_dir,
                "torch_profiler_with_stack": False,
                "torch_profiler_use_gzip": True,
                "torch_profiler_record_shapes": False,
                "torch_profiler_dump_cuda_time_total": False,
                "ignore_frontend": True,
            }
            add = (FLAG, json.dumps(config, separators=(",", ":")))
            return ProfilerSwitch(add, (FLAG,), {}, f"vLLM {version}: {FLAG}, stacks off")
        if switch == "environment":
            env = {
                "VLLM_TORCH_PROFILER_DIR": trace_dir,
                "VLLM_TORCH_PROFILER_WITH_STACK": "0",
                "VLLM_TORCH_PROFILER_RECORD_SHAPES": "0",
                "VLLM_TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL": "0",
                "VLLM_TORCH_PROFILER_DISABLE_ASYNC_LLM": "1",
            }
            return ProfilerSwitch(env=env, how=f"vLLM {version}: VLLM_TORCH_PROFILER_DIR, stacks off")
        raise UnfitError(
            "it cannot be told how this server's profiler is switched on",
            wanted="a version such as 0.32.0, or a `serve --help` that lists --profiler-config or does not",
            seen=f"version {version or 'unknown'}",
            hint="start production (its /version is asked), or put the right arguments into args.add of the variant",
        )

    def profiler_concerns(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[tuple[str, str, str], ...]:
        """Name a profiler that is on, and one whose flush would run inside an RPC that ends after 300 s."""
        config = flag_value(argv, FLAG.lstrip("-"), self.flag)
        if config is None and "VLLM_TORCH_PROFILER_DIR" not in environment:
            return ()
        on = ("profiler", "production runs with its profiler on", "leave it to a variant of it")
        try:
            iterations = json.loads(config or "{}").get("max_iterations")
        except (json.JSONDecodeError, AttributeError):
            iterations = None
        limit = environment.get(STEP_LIMIT, "")
        if not iterations or (limit.isdecimal() and int(limit) > 300):
            return (on,)
        reason = f"max_iterations={iterations} moves the flush into an RPC of 300 s"
        return on, ("max_iterations", reason, f"raise {STEP_LIMIT}, or leave max_iterations out")

    def profile_routes(self, trace_dir: str, tool: str) -> ProfileRoutes:  # noqa: ARG002 - its start says both
        """Return the plain routes; the folder was given at the start."""
        return ProfileRoutes()

    def rank_files(self, rank: int) -> tuple[str, ...]:
        """0.11 to 0.13: ``…-rank-0.TIME…``; from 0.20 on ``dp0_pp0_tp0_dcp0_ep0_rank0.TIME…``; also ``rank0.TIME…``."""
        return f"*rank{rank}.*.json*", f"*rank-{rank}.*.json*"

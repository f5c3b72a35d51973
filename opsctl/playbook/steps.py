"""What the user writes in a playbook: phases, steps, and the options of each stage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from opsctl.playbook.models import Model
from opsctl.quantities import Duration, Size

SHORTEST_TTL = 10.0
"""Seconds. A renewal may take a tenth of the ttl, and less than a second for it is too little."""


class Quiet(Model):
    """Measure only while nobody else uses the server, as its own counters say."""

    wait: Duration = 30 * 60.0
    """Longest wait for quiet; then the step is skipped, with the reason, and the run is inconclusive."""
    stable: Duration = 30.0
    """It must be quiet for this long."""
    running: int = Field(default=0, ge=0)
    """Requests of others that still count as quiet."""


class ServingBenchmark(Model):
    """Load on the model server, as `vllm bench serve` defines its figures."""

    concurrency: tuple[int, ...] = ()
    """Closed loop: requests in flight, one cell each."""
    request_rate: tuple[float, ...] = ()
    """Open loop: requests a second (Poisson arrivals), one cell each."""
    input_tokens: int = Field(default=1024, ge=1)
    """Tokens in each prompt."""
    output_tokens: int = Field(default=256, ge=1)
    """Tokens generated for each request (ignore_eos)."""
    requests: int | None = Field(default=None, ge=1)
    """Requests in a round; default: 4 × concurrency, at least 8."""
    duration: Duration | None = None
    """A round lasts this long, instead of a count."""
    warmup_requests: int = Field(default=2, ge=0)
    """Requests before each cell that are not measured."""
    rounds: int = Field(default=3, ge=1)
    """Repetitions of every cell; the intervals are over them."""
    seed: int = 0
    """Seed of the arrival times. Prompts are unique per request and per run, whatever the seed."""
    slo: dict[str, Duration] = Field(default_factory=dict)
    """Goodput: limits such as {ttft: 2s, tpot: 0.05s}."""
    quiet: Quiet | None = None
    """Wait for a quiet server first, and stop when other traffic arrives. For production that stays in use."""
    request_limit: Duration = 10 * 60.0
    """Longest time for one request; a longer one counts as failed."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


class Profile(Model):
    """Capture torch.profiler traces of steady decode, and verify that they are whole."""

    warmup_requests: int = Field(default=3, ge=0)
    """Requests before the profiler is switched on."""
    windows: int = Field(default=3, ge=1)
    """Captures of each concurrency."""
    requests: int = Field(default=5, ge=1)
    """Requests in a window, for each unit of concurrency."""
    input_tokens: int = Field(default=128, ge=1)
    """Tokens in each prompt."""
    output_tokens: int = Field(default=32, ge=2)
    """Tokens generated for each request: decode steps in the window."""
    concurrency: tuple[int, ...] = (1,)
    """Requests in flight, one cell each."""
    with_: Literal["torch", "nsys"] = "torch"
    """torch: the server's own profiler. nsys: Nsight Systems, which the variant's exec-prefix starts."""
    flush_limit: Duration = 45 * 60.0
    """/stop_profile has no limit of its own; 20 minutes were seen."""
    fetch: Literal["all", "rank0", "none"] = "all"
    """Which trace files are fetched to the controller; all are analysed on the host."""
    limit: Duration = 3 * 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


class Gemm(Model):
    """Matrix products at the model's exact shapes."""

    model: str = "served"
    """kimi-k2.5, or `served`: the served model's own config.json, or a path to a config.json on the host."""
    tensor_parallel: int | None = Field(default=None, ge=1)
    """Ranks that share a matrix; default: the production service's."""
    expert_parallel: int = Field(default=1, ge=1)
    """Ranks that share the experts."""
    tokens: tuple[int, ...] = (1, 8, 32)
    """Tokens in the step (M), one cell for each shape."""
    ops: tuple[str, ...] = ()
    """Only these operations; default: all of the model's."""
    backends: tuple[str, ...] = ()
    """Only these backends; default: all that the host has."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Own N × K pairs (BF16) instead of a model's."""
    repetitions: int = Field(default=100, ge=3)
    """Measurements of each cell; the median is reported."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: CUDA where the host has it."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


class Collectives(Model):
    """All-reduce and its kin at the model's own message sizes."""

    model: str = "served"
    """kimi-k2.5, or `served`: the served model's own config.json, or a path to a config.json on the host."""
    tokens: tuple[int, ...] = (1, 8, 32)
    """Tokens in the step: each gives the message size of the model."""
    ops: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    """Which collectives."""
    sizes: tuple[Size, ...] = ()
    """Own message sizes in bytes instead of a model's."""
    world_size: int | None = Field(default=None, ge=1)
    """Ranks; default: the service's tensor-parallel degree, else all GPUs."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: NCCL where the host has CUDA, else gloo."""
    sweep: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Environment axes, such as {NCCL_PROTO: [default, LL, LL128, Simple]}."""
    across_hosts: bool = False
    """One group over all hosts of the playbook, `world-size` ranks on each: they meet at the first one's address."""
    graphs: Literal["both", "on", "off"] = "both"
    """Under CUDA graphs, as decode runs them, and without."""
    repetitions: int = Field(default=200, ge=3)
    """Measurements of each cell."""
    smoke_limit: Duration = 60.0
    """Longest time for one small all-reduce before anything else: a topology that hangs is found early."""
    limit: Duration = 60 * 60.0
    """Longest time for the step; the host itself ends it then."""


class Command(Model):
    """Any program as a stage."""

    argv: tuple[str, ...] = Field(min_length=1)
    """Program and arguments, run in the step's folder on the host. No shell."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment added to it. Recorded with the run: put no secret here."""
    collect: tuple[str, ...] = ()
    """Files to fetch, relative to the step's folder on the host; globs are allowed."""
    figures: dict[str, str] = Field(default_factory=dict)
    """Figure name: FILE#path.to.number in a JSON file that the program wrote."""
    limit: Duration = 10 * 60.0
    """Longest time for the step; the host itself ends it then."""


StageOptions = ServingBenchmark | Profile | Gemm | Collectives | Command

STAGES: dict[str, type[Model]] = {
    "serving-benchmark": ServingBenchmark,
    "profile": Profile,
    "gemm": Gemm,
    "collectives": Collectives,
    "command": Command,
}
STAGE_OF: dict[type[Model], str] = {options: name for name, options in STAGES.items()}


class Step(Model):
    """One measuring step: a stage and its options, under the stage's name as key in YAML."""

    id: str
    """Stable: phase slug/number-stage, such as `kernels/1-gemm`. Made by the loader."""
    stage: str
    name: str
    options: Any
    """One of StageOptions: an instance of STAGES[stage]."""


class Phase(Model):
    """Which service must serve while its steps run."""

    name: str
    """What reports call it; steps are named after it."""
    serve: str
    """A service of the inventory, or `nothing`."""
    steps: tuple[Step, ...] = ()
    """What is measured while the service serves."""
    optional: bool = False
    """When it fails the campaign goes on with the next phase; the exit code still says that it failed."""


class Lease(Model):
    """The lease on production."""

    ttl: Duration = 5 * 60.0
    """The guard restores production this long after the last sign of life of the controller. At least 10s."""


class Load(Model):
    """How loads are tried."""

    attempts: int = Field(default=2, ge=1)
    """A load that died of something transient is tried again once the GPUs are free; a fatal cause never."""


class Rounds(Model):
    """Repeat the phases in turn, so that drift of the host falls on all of them alike."""

    count: int = Field(default=1, ge=1)
    """How many times."""


class Playbook(Model):
    """A campaign: phases, in order."""

    name: str
    """What runs of it are called."""
    description: str = ""
    """What it is for."""
    hosts: str
    """A host or a group of the inventory."""
    vars: dict[str, Any] = Field(default_factory=dict)
    """Defaults; the inventory and --var override them."""
    lease: Lease = Lease()
    """How long the guard waits for a sign of life."""
    load: Load = Load()
    """How often a load is tried."""
    rounds: Rounds = Rounds()
    """Repeat all phases in turn."""
    limit: Duration = 12 * 60 * 60.0
    """Longest time for all phases together; the restore has a budget of its own."""
    phases: tuple[Phase, ...] = Field(min_length=1)
    """In order; after the last one production is restored, always."""
    notify: tuple[str, ...] = ()
    """Where to say what happened, beside the inventory's: Apprise URLs, or file:PATH of a file that holds them."""

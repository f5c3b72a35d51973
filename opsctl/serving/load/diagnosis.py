"""What kills a load, as a table: the line that says so, its name, whether another attempt can help, what to do.

Two kinds of rows. A *cause* says why (memory, a port, a file). A *verdict* only says that the engine is dead
("Engine core initialization failed. See root cause above"): it ends the wait, but it is an echo, and the
person is shown the first cause before it. Sources of the lines: vLLM 0.6 to 0.33 and SGLang 0.4 to 0.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cause:
    """One row of the table.

    ``ends`` is true where no server was ever seen to go on after such a line. A cause with ``ends`` false is
    kept as the explanation should the server die, because healthy servers log it too.
    """

    name: str
    pattern: re.Pattern[str]
    advice: str
    transient: bool = False
    ends: bool = False
    echo: bool = False


@dataclass(frozen=True)
class FatalLine:
    """Why a load will not end well. ``line`` is the server's own, ``when`` seconds of the host's clock."""

    name: str
    advice: str
    transient: bool
    line: str
    when: float = 0.0


def _cause(
    name: str, pattern: str, advice: str, *, transient: bool = False, ends: bool = False, echo: bool = False
) -> Cause:
    return Cause(name, re.compile(pattern), advice, transient=transient, ends=ends, echo=echo)


HARMLESS: tuple[re.Pattern[str], ...] = (
    # vllm 46611: logged by healthy servers that are merely slow.
    re.compile(r"No available shared memory broadcast block found"),
    # Uvicorn's access log can carry any text in its path.
    re.compile(r'"(?:GET|POST|HEAD|OPTIONS|PUT) \S+ HTTP/\d'),
    # A server that only warns goes on: its warnings explain nothing.
    re.compile(r"^\W*(?:\([^)]*\)\s*)?(?:\[[^\]]*\]\s*)?(?:INFO|WARNING|DEBUG)\b"),
    re.compile(r"server_args=|\b\w*(?:Future|Deprecation|User|Runtime)Warning: "),
)
"""Lines that look like a cause and are none."""

CAUSES: tuple[Cause, ...] = (
    _cause(
        "another process holds GPU memory",
        r"Free memory on device .* is less than desired GPU memory utilization",
        "see which process holds the memory with nvidia-smi; the load is tried again once the GPUs are free",
        transient=True,
        ends=True,
    ),
    _cause(
        "too little GPU memory for the KV cache",
        r"No available memory for the cache blocks"
        r"|larger than the (?:available|maximum number of tokens that can be stored in) KV cache"
        r"|KV cache is needed, which is larger"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        "lower --max-model-len, or raise --gpu-memory-utilization (SGLang: --mem-fraction-static)",
        ends=True,
    ),
    _cause(
        "out of GPU memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory|CUBLAS_STATUS_ALLOC_FAILED",
        "lower --gpu-memory-utilization or --max-num-seqs, and see whether another process holds memory",
        ends=True,
    ),
    _cause(
        "out of host memory",
        r"DefaultCPUAllocator: (?:can't|not enough) |Cannot allocate memory|\bMemoryError\b",
        "the host's own memory is full: see free -m, MemoryMax= of the unit and the page cache",
    ),
    _cause(
        "locked memory limit",
        r"ibv_(?:reg_mr|create_cq).*(?:Cannot allocate memory|failed)|RLIMIT_MEMLOCK",
        "set LimitMEMLOCK=infinity in the unit",
    ),
    _cause(
        "port in use",
        r"[Aa]ddress already in use|EADDRINUSE|port \d+ is already in use",
        "see who listens with ss -ltnp; stop it, or give the service another --port",
        ends=True,
    ),
    _cause(
        "GPU fell off the bus",
        r"GPU has fallen off the bus|GPU is lost|Unable to determine the device handle|\bXid\b.*\b79\b",
        "the card is gone until the host is power-cycled: move production to another host and call the vendor",
        ends=True,
    ),
    _cause(
        "uncorrectable ECC error",
        r"uncorrectable (?:NVLink |ECC )?error|CUDA error: uncorrectable ECC",
        "drain the host and reset or replace the GPU: nvidia-smi -q -d ECC names it",
        ends=True,
    ),
    _cause(
        "driver and library differ",
        r"Driver/library version mismatch|CUDA driver version is insufficient|forward compatibility was attempted",
        "the driver was updated under a running host: reboot it, or install the CUDA runtime that fits",
        ends=True,
    ),
    _cause(
        "no GPU visible",
        r"No CUDA GPUs are available|no CUDA-capable device is"
        r" detected|Failed to infer device type|CUDA_ERROR_NO_DEVICE",
        "see nvidia-smi, CUDA_VISIBLE_DEVICES and DevicePolicy= of the unit",
        ends=True,
    ),
    _cause(
        "NCCL",
        r"NCCL (?:error|WARN .*(?:[Ff]ailed|[Ee]rror|[Tt]imeout))|ncclUnhandled|ncclSystemError|ncclInternalError"
        r"|ncclRemoteError|DistBackendError|ProcessGroupNCCL.*(?:timeout"
        r"|timed out)|Watchdog caught collective operation",
        "run the collectives smoke test; try NCCL_P2P_DISABLE=1 (nccl 1999) and NCCL_DEBUG=INFO",
        transient=True,
    ),
    _cause(
        "ranks did not meet",
        r"DistNetworkError|DistStoreError|Connection closed by peer"
        r"|Connection reset by peer|Gloo .*(?:timed out|failed)"
        r"|client socket has timed out",
        "one rank died or cannot be reached: look for its own error above, and at --master-port",
        transient=True,
    ),
    _cause(
        "CUDA error",
        r"CUDA error: (?:an illegal memory access|unspecified launch failure|misaligned address|device-side assert"
        r"|an illegal instruction)|CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR)",
        "a kernel failed: dmesg shows an Xid where it was the hardware",
        transient=True,
    ),
    _cause(
        "gated model",
        r"GatedRepoError|Access to model .* is restricted|Cannot access gated repo|401 Client Error.*huggingface"
        r"|You are trying to access a gated repo",
        "accept the model's licence, and give the unit a token file (HF_TOKEN), or a local path",
        ends=True,
    ),
    _cause(
        "model not reachable",
        r"LocalEntryNotFoundError|RepositoryNotFoundError|couldn't connect to .?https://huggingface"
        r"|Can't load the configuration of|is not a local folder"
        r" and is not a valid model identifier|OfflineModeIsEnabled"
        r"|Repo id must be in the form|Invalid repository ID or local directory",
        "give a local path, or see whether the host reaches the hub (HF_HUB_OFFLINE, proxy)",
        ends=True,
    ),
    _cause(
        "weights are broken",
        r"SafetensorError|Error while deserializing header|MetadataIncompleteBuffer|InvalidHeaderDeserialization"
        r"|Cannot find any model weights",
        "a shard is cut short or missing: compare sizes and sha256 with the source",
        ends=True,
    ),
    _cause(
        "missing file",
        r"FileNotFoundError|No such file or directory|Failed to locate executable",
        "see that the path exists and that the unit's user may read it (ProtectHome=, RootDirectory=)",
    ),
    _cause(
        "permission denied", r"PermissionError|Permission denied", "see the owner of the file and User= of the unit"
    ),
    _cause(
        "disk full",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        "free space: df -h of the model's, the cache's and the temporary folder; /dev/shm counts too",
    ),
    _cause(
        "disk error",
        r"Input/output error|\[Errno 5\]|Bus error|\bSIGBUS\b|Structure needs cleaning",
        "the disk under the model could not be read: see dmesg and smartctl; a soft NFS mount says so of a time-out",
        # One more attempt tells a hiccup from a broken disk.
        transient=True,
    ),
    _cause(
        "network file system went away",
        r"Stale file handle|Transport endpoint is not connected|\[Errno 116\]",
        "mount it again; the load is tried again",
        transient=True,
    ),
    _cause(
        "too many open files", r"Too many open files in system|OSError: \[Errno 24\]", "raise LimitNOFILE= in the unit"
    ),
    _cause(
        "wrong dtype or quantisation",
        r"Bfloat16 is only supported on GPUs|dtype .* is not supported|is not supported for quantization method"
        r"|Unknown quantization method|quantization method specified in the model config .* does not match"
        r"|Minimum capability: \d+\. Current capability",
        "see --dtype and --quantization against the model's config.json and the card's compute capability",
    ),
    _cause(
        "wrong architecture or parallel size",
        r"Model architectures .* (?:are not supported|failed to be inspected)|must be divisible by"
        r"|World size .* is larger than the number of available GPUs|number of attention heads .* divisible"
        r"|tensor_parallel_size .* (?:greater|larger) than",
        "the model and --tensor-parallel-size (or this version of the server) do not fit",
    ),
    _cause(
        "wrong command line",
        r"error: unrecognized arguments|error: argument |error: the following arguments are required"
        r"|ValidationError: \d+ validation error",
        "this version of the server does not take that argument: compare with its --help",
        ends=True,
    ),
    _cause(
        "broken environment",
        r"ModuleNotFoundError|ImportError|undefined symbol|GLIBCXX_",
        "the serving environment was changed: compare it with the one that ran",
    ),
)

VERDICTS: tuple[Cause, ...] = (
    _cause(
        "engine did not start",
        r"Engine core initialization failed|EngineCore failed to start|Engine process failed to start"
        r"|Engine core proc .* died unexpectedly",
        "the cause is in the lines before it: journalctl -u UNIT",
        transient=True,
        ends=True,
        echo=True,
    ),
    _cause(
        "engine died",
        r"EngineCore encountered a fatal error|EngineDeadError|AsyncEngineDeadError|AsyncLLM output_handler failed",
        "the cause is in the lines before it: journalctl -u UNIT",
        transient=True,
        ends=True,
        echo=True,
    ),
    _cause(
        "a worker died",
        r"Worker proc .* died unexpectedly|WorkerProc (?:initialization failed|failed to start|hit an exception)"
        r"|ERROR .* Worker .* (?:died|terminated)|Scheduler hit an exception|Rank \d+ scheduler is dead"
        r"|Received sigquit from a child process|Child process unexpectedly failed with",
        "the cause is in the lines before it; dmesg shows whether the kernel killed it",
        transient=True,
        ends=True,
        echo=True,
    ),
    _cause(
        "a worker did not answer",
        r"RPC call to .* timed out|TimeoutError: RPC call",
        "a rank hangs: raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS only where it was merely slow",
        transient=True,
        ends=True,
        echo=True,
    ),
    _cause(
        "not ready in the server's own time",
        r"Timed out waiting for engine(?: core)? processes? to start"
        r"|Did not receive response from front-end process within"
        r"|Engine core .* did not (?:start|become ready)|VLLM_ENGINE_READY_TIMEOUT_S",
        "set VLLM_ENGINE_READY_TIMEOUT_S=3600 (or more) in the unit: a load of half an hour needs it",
        ends=True,
    ),
)

_EXCEPTION = re.compile(r"(?:^|\s)(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt): \S")
"""The last line of a traceback: an explanation of last resort."""


def match_line(line: str) -> Cause | None:
    """Return the row that a line of the server belongs to, or None for a line that means nothing bad."""
    if any(pattern.search(line) for pattern in HARMLESS):
        return None
    for cause in (*VERDICTS, *CAUSES):
        if cause.pattern.search(line):
            return cause
    return None


def is_exception(line: str) -> bool:
    """Return whether a line is the last of a Python traceback."""
    return _EXCEPTION.search(line) is not None and not any(pattern.search(line) for pattern in HARMLESS)


class Autopsy:
    """Keeps the lines that may explain a death, in order, and says what it was.

    Bounded: the first few causes are what matters, whatever a dying server prints after them.
    """

    KEPT = 12

    def __init__(self) -> None:
        self._suspects: list[FatalLine] = []
        self._exceptions: list[FatalLine] = []
        self._ended_by: FatalLine | None = None

    def feed(self, line: str, when: float) -> None:
        """Take one line of the log."""
        cause = match_line(line)
        if cause is None:
            if is_exception(line) and len(self._exceptions) < self.KEPT:
                self._exceptions.append(FatalLine(*_UNKNOWN, line=line, when=when))
            return
        fatal = FatalLine(cause.name, cause.advice, cause.transient, line, when)
        if not cause.echo and len(self._suspects) < self.KEPT:
            self._suspects.append(fatal)
        if cause.ends and self._ended_by is None:
            self._ended_by = fatal

    @property
    def verdict(self) -> FatalLine | None:
        """What ended the server, once a line came after which none ever served; else None.

        The cause may be logged after the verdict ("WorkerProc failed to start", then the traceback), so this
        may get better as more lines come.
        """
        return self.finding() if self._ended_by is not None else None

    def finding(self) -> FatalLine | None:
        """Return what is known of a server that died, or None where nothing it logged explains it."""
        if self._suspects:
            return self._suspects[0]
        if self._ended_by is not None and self._exceptions:
            return replace(self._ended_by, line=self._exceptions[0].line, when=self._exceptions[0].when)
        return self._ended_by or (self._exceptions[0] if self._exceptions else None)

    def quoted(self) -> tuple[str, ...]:
        """Return the lines worth showing: the first causes, then the verdict."""
        kept = [*self._suspects[:3], *self._exceptions[:2], *([self._ended_by] if self._ended_by else [])]
        return tuple(dict.fromkeys(fatal.line[:400] for fatal in kept))


_UNKNOWN = ("an exception that opsctl does not know", "read the traceback: journalctl -u UNIT", True)

"""What the machine is, and how its GPUs were before and after: recorded with every result."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

_LIMIT = 20.0  # seconds; with a broken driver nvidia-smi never returns

#: A driver that does not know one of them refuses the whole list: it is asked again without that one.
GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "power.draw",
    "power.limit",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks_event_reasons.active",
    "temperature.gpu",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "persistence_mode",
)
#: Fields that older drivers call otherwise.
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
_INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')
# The bits of clocks_event_reasons.active (nvml.h, nvmlClocksEventReason*).
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
}
_PACKAGES = ("torch", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "flashinfer-python", "numpy")
_PREFIXES = ("NCCL_", "CUDA_", "TORCH_", "OMP_", "GLOO_")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "CREDENTIAL", "AUTH")


def allowed_variables(environment: Mapping[str, str], prefixes: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that may be recorded: ours and those of ``prefixes``, never one that names a secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith((*_PREFIXES, *prefixes)) and not any(word in name.upper() for word in _SECRET)
    }


def throttle_reasons(mask: str) -> list[str]:
    """Return the names of the reasons in a mask such as ``0x0000000000000004``; unknown bits by number."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return [mask.strip()]
    named = [name for bit, name in _REASONS.items() if bits & bit]
    rest = bits & ~sum(_REASONS)
    return [*named, *([f"unknown {rest:#x}"] if rest else [])]


def run_tool(*argv: str, limit: float = _LIMIT) -> tuple[str | None, str]:
    """Return (output, "") of a program, or (None, why not). Never raises, never waits longer than its limit."""
    path = shutil.which(argv[0])
    if path is None:
        return None, f"{argv[0]} is not on the PATH"
    try:
        done = subprocess.run(
            [path, *argv[1:]], capture_output=True, timeout=limit, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return None, f"{' '.join(argv)} did not answer within {limit:g} s"
    except OSError as error:
        return None, f"{argv[0]} could not be run: {error}"
    text = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        said = (text + done.stderr.decode(errors="replace")).strip()
        return None, f"{' '.join(argv)} ended with status {done.returncode}: {said[:200]}"
    return text, ""


def parse_gpu_query(text: str, fields: tuple[str, ...] = GPU_FIELDS) -> list[dict[str, Any]]:
    """Return one dictionary a GPU from ``nvidia-smi --query-gpu=… --format=csv,noheader,nounits``."""
    gpus = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(fields):
            continue
        gpu: dict[str, Any] = dict(zip(fields, values))
        if "clocks_event_reasons.active" in gpu:
            gpu["throttle"] = throttle_reasons(gpu.pop("clocks_event_reasons.active"))
        gpus.append(gpu)
    return gpus


def gpu_state() -> dict[str, Any]:
    """Return ``{"gpus": [...]}`` as nvidia-smi gives them now, or ``{"gpus": [], "problem": why}``.

    ``unknown`` lists the fields that this driver does not know; they are not in the GPUs.
    """
    asked = {field: field for field in GPU_FIELDS}
    while True:
        text, why = run_tool("nvidia-smi", f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader,nounits")
        refused = _INVALID_FIELD.search(why) if text is None else None
        field = next((field for field, name in asked.items() if refused and name == refused[1]), None)
        if field is None:
            break
        if asked[field] == field and field in _OLD_NAMES:
            asked[field] = _OLD_NAMES[field]
        else:
            del asked[field]
    if text is None:
        return {"gpus": [], "problem": why}
    unknown = [field for field in GPU_FIELDS if field not in asked]
    return {"gpus": parse_gpu_query(text, tuple(asked)), **({"unknown": unknown} if unknown else {})}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in (*_PACKAGES, *packages):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # noqa: PERF203 - a dozen packages
            continue
    return versions


def torch_facts(torch: Any) -> dict[str, Any]:
    """Return what torch says of itself and of the device: CUDA, cuDNN and NCCL versions, names, L2 and SM counts."""
    facts: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "device": properties.name,
            "devices": torch.cuda.device_count(),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory,
            "l2": getattr(properties, "L2_cache_size", None),
        }
        try:
            facts["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        except (AttributeError, RuntimeError):
            facts["nccl"] = None
    return facts


def describe(packages: Sequence[str] = (), variables: Sequence[str] = ()) -> dict[str, Any]:
    """Return the machine without importing torch: processor, versions, variables, topology, GPUs now.

    ``packages`` and ``variables`` (beginnings of names) are recorded beside those that every stage depends on.
    """
    topology, why = run_tool("nvidia-smi", "topo", "-m")
    peers, _ = run_tool("nvidia-smi", "topo", "-p2p", "r")
    return {
        "host": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "versions": _versions(packages),
        "variables": allowed_variables(os.environ, variables),
        "topology": topology if topology is not None else f"unknown: {why}",
        "p2p": peers or "unknown",
        "before": gpu_state(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 - a plain read of procfs
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"

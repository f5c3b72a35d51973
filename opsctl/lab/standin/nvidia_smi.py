"""A stand-in for nvidia-smi over the locks of ``gpus.py``; output as an H200 machine's driver 580 printed it.

Standard library only, and started by path, so that a probe costs 20 ms.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from opsctl.lab.standin import gpus

_DRIVER = "580.159.04"
_UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "power.draw": "W",
    "power.limit": "W",
    "clocks.sm": "MHz",
    "clocks.mem": "MHz",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}


def uuid(index: int) -> str:
    """Return a GPU's UUID."""
    return f"GPU-0ab5c7a0-0000-4000-8000-{index:012x}"


def _gpu(index: int, config: gpus.GpuConfig) -> dict[str, str]:
    occupant = gpus.look(index, config)
    used = (occupant.used_mib if occupant else 0) + config.stuck_mib
    busy = occupant is not None and occupant.pid > 0
    return {
        "index": str(index),
        "uuid": uuid(index),
        "name": config.name,
        "pci.bus_id": f"00000000:{index + 6:02X}:00.0",
        "driver_version": _DRIVER,
        "memory.total": str(config.memory_mib),
        "memory.used": str(used),
        "memory.free": str(config.memory_mib - 615 - used),
        "utilization.gpu": "0",
        "power.draw": "118.40" if busy else "80.57",
        "power.limit": "700.00",
        "clocks.sm": "1980" if busy else "345",
        "clocks.mem": "3201",
        "clocks_event_reasons.active": "0x0000000000000000" if busy else "0x0000000000000001",
        "temperature.gpu": "35",
        "pcie.link.gen.current": "5",
        "pcie.link.gen.max": "5",
        "pcie.link.width.current": "16",
        "pcie.link.width.max": "16",
        "compute_mode": "Default",
        "mig.mode.current": "Disabled",
        "ecc.mode.current": "Enabled",
        "persistence_mode": "Enabled",
    }


def _process(index: int, config: gpus.GpuConfig) -> dict[str, str] | None:
    occupant = gpus.look(index, config)
    if occupant is None or occupant.pid == 0 or not config.list_processes:
        return None
    used = str(occupant.used_mib)
    name = occupant.name
    return {
        "gpu_uuid": uuid(index),
        "pid": str(occupant.pid),
        "process_name": name,
        "name": name,
        "used_memory": used,
        "used_gpu_memory": used,
    }


_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "mem.used": "memory.used"}


def _csv(fields: list[str], known: set[str], rows: list[dict[str, str]], formats: list[str]) -> int:
    for name in fields:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.\n')
            return 2
    units = "nounits" not in formats
    if "noheader" not in formats:
        print(", ".join(f"{name} [{_UNITS[name]}]" if units and name in _UNITS else name for name in fields))
    for row in rows:
        print(", ".join(f"{row[name]} {_UNITS[name]}" if units and name in _UNITS else row[name] for name in fields))
    return 0


def _topology(count: int, *, peers: bool) -> str:
    names = [f"GPU{index}" for index in range(count)]
    link = "OK" if peers else "NV18"
    head = "\t" + "\t".join(names) + ("" if peers else "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID")
    tail = "" if peers else "\t0-15\t0\t\tN/A"
    rows = [
        name + "\t" + "\t".join(" X " if row == column else link for column in range(count)) + tail
        for row, name in enumerate(names)
    ]
    return "\n".join([head, *rows, "", "Legend:", "", "  X    = Self"])


def _table(config: gpus.GpuConfig) -> str:
    rule = "+" + "-" * 89 + "+"
    lines = [time.strftime("%a %b %e %H:%M:%S %Y"), rule]
    lines.append(f"| NVIDIA-SMI {_DRIVER}             Driver Version: {_DRIVER}     CUDA Version: 13.0     |")
    lines.append(rule)
    for index in range(config.count):
        gpu = _gpu(index, config)
        memory = f"{gpu['memory.used']}MiB / {gpu['memory.total']}MiB"
        lines.append(f"| {index:3d}  {gpu['name']:<24s}  On  | {gpu['pci.bus_id']} Off | {memory:>23s} |")
    lines += [rule, "| Processes:" + " " * 78 + "|"]
    processes = [(index, found) for index in range(config.count) if (found := _process(index, config))]
    lines += [
        f"| {i:4d}   N/A  N/A {p['pid']:>12s}      C   {p['name']:<30s} {p['used_memory']}MiB |" for i, p in processes
    ]
    if not processes:
        lines.append("|  No running processes found" + " " * 61 + "|")
    return "\n".join([*lines, rule])


def main(arguments: list[str]) -> int:
    """Answer one call; return its exit status."""
    config = gpus.GpuConfig.read()
    if config.hang:
        time.sleep(10**6)
    if config.broken:
        print(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running.\n"
        )
        return 9
    options = dict(argument.partition("=")[::2] for argument in arguments)
    formats = [word for name in ("--format",) for word in options.get(name, "").split(",")]
    indexes = range(config.count)
    if "--query-gpu" in options:
        fields = [_ALIASES.get(name.strip(), name.strip()) for name in options["--query-gpu"].split(",")]
        return _csv(fields, set(_gpu(0, config)), [_gpu(index, config) for index in indexes], formats)
    if "--query-compute-apps" in options:
        fields = [name.strip() for name in options["--query-compute-apps"].split(",")]
        rows = [found for index in indexes if (found := _process(index, config))]
        known = {"gpu_uuid", "pid", "process_name", "name", "used_memory", "used_gpu_memory"}
        return _csv(fields, known, rows, formats)
    if "-L" in arguments or "--list-gpus" in arguments:
        print("\n".join(f"GPU {index}: {config.name} (UUID: {uuid(index)})" for index in indexes))
        return 0
    if arguments[:1] == ["topo"]:
        print(_topology(config.count, peers="-p2p" in arguments))
        return 0
    if arguments:
        print(f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help: {arguments}\n")
        return 2
    print(_table(config))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

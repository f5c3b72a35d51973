"""Hold the stage gpu-check against a plain torch measurement of the same copies in the same run.

    python benchmarks/gpu_check.py --json

On each GPU, the stage's figures for the device copy and both pinned copies must be within ``--within`` (3 %) of one
timing of many copies in a row, which shares no code with it. Exit status: 0 they agree, 1 they do not, 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from opsctl.results import State, StepResult
from opsctl.stages.gpu_check import GpuCheck
from opsctl.stages.locally import local_context, run_here

COPIES = 50


def plain(torch: Any, source: Any, target: Any, moved: int) -> float:
    """Return GB/s over COPIES copies in a row between two events; ``moved`` is the bytes of one."""
    for _ in range(5):
        target.copy_(source, non_blocking=True)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(COPIES):
        target.copy_(source, non_blocking=True)
    end.record()
    torch.cuda.synchronize()
    seconds = float(start.elapsed_time(end)) * 1e-3
    return COPIES * moved / seconds / 1e9


def by_torch(torch: Any, gpu: int, size: int, host_size: int) -> dict[str, float]:
    """Return GB/s of each kind of copy on one GPU."""
    with torch.cuda.device(gpu):
        first = torch.ones(size, dtype=torch.uint8, device="cuda")
        found = {"device-copy": plain(torch, first, torch.empty_like(first), 2 * size)}
        host = torch.ones(host_size, dtype=torch.uint8).pin_memory()
        there = torch.empty(host_size, dtype=torch.uint8, device="cuda")
        found["host-to-device-pinned"] = plain(torch, host, there, host_size)
        found["device-to-host-pinned"] = plain(torch, there, host, host_size)
        torch.cuda.empty_cache()
    return found


def rows_of(result: StepResult, torch: Any, options: GpuCheck) -> list[dict[str, Any]]:
    """Return both figures of each copy on each GPU (GB/s), and how far they are apart."""
    rows = []
    for gpu in range(torch.cuda.device_count()):
        for test, rate in by_torch(torch, gpu, int(options.size), int(options.host_size)).items():
            cell = next(each for each in result.cells if each.id == test)
            found = cell.figure(f"bandwidth.gpu{gpu}")
            ours = found.value if found else None
            off = None if ours is None else ours / rate - 1
            rows.append({"gpu": gpu, "test": test, "stage": ours, "torch": rate, "off": off})
    return rows


def main() -> int:
    """Measure both ways and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document on standard output")
    parser.add_argument("--within", type=float, default=0.03, help="largest difference, as a ratio")
    chosen = parser.parse_args()
    import torch  # noqa: PLC0415 - --help needs none

    if not torch.cuda.is_available():
        print("no GPU: torch sees no CUDA device", file=sys.stderr)
        return 2
    options = GpuCheck(device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        result = run_here("gpu-check", options, local_context(Path(folder)))
    rows = rows_of(result, torch, options)
    agree = all(row["off"] is not None and abs(row["off"]) <= chosen.within for row in rows)
    passed = agree and result.state is State.VERIFIED
    if chosen.json:
        document = {"passed": passed, "within": chosen.within, "rows": rows, "result": result.model_dump(mode="json")}
        print(json.dumps(document, indent=1))
    else:
        for row in rows:
            print(
                f"GPU {row['gpu']} {row['test']}: stage {row['stage']} GB/s, torch {row['torch']:.1f}, off {row['off']}"
            )
        print(f"{result.state}: {result.reason}", *result.detail["findings"], sep="\n")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())

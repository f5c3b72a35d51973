"""Hold the stage gpu-check against a plain torch measurement of the same copies in the same run.

    PYTHONPATH=. python benchmarks/gpu_check.py --json

Needs torch and nothing else: it runs the payload as a host does. On each GPU the stage's figures for the device copy
and both pinned copies must be within ``--within`` (3 %) of one timing of many copies in a row, which shares no code
with it. Exit status: 0 they agree, 1 they do not (or a cell failed), 2 no GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from opsctl.payload.gpu_check import MOVED, Spec

ROOT = Path(__file__).parents[1]
COPIES = 50
SPEC = Spec(cells=tuple(MOVED), device="cuda")


def by_stage(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the stage's payload, run as a process of its own."""
    (folder / "spec.json").write_text(json.dumps(SPEC.to_dict()))
    argv = [sys.executable, "-m", "opsctl.payload", "gpu-check", "--spec", str(folder / "spec.json")]
    subprocess.run([*argv, "--out", str(folder / "results.jsonl")], cwd=ROOT, check=False, timeout=600)
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


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


def by_torch(torch: Any, gpu: int) -> dict[str, float]:
    """Return GB/s of each kind of copy on one GPU."""
    size, host_size = SPEC.size, SPEC.host_size
    with torch.cuda.device(gpu):
        first = torch.ones(size, dtype=torch.uint8, device="cuda")
        found = {"device-copy": plain(torch, first, torch.empty_like(first), 2 * size)}
        host = torch.ones(host_size, dtype=torch.uint8).pin_memory()
        there = torch.empty(host_size, dtype=torch.uint8, device="cuda")
        found["host-to-device-pinned"] = plain(torch, host, there, host_size)
        found["device-to-host-pinned"] = plain(torch, there, host, host_size)
    return found


def compared(records: list[dict[str, Any]], torch: Any) -> list[dict[str, Any]]:
    """Return both figures of each copy on each GPU (GB/s), and how far they are apart (a ratio; None: not measured)."""
    cells = {record["id"]: record for record in records if record["record"] == "cell"}
    rows = []
    for gpu in range(torch.cuda.device_count()):
        for test, rate in by_torch(torch, gpu).items():
            figures = {each["name"]: each["value"] for each in cells.get(test, {}).get("figures", ())}
            ours = figures.get(f"bandwidth.gpu{gpu}")
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
    with tempfile.TemporaryDirectory() as folder:
        records = by_stage(Path(folder))
    rows = compared(records, torch)
    agree = all(row["off"] is not None and abs(row["off"]) <= chosen.within for row in rows)
    passed = agree and records[-1].get("state") == "verified"
    if chosen.json:
        print(json.dumps({"passed": passed, "within": chosen.within, "rows": rows, "records": records}, indent=1))
    else:
        for row in rows:
            print(f"GPU {row['gpu']} {row['test']}: stage {row['stage']} GB/s, torch {row['torch']}, off {row['off']}")
        print(f"{records[-1].get('state')}: {records[-1].get('reason')}")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())

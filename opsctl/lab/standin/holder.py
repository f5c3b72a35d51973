"""A worker of the paced engine: holds one GPU and computes nothing.

``holder.py RANK NAME FAULTS``: takes the GPU, says so in one line of JSON, and ends with its parent (its standard
input closes) or by SIGTERM. Standard library only, started by path.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

if __package__ in {None, ""}:
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from opsctl.lab.standin import gpus
from opsctl.lab.standin.faults import parse


def leave_control_group() -> None:
    """Move to the top of every hierarchy that systemd uses: where a stop of the unit does not reach."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") or "name=systemd" in after:
            try:
                (Path(before.split()[4]) / "cgroup.procs").write_text("0")
            except OSError as error:
                print(f"holder: cannot leave its control group: {error}", file=sys.stderr)


def main(rank: int, name: str, fault_text: str) -> int:
    """Hold the GPU until it is time to go."""
    faults = parse(fault_text)
    stays = "leaves-child" in faults and rank == 0
    if stays or "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        held = gpus.hold(rank, name, gpus.GpuConfig.read())
    except gpus.GpuBusyError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps({"pid": os.getpid()}), flush=True)
    if stays:
        leave_control_group()
    sys.stdin.buffer.read()  # until the parent is gone
    while stays:
        time.sleep(3600)
    del held
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))

"""Run Holistic Trace Analysis on one file, in its own environment; print seconds, peak memory and what it found.

Started by trace_throughput.py, with the Python of `.venv-hta`. It imports nothing of opsctl.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path

_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it started and waited for."""
    used = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Analyse ``sys.argv[1]``: parse, kernel breakdown, overlap; count kernels and add their times up by name."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis  # noqa: PLC0415 (its import is not what is timed)

    path = Path(sys.argv[1]).resolve()
    cpu, wall = cpu_seconds(), time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir=str(path.parent))
    parsed = cpu_seconds() - cpu
    analysis.get_gpu_kernel_breakdown(visualize=False)
    spent = cpu_seconds() - cpu
    elapsed = time.perf_counter() - wall
    table = analysis.t.get_trace(0)
    names = analysis.t.symbol_table.get_sym_table()
    on_device = table[table["stream"].ge(0) & table["cat"].map(lambda index: names[index] == "kernel")]
    grouped = on_device.groupby("name")["dur"].agg(["count", "sum"])
    kernels = {names[index]: [int(row["count"]), float(row["sum"])] for index, row in grouped.iterrows()}
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    found = {
        "cpu_s": spent,
        "parse_cpu_s": parsed,
        "wall_s": elapsed,
        "peak_mb": max(resource.getrusage(who).ru_maxrss for who in _WHO) / 1024,
        "kernels": kernels,
        "overlap_percent": [float(value) for value in overlap["comp_comm_overlap_pctg"].fillna(0)],
    }
    print("RESULT " + json.dumps(found))


if __name__ == "__main__":
    main()

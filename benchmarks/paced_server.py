"""A model server that does nothing but keep time: it streams tokens at a given pace and stamps each send.

Cheap enough not to be the bottleneck of what is measured against it, and the truth that a client is judged by:
``GET /stamps`` returns, for each request, when it was read and when each chunk was written (CLOCK_MONOTONIC).
Run by ``benchmarks/load_generator.py`` and by the tests of the load generator, with faults on request::

    python benchmarks/paced_server.py --port 0 --ttft 0.05 --interval 0.01 [--fault cut-stream …]
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAULTS = (
    "refuse-every-third",  # status 500 with a body
    "cut-stream",  # every third stream ends in the middle
    "error-in-stream",  # every third stream reports an error
    "stall",  # every third stream stops for ever
    "no-usage",  # usage is never sent
    "short",  # half the tokens that were asked
    "two-a-chunk",  # speculative decoding: two tokens in a chunk
    "close-each",  # a new connection for each request
    "close-idle",  # the server drops connections that it said it would keep
    "crlf-and-pieces",  # CRLF line ends, comments, writes cut at odd places
    "no-tokenize",
    "no-metrics",
    "cached",  # the prefix cache hits
    "profile-404",
    "profile-missing-rank",
    "profile-cut-file",
    "profile-late-file",
    "profile-no-kernels",
    "profile-no-work",
    "profile-hang",
)


@dataclass
class Settings:
    """How the server behaves."""

    model: str
    ttft: float
    interval: float
    faults: frozenset[str]
    key: str | None
    trace_dir: Path | None
    ranks: int


@dataclass
class State:
    """What it has seen."""

    requests: int = 0
    prompt_tokens: int = 0
    stamps: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)
    profiling: bool = False
    profiled: list[dict[str, Any]] = field(default_factory=list)


class Handler(asyncio.Protocol):
    """One connection."""

    def __init__(self, settings: Settings, state: State) -> None:
        self.settings = settings
        self.state = state
        self.buffer = b""
        self.streams = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Answer whole requests."""
        self.buffer += data
        while b"\r\n\r\n" in self.buffer:
            head, rest = self.buffer.split(b"\r\n\r\n", 1)
            lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            length = int(headers.get("content-length", "0"))
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            method, path, _ = lines[0].split(" ", 2)
            self.answer(method, path, headers, rest[:length])

    def reply(self, status: int, body: object, *, kind: str = "application/json") -> None:
        """Send a whole answer."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        self.transport.write(head.encode() + data)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """Route one request."""
        settings, state = self.settings, self.state
        guarded = path.startswith("/v1/") or path == "/tokenize"
        if settings.key and guarded and headers.get("authorization") != f"Bearer {settings.key}":
            self.reply(401, {"error": "Unauthorized"})
        elif path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": settings.model}]})
        elif path == "/version":
            self.reply(200, {"version": "0.32.0"})
        elif path == "/metrics" and "no-metrics" not in settings.faults:
            hits = state.prompt_tokens // 2 if "cached" in settings.faults else 0
            lines = [
                f'vllm:prefix_cache_queries_total{{engine="0"}} {float(state.prompt_tokens)}',
                f'vllm:prefix_cache_hits_total{{engine="0"}} {float(hits)}',
            ]
            self.reply(200, "\n".join(["# HELP x y", *lines, ""]), kind="text/plain")
        elif path == "/tokenize" and "no-tokenize" not in settings.faults:
            self.reply(200, {"count": 1 + len(json.loads(body)["prompt"].split())})
        elif path == "/v1/completions" and method == "POST":
            self.complete(json.loads(body))
        elif path == "/stamps":
            self.reply(200, {"requests": state.stamps, "prompts": len(set(state.bodies)), "profiled": state.profiled})
            state.stamps.clear()
        elif path in {"/start_profile", "/stop_profile"} and "profile-404" not in settings.faults:
            self.profile(path, body)
        else:
            self.reply(404, {"detail": "Not Found"})

    def complete(self, request: dict[str, Any]) -> None:
        """Start one stream."""
        state = self.state
        state.requests += 1
        state.prompt_tokens += len(request["prompt"].split()) + 1
        state.bodies.append(hash(request["prompt"]))
        third = state.requests % 3 == 0
        if third and "refuse-every-third" in self.settings.faults:
            self.reply(500, {"error": "planted"})
            return
        Stream(self, request, third=third).begin()

    def profile(self, path: str, body: bytes) -> None:
        """Start or stop the profiler, with the faults that real ones have."""
        settings, state = self.settings, self.state
        if path == "/start_profile":
            state.profiling = True
            state.profiled.append({"requests": state.requests, "body": body.decode()})
            self.reply(200, "", kind="text/plain")
            return
        state.profiling = False
        if "profile-hang" in settings.faults:
            return
        if settings.trace_dir is not None:
            write_traces(settings.trace_dir, settings.ranks, settings.faults)
        self.reply(200, "", kind="text/plain")


def trace_document(rank: int, ranks: int, *, work: str) -> bytes:
    """Return a small Kineto trace: steps of two kernels each, of host operators (as on a CPU), or of nothing."""
    device = work == "kernel"
    events: list[dict[str, Any]] = []
    for step in range(4):
        start = 1000.0 + 500.0 * step
        name = "execute_context_0(0)_generation_1(1)"
        events.append(
            {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": 400.0}
        )
        if work:
            for place, kernel in enumerate(("gemm_kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")):
                events.append(
                    {
                        "ph": "X",
                        "cat": work,
                        "name": kernel,
                        "pid": 0 if device else 1,
                        "tid": 7 if device else 1,
                        "ts": start + 50 + 100 * place,
                        "dur": 80.0,
                        "args": {"stream": 7, "device": 0},
                    }
                )
    events.append({"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 4000.0, "s": "g"})
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "none"}] if device else [],
        "distributedInfo": {"rank": rank, "world_size": ranks, "backend": "nccl"},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "traceName": f"rank{rank}",
    }
    return json.dumps(document, indent=1).encode()


def write_traces(folder: Path, ranks: int, faults: frozenset[str]) -> None:
    """Write one file a rank, as vLLM names them, and the front end's, which is none."""
    stamp = time.time_ns()
    work = "" if "profile-no-work" in faults else "cpu_op" if "profile-no-kernels" in faults else "kernel"
    for rank in range(ranks):
        if rank == ranks - 1 and "profile-missing-rank" in faults:
            continue
        data = gzip.compress(trace_document(rank, ranks, work=work))
        if rank == 0 and "profile-cut-file" in faults:
            data = data[: len(data) // 2]
        path = folder / f"dp0_pp0_tp{rank}_dcp0_ep{rank}_rank{rank}.{stamp}.pt.trace.json.gz"
        if rank == 0 and "profile-late-file" in faults:
            path.write_bytes(data[: len(data) // 2])
            asyncio.get_running_loop().call_later(1.5, path.write_bytes, data)
        else:
            path.write_bytes(data)
    front = folder / f"vm_1.async_llm.{stamp}.pt.trace.json.gz"
    front.write_bytes(gzip.compress(b'{"traceEvents": []}'))


class Stream:
    """One completion."""

    def __init__(self, handler: Handler, request: dict[str, Any], *, third: bool) -> None:
        self.handler = handler
        self.faults = handler.settings.faults
        self.third = third
        self.loop = asyncio.get_running_loop()
        self.left = int(request["max_tokens"])
        if "short" in self.faults:
            self.left = max(1, self.left // 2)
        self.total = self.left
        self.prompt = len(request["prompt"].split()) + 1
        self.read = time.monotonic()
        self.due = self.read + handler.settings.ttft
        self.sends: list[float] = []

    def begin(self) -> None:
        """Send the head at once, tokens at their times."""
        self.handler.streams += 1
        close = "Connection: close\r\n" if "close-each" in self.faults else ""
        self.handler.transport.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{close}Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        self.loop.call_at(self.due, self.token)

    def event(self, data: bytes) -> None:
        """Write one event as one chunk."""
        if "crlf-and-pieces" in self.faults:
            event = b": ping\r\n\r\ndata: " + data + b"\r\n\r\n"
            half = len(event) // 2
            parts = [f"{len(part):X};x=y\r\n".encode() + part + b"\r\n" for part in (event[:half], event[half:])]
            whole = b"".join(parts)
            self.handler.transport.write(whole[:7])
            self.handler.transport.write(whole[7:])  # a send of its own: asyncio sets TCP_NODELAY
            return
        event = b"data: " + data + b"\n\n"
        self.handler.transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def token(self) -> None:
        """Send the next token."""
        if self.handler.transport.is_closing():
            return
        if self.third and self.left <= self.total // 2:
            if "cut-stream" in self.faults:
                self.handler.transport.close()
                return
            if "stall" in self.faults:
                return
            if "error-in-stream" in self.faults:
                self.event(b'{"error": {"message": "EngineCore died"}}')
                self.finish()
                return
        self.sends.append(time.monotonic())
        text = b"" if self.left % 4 else b' \\"choices\\":[] token'
        self.event(
            b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"paced","choices":[{"index":0,"text":"'
            + text
            + b'","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}'
        )
        step = 2 if "two-a-chunk" in self.faults else 1
        self.left -= step
        if self.left > 0:
            self.due += self.handler.settings.interval
            self.loop.call_at(self.due, self.token)
            return
        if "no-usage" not in self.faults:
            usage = {"prompt_tokens": self.prompt, "completion_tokens": self.total, "total_tokens": 0}
            self.event(json.dumps({"choices": [], "usage": usage}, separators=(",", ":")).encode())
        self.finish()

    def finish(self) -> None:
        """End the stream."""
        self.event(b"[DONE]")
        self.handler.transport.write(b"0\r\n\r\n")
        self.handler.state.stamps.append({"read": self.read, "sends": self.sends})
        self.handler.streams -= 1
        if "close-each" in self.faults or "close-idle" in self.faults:
            self.loop.call_later(0.005, self.close_if_idle)

    def close_if_idle(self) -> None:
        """Drop the connection, unless a request came first."""
        if not self.handler.streams:
            self.handler.transport.close()


async def serve(settings: Settings, port: int, certificate: Path | None) -> None:
    """Serve until ended; the first line of output is the port."""
    state = State()
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Handler(settings, state), "127.0.0.1", port, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="paced")
    parser.add_argument("--ttft", type=float, default=0.05, help="seconds from reading a request to its first token")
    parser.add_argument("--interval", type=float, default=0.01, help="seconds between tokens")
    parser.add_argument("--fault", action="append", default=[], choices=FAULTS)
    parser.add_argument("--key", help="require this API key")
    parser.add_argument("--tls", type=Path, help="serve https with this key and certificate (PEM)")
    parser.add_argument("--trace-dir", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--core", type=int, help="pin to this core")
    chosen = parser.parse_args()
    if chosen.core is not None:
        os.sched_setaffinity(0, {chosen.core})
    settings = Settings(
        chosen.model, chosen.ttft, chosen.interval, frozenset(chosen.fault), chosen.key, chosen.trace_dir, chosen.ranks
    )
    try:
        asyncio.run(serve(settings, chosen.port, chosen.tls))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

"""Writes traces: in Kineto's two layouts, byte for byte, and in any other spelling of the same JSON."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

Event = dict[str, Any]
BASE_NS = 1_790_857_026_000_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MARLIN = "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 128, 1, 8, 8>(int4 const*)"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"
SAMPLE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>(int)"


def number(ns: int) -> str:
    """Return µs with three decimals, as Kineto writes a time."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def kernel(name: str, start: int, duration: int, *, stream: int = 7, correlation: int = 0, **args: Any) -> Event:
    """Return a kernel; times in ns."""
    own = {"queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": correlation, **args}
    return {"cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": duration, "args": own}


def host(category: str, name: str, start: int, duration: int, *, tid: int = 415, **args: Any) -> Event:
    """Return a span of the host."""
    return {"cat": category, "name": name, "pid": 415, "tid": tid, "ts": start, "dur": duration, "args": args}


def launch(name: str, start: int, correlation: int) -> Event:
    """Return a runtime call."""
    return host("cuda_runtime", name, start, 5_000, cbid=311, correlation=correlation)


def _head(rank: int | None, world: int | None, device: str | None) -> str:
    devices = "" if device is None else f'\n    {{\n      "id": 0, "name": "{device}", "totalGlobalMem": 1\n    }}\n  '
    distributed = (
        f'\n    "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world}}},'
        if rank is not None
        else ""
    )
    return (
        f'\n  {{\n    "schemaVersion": 1,\n    "deviceProperties": [{devices}],{distributed}\n'
        f'  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {BASE_NS},\n  "traceEvents": ['
    )


def _event(event: Event, layout: str) -> str:
    name = event.get("raw_name", json.dumps(event["name"])[1:-1])
    args = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event["args"].items())
    tail = f'"args": {{\n            {args}\n    }}\n  }}'
    pid, tid = json.dumps(event["pid"]), json.dumps(event["tid"])
    ts, dur = number(event["ts"]), number(event["dur"])
    if layout == "2.11":
        return (
            f'\n  {{\n    "ph": "X", "cat": "{event["cat"]}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
            f'    "ts": {ts}, "dur": {dur},\n    {tail}'
        )
    return (
        f'\n  {{\n    "ph": "X",\n    "cat": "{event["cat"]}",\n    "name": "{name}",\n    "pid": {pid},\n'
        f'    "tid": {tid},\n    "ts": {ts},\n    "dur": {dur}\n    ,\n    {tail}'
    )


def kineto(
    events: Sequence[Event],
    *,
    layout: str = "2.11",
    rank: int | None = 0,
    world: int | None = 1,
    device: str | None = "NVIDIA H200",
) -> bytes:
    """Return the text of a trace file as Kineto writes it (torch 2.11's layout, or 2.13's)."""
    last = max((event["ts"] + event["dur"] for event in events), default=0)
    end = (
        f'\n  {{\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {number(last)}\n  }}'
    )
    parts = [_event(event, layout) for event in events]
    return (_head(rank, world, device) + ",".join([*parts, end]) + '\n  ],\n  "traceName": "/tmp/x.json"\n}').encode()


def respelled(text: bytes, how: str) -> bytes:
    """Return the same document in another spelling: ``minified``, ``indented``, ``sorted`` or ``array``."""
    document = json.loads(text, parse_float=_Literal)
    if how == "array":
        return _dump(document["traceEvents"], None).encode()
    if how == "sorted":
        document = dict(sorted(document.items()))
        document["traceEvents"] = [dict(sorted(event.items(), reverse=True)) for event in document["traceEvents"]]
        return _dump(document, None).encode()
    return _dump(document, 1 if how == "indented" else None).encode()


class _Literal(float):
    def __new__(cls, text: str) -> Self:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __repr__(self) -> str:
        return self.text


def _dump(value: Any, indent: int | None, depth: int = 0) -> str:
    """Write JSON with numbers spelled as they were (the json module would go through float64)."""
    new, pad = ("\n" + " " * (depth + 1), "\n" + " " * depth) if indent else ("", "")
    if isinstance(value, _Literal):
        return value.text
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}:{_dump(item, indent, depth + 1)}" for key, item in value.items()]
        return "{" + new + ("," + new).join(items) + pad + "}"
    if isinstance(value, list):
        return "[" + new + ("," + new).join(_dump(item, indent, depth + 1) for item in value) + pad + "]"
    return json.dumps(value)


def decode_events(
    *,
    steps: int = 20,
    layers: int = 3,
    batch: int = 1,
    slow: int = 0,
    marker: str = "execute_context_0(0)_generation_{batch}({batch})",
) -> list[Event]:
    """Return the events of a decode loop of CUDA-graph replays: a layer is MoE GEMM, GEMM beside it, all-reduce.

    Each layer takes 10 µs of Marlin, 4 µs of GEMM on a second stream inside it, and 6 µs of all-reduce of which
    ``slow`` ns fewer are waiting. A step takes 100 µs + 20 µs a layer.
    """
    events: list[Event] = []
    period = 100_000 + layers * 20_000
    for step in range(steps):
        at = 1_000_000_000 + step * period
        correlation = 1000 + step
        events.append(host("user_annotation", marker.format(batch=batch, step=step), at, 60_000))
        events.append(launch("cudaGraphLaunch", at + 1_000, correlation))
        for layer in range(layers):
            begin = at + 50_000 + layer * 20_000
            events.append(kernel(MARLIN, begin, 10_000, correlation=correlation))
            events.append(kernel(GEMM, begin + 2_000, 4_000, stream=17, correlation=correlation))
            events.append(kernel(NCCL, begin + 10_000 + slow, 6_000 - slow, correlation=correlation))
        events.append(launch("cudaLaunchKernel", at + 8_000, 50_000 + step))
        events.append(kernel(SAMPLE, at + 55_000 + layers * 20_000, 3_000, correlation=50_000 + step))
    return events


def write(path: Path, text: bytes) -> Path:
    """Write a trace file, gzip where its name ends in .gz."""
    path.write_bytes(gzip.compress(text, 6, mtime=0) if path.name.endswith(".gz") else text)
    return path

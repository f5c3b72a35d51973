"""What a trace file says of itself outside its events: rank, base time, device, versions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{.*?"rank"\s*:\s*(\d+)', re.DOTALL)
_WORLD = re.compile(rb'"distributedInfo"\s*:\s*\{.*?"world_size"\s*:\s*(\d+)', re.DOTALL)
_DEVICE = re.compile(rb'"deviceProperties"\s*:\s*\[[^\]]*?"name"\s*:\s*"([^"]*)"', re.DOTALL)


@dataclass(frozen=True)
class Metadata:
    """The head and tail of a file. ``base_ns`` is added to every time; None stands for what the file does not say."""

    base_ns: int = 0
    rank: int | None = None
    world_size: int | None = None
    device: str | None = None
    server: str | None = None
    closed: bool = False
    sound: bool = True
    """Whether the text after the events is valid JSON; else it was read field by field."""


def read_metadata(head: bytes, tail: bytes, *, closed_array: bool, bare_array: bool) -> Metadata:
    """Return what ``head`` (before the events) and ``tail`` (after their closing bracket) say.

    ``closed`` is true where the whole document's JSON closes. Text that is not valid JSON is read field by field.
    """
    before, after = _object(head.rstrip(b" \r\n\t,") + b"}"), _object(b"{" + tail.lstrip(b" \r\n\t,"))
    # What closes the document may follow text that is no JSON (Kineto's unescaped quotes).
    closes = tail.rstrip().endswith(b"}") and tail.count(b"}") == tail.count(b"{") + 1
    closed = closed_array and (not tail.strip() if bare_array else after is not None or closes)
    known: dict[str, Any] = {**(before or {}), **(after or {})}
    text = head + tail
    distributed = known.get("distributedInfo")
    if not isinstance(distributed, dict):
        distributed = {"rank": _number(_RANK, text), "world_size": _number(_WORLD, text)}
    devices = known.get("deviceProperties")
    name = devices[0].get("name") if isinstance(devices, list) and devices and isinstance(devices[0], dict) else None
    if name is None and (match := _DEVICE.search(text)):
        name = match[1].decode("utf-8", "replace")
    version = known.get("vllm_version")
    return Metadata(
        base_ns=_whole(known.get("baseTimeNanoseconds")) or _number(_BASE, text) or 0,
        rank=_whole(distributed.get("rank")),
        world_size=_whole(distributed.get("world_size")),
        device=str(name) if name else None,
        server=f"vLLM {version}" if version else None,
        closed=closed,
        sound=after is not None or not closed or bare_array,
    )


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    match = pattern.search(text)
    return _whole(int(match[1][:20])) if match else None

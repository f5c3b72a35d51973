"""What profile is told: the server, the routes of its profiler, and the windows to capture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opsctl.payload import records
from opsctl.payload.records import Record, many


@dataclass(frozen=True)
class CellSpec(Record):
    """One window."""

    id: str
    concurrency: int
    window: int = 1


@dataclass(frozen=True)
class Spec(records.Spec):
    """What is captured. Limits are seconds."""

    url: str
    model: str
    trace_dir: str
    ranks: int
    input_tokens: int
    output_tokens: int
    cells: tuple[CellSpec, ...] = many(CellSpec)
    start: str = "/start_profile"
    """Routes that switch the server's profiler on and off."""
    stop: str = "/stop_profile"
    start_body: dict[str, Any] | None = None
    """JSON body of the start."""
    accepted: str = ""
    """Words that the answer to the start must hold, in lower case."""
    api_key_file: str | None = None
    ca_file: str | None = None
    """Path on the host: certificates in PEM that sign the server's."""
    verify: bool = True
    profiler: str = "torch"
    """torch, or nsys."""
    warmup_requests: int = 3
    requests: int | None = None
    """In a window, never fewer than the concurrency."""
    flush_limit: float = 2700.0
    request_limit: float = 600.0
    limit: float = 10800.0
    expected: dict[str, Any] | None = None
    """Collectives of a decode step by operation, where the model is known."""
    token_bytes: int | None = None
    """Of one token's hidden state."""
    version: tuple[tuple[str, str], ...] = ()
    """(route, key of its JSON answer) of the server's version, in the order in which they are asked."""

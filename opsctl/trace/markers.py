"""Names of spans that mark a step of a model server."""

from __future__ import annotations

import re
from dataclasses import dataclass

DECODE, PREFILL, MIXED, TRAINING, OTHER_KIND, IDLE = "decode", "prefill", "mixed", "training", "other", "idle"
SCHEDULE = "ProfilerStep markers"

# vLLM 0.14+: execute_context_R(T)_generation_R(T): requests (tokens); some builds number the steps and write
# sequence and key lengths in the brackets. vLLM 0.11–0.13: execute_new_N_cached_M.
_VLLM = re.compile(r"execute_(?:\d+_)?context_(\d+)\(([^)]*)\)_generation_(\d+)\([^)]*\)")
_VLLM_OLD = re.compile(r"execute_new_(\d+)_cached_(\d+)")
# SGLang: step[DECODE bs=4], step[EXTEND bs=2 toks=107], step[MIXED bs=2], step[IDLE bs=0]
_SGLANG = re.compile(r"step\[(\w+)(?: bs=(\d+))?(?: toks=(\d+))?[^\]]*\]")
_SCHEDULE = re.compile(r"ProfilerStep#(\d+)")
_SGLANG_KINDS = {"DECODE": DECODE, "EXTEND": PREFILL, "PREFILL": PREFILL, "MIXED": MIXED, "IDLE": IDLE}


@dataclass(frozen=True)
class Marker:
    """What a marker says: the kind of step, the requests in it (None: not said), and its spelling."""

    kind: str
    batch: int | None
    source: str


def read_marker(name: str) -> Marker | None:
    """Return what the name of a span says of a step; None where it is no marker."""
    if match := _VLLM.fullmatch(name):
        return _of_vllm(int(match[1]), int(match[3]))
    if match := _VLLM_OLD.fullmatch(name):
        return _of_vllm(int(match[1]), int(match[2]))
    if match := _SGLANG.fullmatch(name):
        kind = _SGLANG_KINDS.get(match[1].upper(), OTHER_KIND)
        return Marker(kind, int(match[2]) if match[2] else None, "step[…] markers")
    if _SCHEDULE.fullmatch(name):
        return Marker(OTHER_KIND, None, SCHEDULE)
    return None


def _of_vllm(new: int, running: int) -> Marker:
    source = "execute_ markers"
    if new and running:
        return Marker(MIXED, new + running, source)
    if new or running:
        return Marker(PREFILL if new else DECODE, new or running, source)
    return Marker(IDLE, 0, source)

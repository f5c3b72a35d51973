"""What the name of a trace file tells: rank and other coordinates, the profiler's stamp, the job.

vLLM writes ``dp0_pp0_tp1_dcp0_ep0_rank1.TIME.pt.trace.json.gz`` or ``NAME-rank-1.TIME…``, SGLang
``ID-TP-1-DP-0-PP-0-EP-0.trace.json.gz``, torch's own handler ``HOST_PID.TIME.pt.trace.json``.
"""

from __future__ import annotations

import re
from typing import Tuple

ENDING = re.compile(r"(\.pt)?(\.trace)?\.json(\.gz)?$")
_COORDINATE = re.compile(r"(?:(?<=[^a-z])|^)(dp|pp|tp|ep|dcp|cp|rank)[-_]?(\d+)(?![a-z0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<=[._-])|^)\d+(?=[._-]|$)")
_SESSION = re.compile(r"\d{9,}\.\d+(?=-)")
# Between dots: a host may be called frontend.
_FRONT_END = re.compile(r"\.(async_llm|front[-_]?end)\.", re.IGNORECASE)
_ORDER = ("dp", "pp", "tp", "cp", "dcp", "ep", "rank")

Coordinates = Tuple[Tuple[str, int], ...]


def coordinates(name: str) -> Coordinates:
    """Return the coordinates that a file's name tells, data parallel first: ``(("dp", 0), ("tp", 1))``."""
    found = {kind.lower(): int(number) for kind, number in _COORDINATE.findall(ENDING.sub("", name))}
    return tuple((kind, found[kind]) for kind in _ORDER if kind in found)


def coordinates_text(name: str) -> str:
    """Return the coordinates for a person, without a lone rank: ``DP 0 TP 1``."""
    found = [(kind, number) for kind, number in coordinates(name) if kind != "rank"]
    return " ".join(f"{kind.upper()} {number}" for kind, number in found)


def rank_in_name(name: str) -> int | None:
    """Return the rank that a file's name tells: its own word for it, else the tensor parallel one."""
    found = dict(coordinates(name))
    return found.get("rank", found.get("tp"))


def is_front_end(name: str) -> bool:
    """Whether the name is that of a server's front end, which is no rank."""
    return _FRONT_END.search(name) is not None


def session(name: str) -> str:
    """Return the id of one recording that SGLang begins all its files with; "" where there is none."""
    match = _SESSION.match(name)
    return match[0] if match else ""


def stamp(name: str) -> str:
    """Return the time (or the process) that the profiler put into the name; "" where there is none."""
    found = _NUMBER.findall(_COORDINATE.sub("", ENDING.sub("", name)))
    return str(found[-1]) if found else ""


def job(name: str) -> str:
    """Return the name without coordinates and numbers (times, processes): equal for the files of one job."""
    plain = _NUMBER.sub("", _COORDINATE.sub("", ENDING.sub("", name)))
    return re.sub(r"[._-]+", "-", plain).strip("-") or "traces"

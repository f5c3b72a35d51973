"""Durations and sizes as people write them: ``90s``, ``45m``, ``1h30m``, ``512MiB``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo

_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit}(?![a-z]))?" for unit in _SECONDS))
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>B|[kKMGT]i?B)?")
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "kiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_duration(text: object) -> float:
    """Return seconds for ``200ms``, ``90s``, ``45m``, ``1h30m``; a number is seconds already.

    Raises ValueError with what was wanted and what was found.
    """
    if isinstance(text, float) or (isinstance(text, int) and not isinstance(text, bool)):
        # Code and the journal give seconds; what comes from a file is held to its unit below.
        return float(text)
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) and text.strip() else None
    if match is None or not any(match.groups()):
        msg = f"wanted a duration such as 90s, 45m or 1h30m, found {text!r}"
        raise ValueError(msg)
    return sum(float(number) * _SECONDS[unit] for unit, number in match.groupdict().items() if number)


def parse_size(text: object) -> int:
    """Return bytes for ``512MiB``, ``2GB``, ``4096``. Raises ValueError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        msg = f"wanted a size such as 512MiB or 2GB, found {text!r}"
        raise ValueError(msg)
    return int(float(match["number"]) * _BYTES[match["unit"] or "B"])


def format_duration(seconds: float) -> str:
    """Return ``0.42 s``, ``12.3 s``, ``4m 10s``, ``1h 02m``: short enough for a table, exact enough to act on."""
    if round(seconds, 1) < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural where there is not one: "1 night", "0 nights"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def write_duration(seconds: float) -> str:
    """Return a duration as a playbook writes it: ``90s``, ``45m``, ``1h30m``. ``parse_duration`` reads it back."""
    text = ""
    for unit, length in (("h", 3600), ("m", 60)):
        count, seconds = divmod(seconds, length)
        text += f"{count:.0f}{unit}" if count else ""
    return text + (f"{seconds:g}s" if seconds or not text else "")


def format_size(count: float) -> str:
    """Return ``14.0 KiB``, ``512 MiB``: three digits, binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _duration_given(value: object, info: ValidationInfo) -> float:
    written = bool(info.context and info.context.get("written"))
    if written and isinstance(value, int | float) and value != 0:
        msg = f"wanted a duration such as 90s, 45m or 1h30m, found {value!r}: its unit would be a guess"
        raise ValueError(msg)
    return parse_duration(value)


Duration = Annotated[
    float,
    BeforeValidator(_duration_given),
    Field(ge=0, json_schema_extra={"type": "string", "examples": ["90s", "45m", "1h30m"]}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(ge=0, json_schema_extra={"type": "string", "examples": ["512MiB", "2GB"]}),
]

"""What is said of production of a host: one function for messages, tiles, tables and the terminal."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from opsctl.clock import instant
from opsctl.quantities import format_duration
from opsctl.record import ProductionRecord, Standing

Tone = Literal["good", "warn", "bad"]


def production_words(item: ProductionRecord) -> tuple[str, Tone]:
    """Return what the journal's evidence says of production, and its tone. Unknown is never said to be good."""
    match item.standing:
        case Standing.VERIFIED:
            return _verified(item), "good"
        case Standing.UNTOUCHED:
            return f"not touched; {_found(item)}", "good" if item.as_found == "serving" else "warn"
        case Standing.LEFT_DOWN:
            return "left down, as it was found", "warn"
        case Standing.AT_WORK if item.down_since is not None:
            return f"DOWN for {_since(item.down_since)}", "bad"
        case Standing.AT_WORK:
            return _found(item), "good" if item.as_found == "serving" else "warn"
    if item.last_seen is not None:
        seen = _clock(item.last_seen)
        gone = "" if item.down_since is None else f"went DOWN at {_clock(item.down_since)}, and "
        return f"{gone or 'NOT VERIFIED: '}nobody looked after {seen}", "bad"
    down = "" if item.down_since is None else f", DOWN since {_clock(item.down_since)}"
    return f"NOT VERIFIED{down if item.back_at is None else ''}", "bad"


def _verified(item: ProductionRecord) -> str:
    if item.down_since is None:
        return "serving, verified; it never went down"
    by = f" by the {item.restored_by}" if item.restored_by else ""
    down = item.downtime_seconds
    return f"back and verified{by}{f' after {format_duration(down)}' if down is not None else ''}"


def _found(item: ProductionRecord) -> str:
    return f"found {item.as_found}" if item.as_found not in ("", "unknown") else "nobody looked at it"


def _since(moment: str) -> str:
    return format_duration(max(0.0, (instant() - datetime.fromisoformat(moment)).total_seconds()))


def _clock(moment: str) -> str:
    return f"{moment[11:19]}Z"

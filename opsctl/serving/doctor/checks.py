"""A line of ``opsctl doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a check says. Unknown is never shown as ok."""

    OK = "ok"
    WARNING = "warning"
    STOP = "stop"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what it is, the verdict, why, and what to do where there is something to do."""

    name: str
    verdict: Verdict
    reason: str
    hint: str = ""
    alarming: bool = False
    """A choice of the user's that takes a protection away: shown in red, whatever the verdict."""


def ok(name: str, reason: str) -> Check:
    """Return a check that is fine."""
    return Check(name, Verdict.OK, reason)


def warning(name: str, reason: str, hint: str = "") -> Check:
    """Return a check that a person should read before a campaign."""
    return Check(name, Verdict.WARNING, reason, hint)


def stop(name: str, reason: str, hint: str = "") -> Check:
    """Return a check that no campaign starts with."""
    return Check(name, Verdict.STOP, reason, hint)


def unknown(name: str, reason: str, hint: str = "") -> Check:
    """Return a check that could not be made."""
    return Check(name, Verdict.UNKNOWN, reason, hint)

"""What the guard shows of a lease, read from its KEY=VALUE lines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from opsctl.quantities import format_duration

_NEVER = 999_999


@dataclass(frozen=True)
class LeaseView:
    """The lease of a host as the guard has it. Times of day are the host's own, for people only.

    ``state``: none, held, restoring or closed. ``phase`` and ``attempt`` say where a restore is, ``seen`` what last
    went wrong in it, ``result`` how it ended. ``remaining`` and ``tick_age`` are seconds at the moment of asking;
    a lease of another scope shows the deadline that it was armed with, since renewals stay in its own mirror.
    """

    state: str = "none"
    token: int = 0
    run: str = ""
    holder: str = ""
    since: str = ""
    boot_id: str = ""
    ttl: float = 0.0
    remaining: float = 0.0
    scope: str = ""
    unit: str = ""
    phase: str = ""
    why: str = ""
    by: str = ""
    attempt: int = 0
    seen: str = ""
    result: str = ""
    closed_at: str = ""
    closed_by: str = ""
    tick_age: float = _NEVER
    version: str = ""
    listener: str = ""
    log: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether somebody holds the host, or a restore is under way."""
        return self.state in {"held", "restoring"}

    @property
    def unverified(self) -> bool:
        """Whether the guard started production and cannot see whether it serves."""
        return self.state == "restoring" and self.result == "unverified"

    @property
    def watched(self) -> bool:
        """Whether the guard has looked within the last half minute."""
        return self.tick_age <= 30

    def describe(self) -> str:
        """Return one line for a person: who, since when, until when, or who restored what and when."""
        run = f" (run {self.run})" if self.run else ""
        if self.state == "held":
            return f"held by {self.holder}{run} {self.since_and_until()}"
        if self.state == "restoring":
            trouble = f", attempt {self.attempt + 1}: {self.seen}" if self.attempt or self.seen else ""
            return f"{self.why}: the guard is bringing back {self.unit or 'nothing'} ({self.phase}{trouble}){run}"
        if self.state == "closed":
            what = f"{self.unit} {self.result}" if self.unit else self.result
            reason = f", after: {self.why}" if self.why else ""
            return f"closed by {self.closed_by} at {self.closed_at}: {what}{reason}{run}"
        return "no lease was ever held here"

    def since_and_until(self) -> str:
        """Return since when and until when it is held, for a sentence that has said by whom."""
        until = f"until {format_duration(self.remaining)} from now unless renewed"
        return f"since {self.since}, {until}{'' if self.watched else '; NO guard watches it'}"

    def document(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {**asdict(self), "live": self.live, "unverified": self.unverified, "watched": self.watched}


def parse_view(text: str) -> LeaseView:
    """Return the view in the guard's answer; lines that are not KEY=VALUE are passed over."""
    pairs = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    values = {key: value for key, value in pairs if key != "log"}
    words = {
        key: values.get(key, "")
        for key in (
            "run", "holder", "since", "scope", "unit", "phase", "why", "by", "seen", "result", "closed_at", "closed_by",
            "version", "listener",
        )
    }  # fmt: skip
    return LeaseView(
        **words,
        state=values.get("state", "none"),
        token=int(values.get("token") or 0),
        boot_id=values.get("boot", ""),
        ttl=float(values.get("ttl") or 0),
        remaining=float(values.get("remaining") or 0),
        attempt=int(values.get("attempt") or 0),
        tick_age=float(values.get("tick_age") or _NEVER),
        log=tuple(value for key, value in pairs if key == "log"),
    )

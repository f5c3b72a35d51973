"""Faults that the stand-in can be told to have: ``STANDIN_FAULT=dies-at-shard=3,times=1``.

A host can also hold them by unit, in ``/etc/opsctl-lab/faults/UNIT`` (same text), so that a variant fails while
production, whose environment it inherits, does not.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FAULTS: dict[str, tuple[float | None, str]] = {
    # name: (default value, or None where it takes none; what happens)
    "stuck-at-shard": (3, "the load stops at this shard and never goes on"),
    "dies-at-shard": (3, "the load dies at this shard, as of a transient fault"),
    "stuck-after-load": (None, "no further line after 100 % of the shards"),
    "out-of-memory": (None, "the load dies for want of GPU memory"),
    "bad-arguments": (None, "the server refuses its command line at once"),
    "dies-after": (1, "the engine dies this many seconds after it was ready"),
    "healthy-but-dead": (None, "/health answers 200, completions never end"),
    "dead-after": (1, "healthy-but-dead from this many seconds after it was ready"),
    "no-tokens": (None, "completions answer 200 and hold no token"),
    "failing-completions": (None, "completions answer 500"),
    "ignores-sigterm": (None, "SIGTERM is ignored, by the workers too"),
    "slow-stop": (5, "a stop takes this many seconds"),
    "failing-start-profile": (None, "/start_profile answers 200; the workers logged a failure and record nothing"),
    "failing-stop-profile": (None, "/stop_profile answers 500"),
    "silent-stop-profile": (None, "/stop_profile answers 200; no rank wrote a file"),
    "slow-stop-profile": (5, "/stop_profile takes this many seconds, with files growing"),
    "hanging-stop-profile": (None, "/stop_profile never answers"),
    "hanging-start-profile": (None, "/start_profile never answers"),
    "dies-in-flush": (None, "the engine dies during /stop_profile, files cut short"),
    "missing-rank": (1, "this rank writes no trace"),
    "cut-rank": (1, "this rank's trace is cut in the middle"),
    "empty-rank": (1, "this rank's trace is an empty file"),
    "garbage-rank": (1, "this rank's trace is not JSON"),
    "leaves-child": (None, "a worker outlives the unit, outside its control group, and keeps its GPU"),
    "times": (1, "the faults above happen at the first N starts only"),
}

FAULT_FOLDER = Path("/etc/opsctl-lab/faults")
STATE_FOLDER = Path("/var/lib/opsctl-lab")


@dataclass(frozen=True)
class Faults:
    """The faults of one start. ``value("dies-at-shard")`` is its number, or None where it is not to happen."""

    active: Mapping[str, float] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        if name not in FAULTS:
            raise KeyError(name)
        return name in self.active

    def value(self, name: str) -> float | None:
        """Return a fault's value, None where it is not to happen."""
        return self.active[name] if name in self else None

    def rank(self, name: str, rank: int) -> bool:
        """Whether a fault that concerns one rank concerns this one."""
        return self.value(name) == rank

    def text(self) -> str:
        """Return what parse() reads."""
        return ",".join(f"{name}={value:g}" for name, value in self.active.items())


def parse(text: str) -> Faults:
    """Read ``name=value,name``. Raises ValueError with the nearest known name."""
    active: dict[str, float] = {}
    for item in filter(None, re.split(r"[,\s]+", text)):
        name, _, value = item.partition("=")
        if name not in FAULTS:
            near = difflib.get_close_matches(name, FAULTS, n=1)
            raise ValueError(f"no fault is named {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
        default = FAULTS[name][0]
        if default is None and value not in {"", "1"}:
            raise ValueError(f"fault {name} takes no value, found {value!r}")
        active[name] = float(value) if value else (1.0 if default is None else float(default))
    return Faults(active)


def own_unit() -> str:
    """Return the systemd unit that this process runs in, "" outside of any."""
    try:
        groups = Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""
    named = re.findall(r"/([^/\s]+\.service)(?:/|$)", groups, re.MULTILINE)
    return named[-1] if named else ""


def of_this_start(environment: Mapping[str, str] = os.environ) -> Faults:
    """Return the faults of this start: from the environment and the unit's file, less those that are used up."""
    unit = own_unit()
    text = environment.get("STANDIN_FAULT", "")
    held = FAULT_FOLDER / unit
    if unit and held.is_file():
        text += "," + held.read_text()
    faults = parse(text)
    times = faults.value("times")
    if times is not None and _count_start(unit, environment) > times:
        return Faults()
    return faults


def _count_start(unit: str, environment: Mapping[str, str]) -> int:
    folder = Path(environment.get("STANDIN_STATE", str(STATE_FOLDER)))
    folder.mkdir(parents=True, exist_ok=True)
    counter = folder / f"starts.{unit or 'no-unit'}"
    count = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(count))
    return count

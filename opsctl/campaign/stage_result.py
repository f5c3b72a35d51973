"""How a stage's unit ended: its records as they grow, and what its end adds to the verdict.

Zero evidence is failure: a stage without an ``end`` record died, whatever its cells say.
"""

from __future__ import annotations

import errno
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.campaign import limits
from opsctl.campaign.artifacts import Collected
from opsctl.clock import now
from opsctl.deadline import Deadline
from opsctl.errors import CommandFailed, OpsctlError
from opsctl.host.protocol import Host, UnitStatus
from opsctl.results import Evidence, State, StepResult


@dataclass
class Tail:
    """Complete lines of a growing JSON Lines file on the host."""

    path: str
    offset: int = 0
    rest: bytes = b""
    records: list[dict[str, Any]] = field(default_factory=list)

    def read(self, host: Host) -> list[dict[str, Any]]:
        """Return the records that are new. The file not being there yet is no news."""
        fresh: list[dict[str, Any]] = []
        while True:
            try:
                data = host.read_file(
                    self.path,
                    deadline=Deadline(limits.CALL, f"results on {host.name}"),
                    offset=self.offset,
                    limit=1 << 20,
                )
            except CommandFailed:
                return fresh
            if not data:
                return fresh
            self.offset += len(data)
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                record = parse_record(line)
                if record is not None:
                    fresh.append(record)
                    self.records.append(record)


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return one line of a stage's results; None for a blank or broken one, which a stage that died may leave."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@dataclass(frozen=True)
class Ending:
    """All that the host says of the end of a stage."""

    unit: str
    status: UnitStatus
    records: list[dict[str, Any]]
    collected: Collected
    folder: Path
    """The run's folder on the controller, to which the artifacts' paths are relative."""
    cut_short: OpsctlError | None = None
    """Why the controller stopped it, when it did."""
    kernel: str = ""
    """The kernel's last line about memory, where the unit was killed for it."""

    @property
    def out_of_memory(self) -> bool:
        """Whether systemd saw the kernel's OOM killer at work in the unit."""
        return self.status.result == "oom-kill"


_CAUSES = {
    "oom-kill": "the kernel's OOM killer ended it",
    "timeout": "its time limit on the host ended it",
    "signal": "a signal ended it",
    "core-dump": "it crashed",
    "watchdog": "it stopped answering its watchdog",
    "exit-code": "it exited with an error",
    "resources": "systemd could not start it",
    "start-limit-hit": "systemd started it too often",
}
"""systemd's Result= in words."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.ENOMEM: "out of memory"}


def with_ending(result: StepResult, ending: Ending) -> StepResult:
    """Add to the stage's verdict what the host says of how its unit ended: zero evidence is failure."""
    end = next((record for record in reversed(ending.records) if record.get("record") == "end"), None)
    evidence = [
        *result.evidence,
        Evidence(
            asked=f"how {ending.unit} ended",
            time=now(),
            observed=f"{ending.status.active_state} ({ending.status.sub_state}), "
            f"Result={ending.status.result or 'none'}, {len(ending.records)} records, "
            f"{'an' if end else 'no'} end record",
        ),
        *(Evidence(asked="what was not fetched", time=now(), observed=left) for left in ending.collected.left),
    ]
    state, reason = result.state, result.reason
    if ending.cut_short is not None:
        state, reason = State.FAILED, str(ending.cut_short)
    elif end is None:
        stderr = next((a for a in ending.collected.artifacts if a.path.endswith("/stderr.log")), None)
        words = _last_lines(ending.folder / stderr.path) if stderr else ""
        state, reason = State.FAILED, _cause(ending, words)
    cells = result.cells
    if state is State.FAILED:
        cells = tuple(
            cell if cell.state.final else cell.model_copy(update={"state": State.FAILED, "reason": reason})
            for cell in cells
        )
    merged = {artifact.path: artifact for artifact in (*result.artifacts, *ending.collected.artifacts)}
    return result.model_copy(
        update={
            "state": state,
            "reason": reason,
            "cells": cells,
            "evidence": tuple(evidence),
            "artifacts": tuple(merged.values()),
        }
    )


def _cause(ending: Ending, words: str) -> str:
    """Return why a stage died, with what says so: systemd's Result, an errno, the kernel's line, its last words."""
    result = ending.status.result
    named = f"{_CAUSES[result]} (Result={result})" if result in _CAUSES else result or ending.status.active_state
    number = _ERRNO.search(words)
    known = _FULL.get(int(number[1])) if number else None
    parts = [part for part in (known, named) if part]
    told = [f"kernel: {ending.kernel}"] if ending.kernel else []
    return f"the stage died: {'; '.join(parts)}{''.join(f': {line}' for line in (*told, words) if line)}"


def _last_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""

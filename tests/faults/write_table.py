"""Write docs/faults.md from what the cells kept: ``python -m tests.faults.write_table OUTCOMES FIRST SECONDS JOBS``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.faults.bench import BOUND, LOAD, TTL
from tests.faults.table import FAULTS, SENSELESS, STATES

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
RELEASES_HEADING = "## On every release"
"""Where the part begins that write_releases.py writes."""
_HEAD = """\
# The fault table

*Written by `script/test-faults`: {held} cells held, {failed} did not, {rest} were not run; {seconds} s on {jobs} lab
hosts at once.*

Each cell was run for real: `opsctl run` drives a short campaign against a lab host (a real systemd, sshd and network
cable, the stand-in server without torch, loading for {load:g} s), is frozen at the instant at which it enters the
state, and the fault is done. A lease lives {ttl:g} s. In every cell, whatever the fault, the following was checked:

- production is active and **answers a completion**, and the host is no longer held, within the bound
  (ttl + stop + load + 30 s = {bound:g} s; where the campaign itself goes on, its own time on top);
- at most one service ever held the GPUs: the stand-in takes an exclusive lock and records every breach;
- nothing that was verified is lost from the journal;
- the exit status is one of those that are true for the cell, and so are the last words: where they say that production
  serves, a completion at that very moment says so too.

Each cell shows the exit status, who brought production back (C the controller, G the guard, – not needed), and the
seconds from the fault until all was at rest. **FAILED** is a broken promise, *not run* says nothing.

"""


def main() -> int:
    """Write the page; return 1 when a cell did not hold."""
    folder, first, seconds, jobs = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    outcomes = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    by_cell = {(one["state"], one["fault"]): one for one in outcomes}
    failed = failures(folder)
    lines = ["| state of the campaign | " + " | ".join(fault.name for fault in FAULTS) + " |"]
    lines.append("|---" * (len(FAULTS) + 1) + "|")
    for state in STATES:
        cells = [_cell(by_cell, failed, (state.name, fault.name)) for fault in FAULTS]
        lines.append(f"| **{state.name}** | " + " | ".join(cells) + " |")
    general = {(state.name, fault.name) for state in STATES for fault in FAULTS}
    special = [one for one in outcomes if (one["state"], one["fault"]) not in general]
    lines += ["", "## Faults of one state", "", "| state | fault | exit | back by | seconds |", "|---|---|---|---|---|"]
    for one in special:
        lines.append(f"| {one['state']} | {one['fault']} | {_exit(one)} | {one['restored_by']} | {one['seconds']} |")
    lines += ["", "A fault of a unit or a stage strikes in the state that it belongs to; in every other state there is"]
    lines += ["nothing for it to strike, so those cells do not exist."]
    lines += ["", "## Cells that make no sense", "", "| state | fault | why |", "|---|---|---|"]
    lines += [f"| {state} | {fault} | {why} |" for (state, fault), why in SENSELESS.items()]
    if failed:
        lines += ["", "## Cells that did not hold", "", *(f"- {name}" for name in failed)]
    if again := failures(first):
        lines += [
            "",
            "## Cells that failed beside others, and were tried once more alone",
            "",
            *(f"- {name}" for name in again),
        ]
    lines += [
        "", "Beside the table: `benchmarks/chaos.py --strike-points` strikes at *every* commit to the journal and",
        "*every* mutation of the host. `tests/guard/` shows the guard alone: power cuts, full and read-only disks,",
        "hung probes, kill -9 and a stepped clock (it uses none: its deadlines are seconds of `/proc/uptime`).",
    ]  # fmt: skip
    unrun = len(general - SENSELESS.keys() - by_cell.keys()) - sum(" / " in name for name in failed)
    head = _HEAD.format(
        held=len(outcomes), failed=len(failed), rest=unrun, seconds=seconds, jobs=jobs, load=LOAD, ttl=TTL, bound=BOUND,
    )  # fmt: skip
    _, heading, releases = PAGE.read_text().partition(f"\n{RELEASES_HEADING}")
    PAGE.write_text(head + "\n".join(lines) + "\n" + heading + releases)
    return 1 if failed or not outcomes else 0


def failures(folder: Path) -> list[str]:
    """Return the names of the cells that failed (``conftest.py`` writes a file for each)."""
    named = (path.read_text().partition("\n")[0] for path in sorted(folder.glob("*.failed.txt")))
    return [name.partition("::")[2] for name in named]


def _cell(held: Mapping[tuple[str, str], dict[str, object]], failed: Sequence[str], place: tuple[str, str]) -> str:
    if place in SENSELESS:
        return "no sense, see below"
    if place not in held:
        return "**FAILED**" if any(f"[{' / '.join(place)}]" in name for name in failed) else "*not run*"
    outcome = held[place]
    by = {"controller": "C", "guard": "G"}.get(str(outcome["restored_by"]), "–")
    return f"{_exit(outcome)} {by} {outcome['seconds']} s"


def _exit(outcome: dict[str, object]) -> str:
    return "killed" if outcome["exit"] == -9 else str(outcome["exit"])


if __name__ == "__main__":
    sys.exit(main())

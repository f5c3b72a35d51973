"""All ranks together: the document that ``opsctl trace --json`` prints and reports rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl.errors import TraceError
from opsctl.trace.across import Team, clock_offsets, match_ranks, odd_clocks
from opsctl.trace.clock import Tpot, beside_the_clock
from opsctl.trace.figures import ratio, us
from opsctl.trace.finding import trace_files
from opsctl.trace.rank import RankResult
from opsctl.trace.tables import (
    category_rows,
    collective_rows,
    hidden_communication,
    kernel_rows,
    other_rows,
    steady_verdict,
    step_groups,
)
from opsctl.trace.workers import analyse_files


@dataclass
class Analysis:
    """What the traces of one server say. ``ranks`` holds every file, ``team`` one file a rank."""

    ranks: list[RankResult]
    team: Team
    expected: dict[str, float] = field(default_factory=dict)
    token_bytes: int | None = None
    tpot: Tpot | None = None

    @property
    def reference(self) -> RankResult | None:
        """Return the file that figures of one rank rest on."""
        return self.team.reference

    @property
    def problems(self) -> list[str]:
        """Return all that is wrong or odd, the files' own problems with their names."""
        own = [f"{result.path.name}: {problem}" for result in self.ranks for problem in result.problems]
        found = [*own, *self.team.findings, *odd_clocks(self.team, clock_offsets(self.team))]
        reference = self.reference
        if reference is None:
            return found
        if not reference.on_device and reference.device:
            found.append(f"no device events, though the file names {reference.device}: figures are of the host")
        if not reference.steady:
            found.append(f"no steps could be told apart ({reference.method}): figures are of the whole window")
        verdict, reason = steady_verdict(reference)
        if verdict != "steady" and reference.steady:
            found.append(f"inconclusive: {reason}")
        return found

    @property
    def notes(self) -> list[str]:
        """Return what a reader should know and need not mend."""
        reference = self.reference
        found = []
        if reference is not None and not reference.on_device:
            found.append("there are no device events: work is what operators on the host did themselves")
        if reference is not None and reference.unplaced and reference.steady:
            found.append(
                f"{reference.unplaced} pieces of work belong to no step: launched before the first marker, or unseen"
            )
        return found

    def document(self) -> dict[str, Any]:
        """Return the JSON document. Times in µs with three decimals; what is not known is None."""
        reference = self.reference
        offsets = clock_offsets(self.team)
        places = {id(member): place for place, member in enumerate(self.team.members)}
        steps = step_groups(reference) if reference else {}
        steady = steps.get("decode") or steps.get("unknown") or {}
        mean = {key: (steady.get(key) or {}).get("mean") for key in ("wall_us", "busy_us", "sum_us")}
        return {
            "ranks": [_rank_row(result, offsets.get(places.get(id(result), -1))) for result in self.ranks],
            "reference_rank": reference.rank if reference else None,
            "basis": _basis(reference),
            "method": reference.method if reference else None,
            "steps": steps,
            "categories": category_rows(self.team) if reference else [],
            "other": other_rows(reference) if reference else [],
            "kernels": kernel_rows(reference) if reference else [],
            "collectives": collective_rows(self.team, self.expected, self.token_bytes) if reference else [],
            "beside_the_clock": beside_the_clock(self.tpot, **mean),
            "busy_us": us(reference.busy) if reference else 0.0,
            "sum_us": us(reference.sum) if reference else 0.0,
            "idle_us": us(reference.window - reference.busy) if reference else 0.0,
            "window_us": us(reference.window) if reference else 0.0,
            "problems": self.problems,
            "notes": self.notes,
        }


def analyse(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    expected: Mapping[str, float] | None = None,
    jobs: int | None = None,
    token_bytes: int | None = None,
    tpot: Tpot | None = None,
) -> Analysis:
    """Analyse the trace files that ``paths`` (files or folders) name, one a rank.

    ``world_size`` is how many ranks there should be (None: what the files say). ``expected`` says how often each
    collective (``all_reduce``, ``all_gather``, …) should run in a decode step. ``jobs`` is how many files are
    read at a time (None: one a core). ``token_bytes`` is the size of one token's hidden state, from which a
    message's size is derived where the trace does not say it. Raises TraceError where a path does not exist or
    no file holds anything.
    """
    results = analyse_files(trace_files(list(paths)), jobs)
    if not any(result.sum for result in results):
        said = "; ".join(f"{result.path.name}: {', '.join(result.problems) or 'no work in it'}" for result in results)
        raise TraceError(
            "none of the files holds work that could be analysed",
            wanted="kernels, or operators of the host",
            seen=said,
            hint="record again: a stop that answered 200 proves nothing; wait until the files' sizes are stable",
        )
    return Analysis(results, match_ranks(results, world_size), dict(expected or {}), token_bytes, tpot)


def _basis(reference: RankResult | None) -> str | None:
    if reference is None:
        return None
    return f"{reference.steady_group[0]} steps" if reference.steady and reference.steady_group else "whole window"


def _rank_row(result: RankResult, offset: float | None) -> dict[str, Any]:
    steps = len(result.steady)
    return {
        "rank": result.rank,
        "file": result.path.name,
        "events": result.events,
        "device": (result.device or "unnamed") if result.on_device else None,
        "problems": list(result.problems),
        "role": "front end" if result.front_end else "rank",
        "whole": result.whole,
        "device_named": result.device,
        "device_events": result.device_events,
        "kernels": result.kernels,
        "streams": result.streams,
        "world_size": result.world_size,
        "server": result.server,
        "layout": result.layout,
        "text_bytes": result.text_bytes,
        "steps": len(result.steady) + result.dropped,
        "clock_offset_us": None if offset is None else us(offset),
        "busy_us": us(result.busy),
        "sum_us": us(result.sum),
        "window_us": us(result.window),
        "busy_share": ratio(result.busy, result.window),
        "busy_us_per_step": us(sum(found.busy for found in result.occupancy) / steps) if steps else None,
        "communication_us_per_step": us(hidden_communication(result)[1] / steps) if steps else None,
    }

"""Ranks beside each other: which file is which rank, whose clock is off, who waited for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from opsctl.trace.names import coordinates
from opsctl.trace.rank import CollectiveCalls, RankResult

_CLOCKS_DIFFER_NS = 1_000_000


@dataclass
class Team:
    """The files that stand for the ranks of one server, each rank once, and what was found in matching them."""

    members: list[RankResult]
    findings: list[str] = field(default_factory=list)

    @property
    def reference(self) -> RankResult | None:
        """Return the file that figures of one rank rest on: of those with steady steps the lowest rank."""
        able = [member for member in self.members if member.steady] or [m for m in self.members if m.sum]
        return able[0] if able else None


@dataclass
class Skew:
    """One operation over all ranks, in ns.

    ``communication`` adds up each call's minimum over ranks. ``waiting`` adds up the rest (straggler wait), as the
    mean over ranks; None where there is one rank, or where the ranks' calls do not match. ``starts`` adds up the time
    between the first and the last rank's start. ``last`` counts for each rank in how many calls it alone was the last
    to arrive: it waits least, so its own call is the shortest.
    """

    communication: int
    waiting: float | None
    calls: int
    steps: int
    starts: int = 0
    last: Counter[int] = field(default_factory=Counter)


def match_ranks(results: Sequence[RankResult], world_size: int | None) -> Team:
    """Choose one file a rank; name the missing, the doubled and the odd ones."""
    candidates = [result for result in results if not result.front_end and (result.sum or result.rank is not None)]
    renumbered = _number_by_coordinates(candidates)
    team = Team([])
    by_rank: dict[int, list[RankResult]] = {}
    for result in candidates:
        if result.rank is not None:
            by_rank.setdefault(result.rank, []).append(result)
    for rank, files in sorted(by_rank.items()):
        best = max(files, key=lambda result: (len(result.steady), result.sum > 0, result.path.name))
        team.members.append(best)
        if len(files) > 1:
            others = ", ".join(file.path.name for file in files if file is not best)
            team.findings.append(f"rank {rank} has {len(files)} files: {best.path.name} is used, not {others}")
    nameless = [result for result in candidates if result.rank is None]
    if nameless and by_rank:
        names = ", ".join(result.path.name for result in nameless)
        team.findings.append(f"no rank is known for {names}: left out of what is said over ranks")
    elif nameless:
        team.members = sorted(nameless, key=lambda result: result.path.name)
        if len(nameless) > 1:
            team.findings.append(
                "no file says which rank it is: each is taken for a rank of its own, in order of names"
            )
    team.findings.extend([] if renumbered and world_size is None else _missing(by_rank, candidates, world_size))
    team.findings.extend(_other_counts(team.members))
    return team


def _number_by_coordinates(candidates: Sequence[RankResult]) -> bool:
    """Number ranks in the order of their names' coordinates where the files' own numbers repeat; return whether so.

    Each data-parallel replica numbers its ranks from 0, and SGLang's names tell places, no ranks.
    """
    own = [coordinates(result.path.name) for result in candidates]
    ranks = [result.rank for result in candidates]
    if len(set(own)) < len(own) or not all(own) or (None not in ranks and len(set(ranks)) == len(ranks)):
        return False
    for rank, (_, result) in enumerate(sorted(zip(own, candidates), key=lambda pair: pair[0])):
        result.rank = rank
    return True


def _missing(
    by_rank: dict[int, list[RankResult]], candidates: Sequence[RankResult], world_size: int | None
) -> list[str]:
    said = {result.world_size for result in candidates if result.world_size}
    findings = []
    if len(said) > 1:
        findings.append(f"the files disagree on how many ranks there are: {sorted(said)}")
    if world_size is not None and said and said != {world_size}:
        findings.append(f"{world_size} ranks were expected, the files were written by servers of {sorted(said)}")
    wanted = world_size or max(said, default=0)
    have = set(by_rank) or set(range(len(candidates)))
    missing = [rank for rank in range(wanted) if rank not in have]
    if missing:
        findings.append(f"{len(missing)} of {wanted} ranks have no file: {', '.join(map(str, missing))}")
    odd = [rank for rank in sorted(by_rank) if wanted and rank >= wanted]
    if odd:
        findings.append(f"there are files of ranks beyond the {wanted} expected: {', '.join(map(str, odd))}")
    return findings


def _other_counts(members: Sequence[RankResult]) -> list[str]:
    counts = {
        member.rank if member.rank is not None else index: _step_count(member) for index, member in enumerate(members)
    }
    if len(set(counts.values())) <= 1:
        return []
    said = ", ".join(f"rank {rank}: {count}" for rank, count in counts.items())
    return [f"the ranks hold different numbers of steady-kind steps ({said}): calls are matched only where they agree"]


def _step_count(member: RankResult) -> int:
    return len(member.steady) + member.dropped


def clock_offsets(team: Team) -> dict[int, float]:
    """Return for each member (by place in the team) how far its clock is ahead of the reference's, in ns.

    A collective ends on all ranks at nearly the same moment, so the median difference of those ends is the
    clocks'. Members whose calls do not match the reference's are left out.
    """
    reference = team.reference
    offsets: dict[int, float] = {}
    if reference is None:
        return offsets
    for place, member in enumerate(team.members):
        differences = [
            (theirs[0] + theirs[1] + member.base_ns) - (ours[0] + ours[1] + reference.base_ns)
            for operation in reference.collectives
            for ours, theirs in _matched(operation, [reference, member])
        ]
        if differences:
            offsets[place] = float(median(differences))
    return offsets


def odd_clocks(team: Team, offsets: dict[int, float]) -> list[str]:
    """Return a finding for each rank whose clock is off by more than a millisecond."""
    return [
        f"the clock of rank {_label(team, place)} is {offset / 1e6:+.3f} ms off the reference's, "
        "by the ends of its collectives"
        for place, offset in sorted(offsets.items())
        if abs(offset) > _CLOCKS_DIFFER_NS
    ]


def skew_of(team: Team, operation: str, offsets: dict[int, float]) -> Skew | None:
    """Return what an operation cost, and what of that was waiting, over the ranks whose calls match."""
    reference = team.reference
    if reference is None or operation not in reference.collectives:
        return None
    able = [(place, m) for place, m in enumerate(team.members) if operation in m.collectives]
    rows = _matched(operation, [member for _, member in able]) if len(able) > 1 else []
    if not rows:
        flat = [duration for _, duration in _matched_alone(reference, operation)]
        return Skew(sum(flat), None, len(flat), len(reference.steady))
    found = Skew(0, 0.0, len(rows), min(len(m.steady) for _, m in able))
    waited = 0
    known = [(column, place, m) for column, (place, m) in enumerate(able) if place in offsets]
    for row in rows:
        durations = [duration for _, duration in row]
        least = min(durations)
        found.communication += least
        waited += sum(durations) - least * len(durations)
        if durations.count(least) == 1:
            found.last[_label(team, able[durations.index(least)][0])] += 1
        starts = [row[column][0] + m.base_ns - round(offsets[place]) for column, place, m in known]
        found.starts += max(starts) - min(starts) if starts else 0
    found.waiting = waited / len(able)
    return found


def _label(team: Team, place: int) -> int:
    rank = team.members[place].rank
    return place if rank is None else rank


def _matched_alone(member: RankResult, operation: str) -> list[tuple[int, int]]:
    return [call[0] for call in _matched(operation, [member])]


def _matched(operation: str, members: Sequence[RankResult]) -> list[tuple[tuple[int, int], ...]]:
    """Return rows of the same call on each member, as (start, duration), over the steps that all of them call steady.

    Members may have dropped different numbers of first steps: steps are matched by their number from the start. Without
    steps the calls of the whole file are matched in order. Empty where the members hold different numbers of steps, or
    of calls in one.
    """
    calls = [member.collectives.get(operation) for member in members]
    if any(own is None for own in calls) or len({_step_count(member) for member in members}) != 1:
        return []
    dropped = max(member.dropped for member in members)
    rows: list[tuple[tuple[int, int], ...]] = []
    tables = [_by_step(own, member, dropped - member.dropped) for own, member in zip(calls, members) if own]
    for step in zip(*tables):
        if len({len(own) for own in step}) != 1:
            return []
        rows.extend(zip(*step))
    return rows


def _by_step(calls: CollectiveCalls, member: RankResult, left_out: int) -> list[list[tuple[int, int]]]:
    """Return (start, duration) of the calls of each steady step after the first ``left_out``; without steps, of all."""
    pairs = zip(calls.starts, calls.durations)
    if not member.steady:
        return [list(pairs)]
    table: list[list[tuple[int, int]]] = [[] for _ in member.steady]
    for step, pair in zip(calls.steps, pairs):
        if step >= 0:
            table[step].append(pair)
    return table[left_out:]

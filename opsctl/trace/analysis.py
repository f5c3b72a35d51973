"""All ranks together: the analysis that ``opsctl trace --json`` prints and reports rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opsctl.errors import TraceError
from opsctl.trace.clock import Tpot, beside_the_clock
from opsctl.trace.document import RankFile, TraceAnalysis
from opsctl.trace.figures import ratio, us
from opsctl.trace.folders import trace_files
from opsctl.trace.names import coordinates_text
from opsctl.trace.rank import RankResult
from opsctl.trace.rank_alignment import Team, clock_offsets, match_ranks, odd_clocks
from opsctl.trace.tables import (
    category_rows,
    collective_rows,
    exposed_communication,
    kernel_rows,
    mean_busy,
    other_rows,
    step_groups,
)
from opsctl.trace.workers import analyse_files


def analyse(
    paths: Sequence[Path],
    *,
    world_size: int | None = None,
    expected: Mapping[str, float] | None = None,
    jobs: int | None = None,
    token_bytes: int | None = None,
    tpot: Tpot | None = None,
    only: str | None = None,
) -> TraceAnalysis:
    """Analyse the trace files that ``paths`` (files or folders) name, one a rank.

    ``world_size`` is how many ranks there should be (None: what the files say). ``expected`` says how often each
    collective (``all_reduce``, ``all_gather``, …) should run in a decode step. ``jobs`` is how many files are
    read at a time (None: one a core). ``token_bytes`` is the size of one token's hidden state, from which a
    message's size is derived where the trace does not say it. ``only`` is the label of the window to take where a
    folder holds several. Raises TraceError where a path does not exist or
    no file holds anything.
    """
    chosen = trace_files(list(paths), only)
    results = analyse_files(chosen.files, jobs)
    if not any(result.sum for result in results):
        said = "; ".join(
            f"{result.path.name}: {', '.join(result.problems) or 'no device events and no operators of the host'}"
            for result in results
        )
        raise TraceError(
            "none of the files holds work that could be analysed",
            wanted="kernels, or operators of the host",
            seen=said,
            hint="record again: a stop that answered 200 proves nothing; wait until the files' sizes are stable",
        )
    analysis = _document(results, match_ranks(results, world_size), dict(expected or {}), token_bytes, tpot)
    return replace(analysis, left_out=chosen.left_out)


def _document(
    results: list[RankResult], team: Team, expected: dict[str, float], token_bytes: int | None, tpot: Tpot | None
) -> TraceAnalysis:
    offsets, reference = clock_offsets(team), team.reference
    places = {id(member): place for place, member in enumerate(team.members)}
    ranks = tuple(_rank_row(result, offsets.get(places.get(id(result), -1))) for result in results)
    problems = [f"{result.path.name}: {problem}" for result in results for problem in result.problems]
    problems += [*team.findings, *odd_clocks(team, offsets)]
    if reference is None:
        return TraceAnalysis(ranks=ranks, problems=tuple(problems))
    if not reference.on_device and reference.device:
        problems.append(f"no device events, though the file names {reference.device}: figures are of the host")
    if not reference.steady:
        problems.append(f"no steps could be told apart ({reference.method}): figures are of the whole window")
    analysis = TraceAnalysis(
        ranks=ranks,
        reference_rank=reference.rank,
        basis=f"{reference.steady_group[0]} steps" if reference.steady and reference.steady_group else "whole window",
        method=reference.method,
        steps=step_groups(reference),
        categories=category_rows(team),
        other=other_rows(reference),
        kernels=kernel_rows(reference),
        collectives=collective_rows(team, expected, token_bytes, offsets),
        busy_us=us(reference.busy),
        sum_us=us(reference.sum),
        idle_us=us(reference.window - reference.busy),
        window_us=us(reference.window),
        problems=tuple(problems),
        notes=tuple(_notes(results, reference)),
    )
    return replace(analysis, beside_the_clock=beside_the_clock(tpot, analysis.main)) if tpot else analysis


def _notes(results: Sequence[RankResult], reference: RankResult) -> Iterator[str]:
    """Yield what a reader should know and need not mend."""
    for result in results:
        yield from (f"{result.path.name}: {repair}" for repair in result.repairs)
    if not reference.on_device:
        yield "there are no device events: work is what operators on the host did themselves"
    if reference.unplaced and reference.steady:
        yield f"{reference.unplaced} pieces of work belong to no step: launched before the first marker, or unseen"


def _rank_row(result: RankResult, offset: float | None) -> RankFile:
    busy, steps = mean_busy(result)
    return RankFile(
        file=result.path.name,
        rank=result.rank,
        role="front end" if result.front_end else "rank",
        label=coordinates_text(result.path.name),
        events=result.events,
        device=(result.device or "unnamed") if result.on_device else None,
        device_named=result.device,
        whole=result.whole,
        problems=tuple(result.problems),
        repairs=tuple(result.repairs),
        device_events=result.device_events,
        kernels=result.kernels,
        streams=result.streams,
        world_size=result.world_size,
        server=result.server,
        layout=result.layout,
        text_bytes=result.text_bytes,
        steps=len(result.steady) + result.dropped,
        clock_offset_us=None if offset is None else us(offset),
        busy_us=us(result.busy),
        sum_us=us(result.sum),
        window_us=us(result.window),
        busy_share=ratio(result.busy, result.window),
        busy_us_per_step=us(busy / steps) if steps else None,
        exposed_communication_us_per_step=us(exposed_communication(result) / steps) if steps else None,
    )

"""Where the time of a decode step goes: categories, kernels, collectives, ranks, and the clock beside the trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsctl.quantities import counted
from opsctl.report import charts
from opsctl.report.document import Block, Callout, Inline, Items, Mark, Prose, Section, table
from opsctl.report.numbers import ABSENT, count, digits, mean_of_few, share, with_spread
from opsctl.report.reading import Material, Placed
from opsctl.report.traces import TraceReading
from opsctl.results import Figure
from opsctl.trace.document import Steps, mean_of

KERNELS_SHOWN = 25
PROFILE_CLOCKS = {
    "tpot.unprofiled": "profiler armed, right before the capture",
    "tpot.profiled": "during the capture",
}


def decode_step(material: Material) -> Section | None:
    """Split the busy time of a decode step by category."""
    traces = material.traces
    if not traces.readings and not traces.problems:
        return None
    blocks: list[Block] = []
    if traces.readings:
        if not traces.steady():
            blocks.append(
                Callout("No window has whole traces of every rank: what follows is what could be salvaged.", "warn")
            )
        blocks.append(charts.decode_steps(traces.readings))
        blocks.append(_windows(traces.readings))
        blocks.append(_categories(traces.steady() or traces.readings[:1]))
        blocks += _others(traces.steady() or traces.readings[:1])
    problems = [
        *traces.problems,
        *(f"{reading.name}: {problem}" for reading in traces.readings for problem in reading.document.problems),
    ]
    if problems:
        blocks.append(Prose("Problems with the traces:"))
        blocks.append(Items(tuple(dict.fromkeys(problems))))
    return Section("decode", "Where a decode step's time goes", tuple(blocks), short="Decode step")


def _windows(readings: Sequence[TraceReading]) -> Block:
    rows = []
    for reading in readings:
        document, decode = reading.document, reading.document.main
        rows.append(
            (
                Mark(reading.name, "code"),
                ABSENT if decode.batch is None else str(decode.batch),
                str(decode.count),
                _milli(mean_of(decode.wall_us)),
                share(decode.wall_us.cv if decode.wall_us else None),
                _milli(document.busy_us_per_step),
                _milli(document.sum_us_per_step),
                str(len(document.whole_ranks)),
                _verdict(decode),
            )
        )
    methods = ", ".join(dict.fromkeys(reading.document.method for reading in readings if reading.document.method))
    return table(
        ("Window", "Batch", "Decode steps", "Wall, ms", "CV of wall", "Busy, ms", "Sum, ms", "Ranks", "Long enough"),
        rows,
        numeric=(1, 2, 3, 4, 5, 6, 7),
        note=(f"Steps told apart by {methods}. " if methods else "")
        + "Per decode step. Busy: union of all intervals of device work. Sum: kernel durations added up, so work "
        "that overlaps on several streams counts twice; it can exceed wall time and is no share of it.",
    )


def _verdict(decode: Steps) -> Inline:
    dropped = f" ({counted(decode.dropped, 'first step')} dropped: {decode.dropped_because})" if decode.dropped else ""
    if decode.verdict == "inconclusive":
        return Mark(f"inconclusive: {decode.verdict_because}{dropped}", "warn")
    return f"{decode.verdict or ABSENT}{dropped}"


def _categories(windows: Sequence[TraceReading]) -> Block:
    names = list(dict.fromkeys(category.name for window in windows for category in window.document.categories))
    rows = []
    for name in names:
        found = [c for window in windows for c in window.document.categories if c.name == name]
        overlapped = [c.overlapped_us_per_step for c in found]
        busy = [c.busy_us_per_step for c in found]
        summed = [c.sum_us_per_step for c in found]
        shares = [c.share_of_busy for c in found]
        rows.append(
            (name, _mean_ms(busy), _mean_share(shares), _mean_ms(summed), _mean_ms(overlapped), str(len(found)), busy)
        )
    rows.sort(key=lambda row: -sum(row[-1]))
    return table(
        ("Category", "Busy, ms a step", "Share of busy", "Sum, ms a step", "Overlapped, ms a step", "Windows"),
        [row[:-1] for row in rows],
        numeric=(1, 2, 3, 4, 5),
        note=f"Mean over {counted(len(windows), 'window')} at batch "
        f"{_batch(windows)}. Busy is exclusive: an instant belongs to one category, so shares add up to 100 %. "
        "Overlapped: done while other work ran, so removing it saves nothing. Busy communication is exposed "
        "communication.",
    )


def _others(windows: Sequence[TraceReading]) -> list[Block]:
    found: dict[str, float] = {}
    for other in (other for window in windows for other in window.document.other):
        found[other.name] = max(found.get(other.name, 0.0), other.share_of_sum)
    names = dict(sorted(found.items(), key=lambda item: -item[1]))
    if not names:
        return []
    return [
        table(
            ("Fell into other", "Share of sum"),
            [(Mark(name, "code"), share(part)) for name, part in names.items()],
            numeric=(1,),
            folded=True,
            caption=f"What the category other holds: its {len(names)} largest",
        )
    ]


def _batch(windows: Sequence[TraceReading]) -> str:
    batch = windows[0].document.main.batch
    return "unknown" if batch is None else str(batch)


def kernels(material: Material) -> Section | None:
    """List the kernels of one steady window."""
    windows = material.traces.steady() or material.traces.readings[:1]
    listed = windows[0].document.kernels if windows else ()
    if not listed:
        return None
    shown = sorted(listed, key=lambda kernel: -kernel.sum_us)[:KERNELS_SHOWN]
    rest = len(listed) - len(shown)
    return Section(
        "kernels",
        "Kernels",
        (
            table(
                ("Kernel", "Category", "Calls a step", "Mean, µs", "Share of sum"),
                [
                    (
                        Mark(kernel.name, "code"),
                        kernel.category,
                        count(kernel.calls_per_step),
                        digits(kernel.mean_us),
                        share(kernel.share_of_sum),
                    )
                    for kernel in shown
                ],
                numeric=(2, 3, 4),
                note=f"Window {windows[0].name}; {rest} further kernels are in {windows[0].artifact.path}."
                if rest
                else f"Window {windows[0].name}; file {windows[0].artifact.path}.",
            ),
        ),
        short="Kernels",
    )


def collectives_in_step(material: Material) -> Section | None:
    """Put expected collectives beside observed ones, and communication beside skew."""
    windows = [window for window in material.traces.readings if window.document.collectives]
    if not windows:
        return None
    rows: list[tuple[Inline, ...]] = []
    unexplained = []
    for window in windows:
        for collective in window.document.collectives:
            expected, seen = collective.expected_per_step, collective.calls_per_step
            same = expected is None or seen is None or abs(expected - seen) < 0.05
            if not same and expected is not None and seen is not None:
                unexplained.append(f"{collective.op}: {count(abs(seen - expected))} {_more(seen, expected)} a step")
            rows.append(
                (
                    Mark(window.name, "code"),
                    collective.op,
                    count(expected),
                    count(seen) if same else Mark(count(seen), "warn"),
                    _milli(collective.communication_us_per_step),
                    _milli(collective.straggler_wait_us_per_step),
                )
            )
    blocks: list[Block] = [
        table(
            ("Window", "Operation", "Expected a step", "Observed a step", "Communication, ms", "Straggler wait, ms"),
            rows,
            numeric=(2, 3, 4, 5),
            note="Expected from the model's layers and its parallelism. Per call, the minimum over ranks is "
            "communication; the rest is straggler wait: time before the last rank arrives.",
        )
    ]
    if unexplained:
        blocks.append(Callout(f"Not explained: {'; '.join(dict.fromkeys(unexplained))}.", "warn"))
    return Section("collectives-in-step", "Collectives of a decode step", tuple(blocks), short="Collectives a step")


def _more(seen: float, expected: float) -> str:
    return "more than expected" if seen > expected else "fewer than expected"


def ranks(material: Material) -> Section | None:
    """Put the ranks of one window side by side."""
    windows = material.traces.steady() or material.traces.readings[:1]
    if not windows or not windows[0].document.whole_ranks:
        return None
    window = windows[0]
    blocks: list[Block] = []
    if any(rank.busy_us_per_step is not None for rank in window.document.whole_ranks):
        blocks.append(charts.ranks(window))
    blocks.append(
        table(
            ("Rank", "Device", "Events", "Busy, ms a step", "Exposed communication, ms a step", "File", "Problems"),
            [
                (
                    ABSENT if rank.rank is None else str(rank.rank),
                    rank.device or ABSENT,
                    f"{rank.events:,}",
                    _milli(rank.busy_us_per_step),
                    _milli(rank.exposed_communication_us_per_step),
                    Mark(rank.file, "code"),
                    "; ".join(rank.problems) or "none",
                )
                for rank in window.document.whole_ranks
            ],
            numeric=(0, 2, 3, 4),
            note=f"Window {window.name}.",
        )
    )
    return Section("ranks", "Ranks side by side", tuple(blocks), short="Ranks")


def beside_the_clock(material: Material) -> Section | None:
    """Measure the profiler: TPOT without it, armed, and during capture, beside the trace's own step."""
    rows = list(_client_times(material))
    if not rows:
        return None
    note = (
        "TPOT is measured at the client, on the host; a step of a trace is slowed by its own capture. Summed kernel "
        "time is no wall time: streams overlap. Numbers taken under a profiler never enter the history."
    )
    head = ("Measured", "Cell", "ms a token", "Samples", "Step")
    block = table(head, [*rows, *_trace_times(material)], numeric=(2, 3), note=note)
    return Section("clock", "Beside the clock: with and without the profiler", (block,), short="Profiler's cost")


def _client_times(material: Material) -> Iterator[tuple[Inline, ...]]:
    profiled = {placed.cell.axes.get("concurrency", 1) for placed in material.cells("profile")} or {1}
    for production, label in ((True, "production, no profiler"), (False, "profiler armed, not capturing")):
        for placed in material.serving(production=production):
            tpot = placed.cell.figure("tpot.mean") or placed.cell.figure("tpot.p50")
            if tpot and placed.cell.axes.get("concurrency") in profiled:
                yield _clock_row(label, placed, tpot)
    for placed in material.cells("profile"):
        for name, label in PROFILE_CLOCKS.items():
            figure = placed.cell.figure(name)
            if figure:
                yield _clock_row(label, placed, figure)


def _clock_row(label: str, placed: Placed, tpot: Figure) -> tuple[Inline, ...]:
    return (label, Mark(placed.cell.id, "code"), with_spread(tpot), str(tpot.samples), Mark(placed.place, "code"))


def _trace_times(material: Material) -> Iterator[tuple[Inline, ...]]:
    for window in material.traces.readings:
        decode = window.document.main
        if decode.wall_us is not None:
            spread = f" (s {digits(decode.wall_us.mean * decode.wall_us.cv / 1000, 2)})"
            yield (
                "trace: wall time of a step",
                Mark(window.name, "code"),
                f"{digits(decode.wall_us.mean / 1000)}{spread}",
                str(decode.count),
                Mark(window.step.id, "code"),
            )


def _milli(micros: float | None) -> str:
    return ABSENT if micros is None else digits(micros / 1000)


def _mean_ms(micros: Sequence[float]) -> str:
    if not micros:
        return ABSENT
    return mean_of_few([micro / 1000 for micro in micros])


def _mean_share(shares: Sequence[float]) -> str:
    if not shares:
        return ABSENT
    return mean_of_few([100 * part for part in shares], " %", resolution=1)

"""The run beside the last one like it."""

from __future__ import annotations

from opsctl.report.document import Block, Callout, Inline, Mark, Prose, Section, Tone, table
from opsctl.report.numbers import ABSENT, amount, clock
from opsctl.report.reading import Material
from opsctl.snapshots.comparing import Comparison, MetricComparison, compare
from opsctl.snapshots.headline import is_headline
from opsctl.snapshots.taking import snapshot_of


def with_last(material: Material) -> Section | None:
    """Compare each service that both runs measured without a profiler."""
    previous = material.previous
    if previous is None:
        return None
    before = {(item.host, item.service): item for item in snapshot_of(previous)}
    pairs = [
        compare(before[item.host, item.service], item)
        for item in snapshot_of(material.record)
        if (item.host, item.service) in before
    ]
    blocks: list[Block] = [Prose(f"Compared with run {previous.run} of {clock(previous.started)}.")]
    if not pairs:
        blocks.append(Prose("The two runs measured no service in common without a profiler."))
    for pair in pairs:
        blocks.extend(_pair(pair))
    return Section("comparison", "Beside the last run", tuple(blocks), short="Last run")


def _pair(pair: Comparison) -> list[Block]:
    blocks: list[Block] = []
    if pair.differences:
        blocks.append(
            Callout(f"{pair.service} on {pair.host} was not measured alike in both runs: read with care.", "warn")
        )
        blocks.append(
            table(
                ("Differs", "Last run", "This run"),
                [(item.name, item.a or "(nothing)", item.b or "(nothing)") for item in pair.differences],
            )
        )
    shown = [metric for metric in pair.metrics if is_headline(metric.key)]
    blocks.append(
        table(
            ("Cell", "Figure", "Last run", "This run", "Change", "95 % interval", "Verdict"),
            [_row(metric) for metric in shown],
            numeric=(2, 3, 4, 5),
            caption=f"{pair.service} on {pair.host}",
            note="The interval of the change is recovered from both figures' own intervals (MOVER, Zou and Donner "
            f"2008). Noise: {'; '.join(dict.fromkeys(metric.noise for metric in shown)) or 'none known'}.",
        )
    )
    return blocks


def _row(metric: MetricComparison) -> tuple[Inline, ...]:
    tone: Tone = {True: "good", False: "bad", None: "plain"}[metric.better]  # type: ignore[assignment]
    interval = (
        f"{100 * metric.change_low:+.1f} to {100 * metric.change_high:+.1f} %"
        if metric.change_low is not None and metric.change_high is not None
        else "not known"
    )
    return (
        Mark(metric.key.cell, "code"),
        metric.key.name,
        amount(metric.a.value, metric.unit) if metric.a else ABSENT,
        amount(metric.b.value, metric.unit) if metric.b else ABSENT,
        ABSENT if metric.change is None else f"{100 * metric.change:+.1f} %",
        interval,
        Mark(str(metric.verdict), tone),
    )

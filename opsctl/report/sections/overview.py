"""The first screen: whether production is back, how the run ended, who held the GPUs when."""

from __future__ import annotations

from opsctl.production import production_words
from opsctl.quantities import format_duration
from opsctl.record import REFUSED, ProductionRecord, RunRecord, Standing
from opsctl.report import charts
from opsctl.report.document import Block, Callout, Inline, Mark, Prose, Section, Tile, Tone, table
from opsctl.report.numbers import ABSENT, amount, clock, in_words, seconds_between
from opsctl.report.reading import Material
from opsctl.results import Cell, Figure, State
from opsctl.stages import STAGES

STATE_TONES: dict[str, Tone] = {
    "verified": "good",
    "failed": "bad",
    "production not verified": "bad",
    "controller died": "bad",
    "left": "bad",
    "inconclusive": "warn",
    "interrupted": "warn",
    "running": "warn",
    "pending": "quiet",
    "skipped": "quiet",
}


def state(text: str) -> Mark:
    """Return a state in its colour. A state that nobody knows is never shown as good."""
    return Mark(text or "unknown", STATE_TONES.get(text, "warn"))


def doubtful(cell: Cell) -> Figure | None:
    """Return the first figure of a verified cell, by its stage's headline, that is too wide to decide by."""
    if cell.state is not State.VERIFIED:
        return None
    return next((figure for figure in cell.figures if figure.conclusive is False and is_headline(figure.name)), None)


def is_headline(name: str) -> bool:
    """Whether some stage decides by a figure of this name."""
    return any(kind.headline and kind.fits(name) for stage in STAGES.values() for kind in stage.figures)


def cell_state(cell: Cell) -> Mark:
    """Return a cell's state, and that its figures decide nothing where they are too wide: it is not green then."""
    figure = doubtful(cell)
    return state(cell.state) if figure is None else Mark(f"verified, not conclusive: {figure.name}", "warn")


def tiles(material: Material) -> tuple[Tile, ...]:
    """Return the answers of the first screen: production, downtime, the run, its cells, the first figures."""
    record = material.record
    cells = material.cells()
    verified = sum(placed.cell.state is State.VERIFIED for placed in cells)
    applying = sum(len(result.applying) for _, result in material.results())
    apart = f"{len(cells) - applying} more do not apply here; " if len(cells) > applying else ""
    wide = [placed.cell.id for placed in cells if doubtful(placed.cell)]
    worth = f"{verified - len(wide)} conclusive; " if wide else ""
    answers = [
        production_tile(record),
        _downtime_tile(record.production),
        Tile("Run", record.outcome or "unknown", record.reason, STATE_TONES.get(record.outcome, "warn")),
        Tile(
            "Cells",
            f"{verified} of {applying} verified",
            f"{worth}{apart}every planned cell is listed under Scope",
            "good" if cells and verified == applying and not wide else "warn",
        ),
    ]
    measured = material.serving(production=True)
    if measured:
        first = measured[0]
        tpot = first.cell.figure("tpot.p50")
        if tpot:
            answers.append(Tile("TPOT p50", amount(tpot.value, tpot.unit), f"{first.cell.id}, {in_words(tpot)}"))
        fastest = max(measured, key=lambda placed: getattr(placed.cell.figure("output_throughput"), "value", 0.0))
        output = fastest.cell.figure("output_throughput")
        if output:
            answers.append(Tile("Highest output", amount(output.value, output.unit), fastest.cell.id))
    return tuple(answers)


_VALUES = {
    Standing.VERIFIED: "serving, verified",
    Standing.UNTOUCHED: "not touched",
    Standing.LEFT_DOWN: "left down",
    Standing.AT_WORK: "run at work",
    Standing.UNVERIFIED: "NOT VERIFIED",
}
"""The tile's words for one standing, the least to the most alarming."""


def production_tile(record: RunRecord) -> Tile:
    """Return what the journal's evidence says of production; the worst host of the run gives the value."""
    if not record.production:
        if record.outcome in REFUSED:
            return Tile("Production", "not touched", record.outcome)
        return Tile("Production", "unknown", "the run recorded nothing about production", "warn")
    worst = max((item.standing for item in record.production), key=list(_VALUES).index)
    those = [item for item in record.production if item.standing is worst]
    words = [production_words(item) for item in those]
    if worst is Standing.VERIFIED:
        note = f"last seen {clock(max(item.evidence[-1].time for item in those))}"
    else:
        note = "; ".join(f"{item.unit} on {item.host}: {said}" for item, (said, _) in zip(those, words, strict=True))
    tones = [tone for _, tone in words]
    tone: Tone = "bad" if "bad" in tones else "warn" if "warn" in tones else "good"
    down = worst is Standing.UNVERIFIED and any(item.down_since and not item.back_at for item in those)
    return Tile("Production", "DOWN, NOT VERIFIED" if down else _VALUES[worst], note, tone)


def _downtime_tile(production: tuple[ProductionRecord, ...]) -> Tile:
    if not production:
        return Tile("Downtime", "unknown", "", "warn")
    if any(downtime(item) is None for item in production):
        return Tile("Downtime", "unknown", "the end, or the start, was not observed", "warn")
    longest = max(production, key=lambda item: downtime(item) or 0.0)
    seconds = downtime(longest) or 0.0
    if seconds == 0.0:
        return Tile("Downtime", "none", "production served throughout", "good")
    return Tile("Downtime", format_duration(seconds), f"{longest.host}, {clock(longest.down_since)} on")


def downtime(item: ProductionRecord) -> float | None:
    """Return seconds without production: 0 where it never went down, None where that is not known."""
    if item.downtime_seconds is not None:
        return item.downtime_seconds
    if item.down_since is None:
        return 0.0 if item.verified or item.standing is Standing.UNTOUCHED else None
    return seconds_between(item.down_since, item.back_at)


def timeline(material: Material) -> Section:
    """Say who held the GPUs when, phase by phase, with the loads."""
    record = material.record
    blocks: list[Block] = []
    if record.holds:
        blocks.append(charts.timeline(record))
        blocks.append(
            table(
                ("Host", "From", "To", "For", "GPUs held by", "As"),
                [
                    (
                        hold.host,
                        clock(hold.started),
                        clock(hold.ended),
                        _span(hold.started, hold.ended),
                        Mark(hold.holder, "code") if hold.holder else "nobody",
                        hold.role,
                    )
                    for hold in record.holds
                ],
                numeric=(3,),
                note="From the run's journal: each line begins and ends with an action that was confirmed.",
                folded=True,
                caption="Who held the GPUs",
            )
        )
    else:
        blocks.append(Prose("The run recorded no change of who held the GPUs."))
    if record.phases:
        blocks.append(_phases(material))
    if record.loads:
        blocks.append(_loads(material))
    if record.actions:
        blocks.append(_actions(material))
    return Section("timeline", "Timeline: what happened", tuple(blocks), short="Timeline")


def _phases(material: Material) -> Block:
    rows: list[tuple[Inline, ...]] = []
    for phase in material.record.phases:
        rows.append(
            (
                phase.name + (f" (round {phase.round})" if phase.round > 1 else ""),
                phase.host,
                Mark(phase.serve, "code"),
                state(phase.state),
                _span(phase.started, phase.ended),
                phase.reason,
            )
        )
        rows.extend(
            (
                f"· {step.name or step.stage}",
                "",
                Mark(step.id, "code"),
                state(step.state),
                _span(step.started, step.ended),
                step.result.reason if step.result else "no result",
            )
            for step in phase.steps
        )
    return table(("Phase, step", "Host", "Serves, id", "State", "For", "Why"), rows, numeric=(4,))


def _actions(material: Material) -> Block:
    taken = [action for action in material.record.actions if action.started]
    return table(
        ("Action", "Host", "What", "State", "For", "Why"),
        [
            (
                Mark(action.id, "code"),
                action.host,
                action.sentence,
                state(action.state),
                _span(action.started, action.ended),
                action.reason,
            )
            for action in taken
        ],
        numeric=(4,),
        note="The plan as it was executed; what stayed unused of its branches is left out.",
        folded=True,
        caption="Actions of the plan",
    )


def _loads(material: Material) -> Block:
    return table(
        ("Load of", "Attempt", "Outcome", "Start to ready", "Usual", "Phases of the load"),
        [
            (
                Mark(load.service, "code"),
                str(load.attempt),
                load.outcome or "unknown",
                ABSENT if load.seconds is None else format_duration(load.seconds),
                ABSENT if load.usual is None else format_duration(load.usual),
                ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in load.phases.items()) or ABSENT,
            )
            for load in material.record.loads
        ],
        numeric=(1, 3, 4),
        note="Usual: the median of earlier loads on this host."
        " Ready: unit active and settled, no restart, the model listed, real completions in a row.",
    )


def _span(start: str | None, end: str | None) -> str:
    seconds = seconds_between(start, end)
    return ABSENT if seconds is None else format_duration(max(0.0, seconds))


def restore(material: Material) -> Section:
    """Give the evidence that production serves again, and for how long it did not."""
    blocks: list[Block] = []
    if not material.record.production:
        blocks.append(Callout("The run recorded nothing about production: whether it serves is unknown.", "warn"))
    for item in material.record.production:
        blocks.extend(_restore_of(item))
    return Section("restore", "Production, before and after", tuple(blocks), short="Production")


def _restore_of(item: ProductionRecord) -> list[Block]:
    seconds = downtime(item)
    gone = "unknown" if seconds is None else "none" if seconds == 0 else format_duration(seconds)
    by = f" Restored by the {item.restored_by}." if item.restored_by else ""
    found = f"{item.unit} on {item.host} was found {item.as_found or 'in an unknown state'}."
    words, tone = production_words(item)
    act = " A person, or the guard on the host, has to act." if item.standing is Standing.UNVERIFIED else ""
    verdict = Callout(f"{found} Now: {words}.{act} Downtime: {gone}.{by}", tone)
    facts = [("down since", clock(item.down_since)), ("answering again", clock(item.back_at))]
    rows: list[tuple[Inline, ...]] = [
        *((asked, observed, "") for asked, observed in facts if observed != ABSENT),
        *((seen.asked, seen.observed, clock(seen.time)) for seen in item.evidence),
    ]
    blocks: list[Block] = [verdict]
    if rows:
        blocks.append(table(("Asked", "Observed", "When"), rows))
    if not item.evidence:
        blocks.append(Prose("No evidence was recorded."))
    return blocks

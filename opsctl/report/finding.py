"""The finding: the one sentence that a reader takes along, with its number, spread and source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.quantities import counted
from opsctl.record import RunRecord
from opsctl.report.numbers import FEW, in_words, mean_and_spread, mean_of_few, share
from opsctl.report.reading import Material, Placed, read
from opsctl.report.traces import TraceReading
from opsctl.trace.document import TraceAnalysis

NAMED = 3
"""Categories that the sentence names; the table has the rest."""


@dataclass(frozen=True)
class Finding:
    """What the run found.

    ``value`` is the number that the sentence turns on, in ``unit``; ``spread`` its standard deviation over
    ``samples``. ``source`` says where it came from and by which formula. Not ``conclusive``: nothing was
    measured that a sentence could rest on, and ``sentence`` says why.
    """

    sentence: str
    source: str
    conclusive: bool
    value: float | None = None
    unit: str = ""
    spread: float | None = None
    samples: int = 0


def finding(record: RunRecord) -> Finding:
    """Return the finding of a run: what share of a decode step is what; else its TPOT; else why there is none."""
    return finding_of(read(record))


def finding_of(material: Material) -> Finding:
    """Return the finding of a run that was read already."""
    windows = material.traces.steady()
    if windows:
        return _decode_step(windows)
    measured = material.serving(production=True) or material.serving(production=False)
    if measured:
        return _serving(measured[0], material)
    return Finding(sentence=f"No finding: {_why(material)}.", source="", conclusive=False)


def _decode_step(windows: Sequence[TraceReading]) -> Finding:
    documents = [window.document for window in windows]
    by_name: dict[str, list[float]] = {}
    for document in documents:
        total = document.busy_us_per_step
        for category in document.categories:
            if total:
                by_name.setdefault(category.name, []).append(category.busy_us_per_step / total)
    if not by_name:
        return Finding(sentence="No finding: the traces hold no busy time.", source="", conclusive=False)
    # A category that a window lacks had no work there: its share in that window is 0, not unknown.
    shares_of = {name: [*values, *([0.0] * (len(documents) - len(values)))] for name, values in by_name.items()}
    shares = {name: mean_and_spread(values) for name, values in shares_of.items()}
    ranked = sorted(shares.items(), key=lambda item: -item[1][0])
    largest, (value, spread) = ranked[0]
    busy = [(document.busy_us_per_step or 0.0) / 1000 for document in documents]
    parts = shares_of[largest]
    batch = documents[0].main.batch
    steps = sum(document.main.count for document in documents)
    rest = ", ".join(f"{name} {share(mean)}" for name, (mean, _) in ranked[1:NAMED])
    kind = "step" if documents[0].kind in ("", "other") else f"{documents[0].kind} step"
    device = "the device" if documents[0].on_device else "the CPU (operators, no GPU here)"
    sentence = (
        f"{largest.capitalize()} is {mean_of_few([100 * part for part in parts], ' %', resolution=1)} of the time that "
        f"{device} is busy in a "
        f"{kind} at batch {'unknown' if batch is None else batch}"
        + (f"; then {rest}" if rest else "")
        + f". A step is busy for {mean_of_few(busy, ' ms')}: {steps} steps in {counted(len(documents), 'window')}."
    )
    steps_named = ", ".join(dict.fromkeys(window.step.id for window in windows))
    source = (
        f"{len(windows)} trace analys{'es' if len(windows) != 1 else 'is'} of step {steps_named}, files under Sources. "
        "Share = exclusive busy time of the category / union of all busy intervals, per decode step. "
        + _over(len(documents))
    )
    doubts = [document.main.verdict_because for document in documents if _doubtful(document)]
    if doubts:
        sentence += f" Inconclusive in {len(doubts)} of {len(documents)} windows: {doubts[0]}."
    return Finding(
        sentence,
        source,
        conclusive=len(doubts) < len(documents),
        value=value,
        unit="ratio",
        spread=spread,
        samples=len(documents),
    )


def _over(windows: int) -> str:
    if windows == 1:
        return "One window: no spread over windows."
    return "The range is over windows." if windows < FEW else "± is over windows."


def _doubtful(document: TraceAnalysis) -> bool:
    return document.main.verdict == "inconclusive"


def _serving(placed: Placed, material: Material) -> Finding:
    tpot = placed.cell.figure("tpot.p50") or placed.cell.figure("tpot.mean")
    throughput = placed.cell.figure("output_throughput")
    chosen = tpot or throughput
    if chosen is None:
        return Finding(sentence=f"No finding: {_why(material)}.", source="", conclusive=False)
    what = "a token takes" if tpot else "the server writes"
    sentence = (
        f"At {placed.cell.id} {what} {in_words(chosen)}; no decode step was profiled, so its parts are not known."
    )
    source = f"Step {placed.place}, cell {placed.cell.id}, figure {chosen.name}" + (
        f" = {chosen.formula}" if chosen.formula else ""
    )
    return Finding(
        sentence,
        source,
        conclusive=True,
        value=chosen.value,
        unit=chosen.unit,
        spread=chosen.spread,
        samples=chosen.samples,
    )


def _why(material: Material) -> str:
    if material.traces.problems:
        return f"no trace could be read ({material.traces.problems[0]})"
    if material.traces.readings:
        return "no window has whole traces of every rank"
    planned = sum(len(result.applying) for _, result in material.results())
    if not planned:
        apart = [result.reason for _, result in material.results() if result.apart]
        return f"what was planned {apart[0]}" if apart else "the run planned no measurement"
    verified = len(material.cells(verified=True))
    return f"{verified} of {planned} planned cells were verified, none of them a decode step or a served token"

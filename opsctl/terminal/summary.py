"""The summary printed at the end of a run: what was found, whether production is back, what to type next."""

from __future__ import annotations

from opsctl.campaign.reporting import Aftermath
from opsctl.errors import ExitCode
from opsctl.production import production_words
from opsctl.record import ProductionRecord, RunRecord, Standing
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.runs.verdict import verdict_of


def last_word(journal: Journal, run: str, aftermath: Aftermath) -> str:
    """Return the closing lines of a run, from the same evidence as its exit code. The last one is about production."""
    record, verdict = load_run(journal, run), verdict_of(journal, run)
    lines = [""]
    if verdict.reason:
        lines.append(f"{verdict.outcome}: {verdict.reason}")
        lines.extend(f"  {line}" for line in _details(record))
    lines += [aftermath.finding, ""] if aftermath.finding else []
    lines += [f"changed: {alarm}" for alarm in aftermath.alarms]
    lines += aftermath.troubles
    if verdict.code in {ExitCode.UNFIT, ExitCode.HELD}:
        lines.append("nothing was touched")
        return "\n".join(lines)
    lines.extend(f"report: {path}" for path in aftermath.written)
    if verdict.code is ExitCode.FAILED and any(production.restored_by == "guard" for production in record.production):
        lines.append(f"next: opsctl resume {run}")
    for production in sorted(record.production, key=lambda one: not one.verified):
        if production.standing is Standing.UNVERIFIED:
            lines += _not_verified(record, production)
        else:
            lines.append(f"production {production.service} on {production.host}: {production_words(production)[0]}")
    return "\n".join(lines)


def _details(record: RunRecord) -> list[str]:
    """Return the lines of the error that ended the run; else of the first that a host met in this controller's time."""
    ended = [event.data.get("error", []) for event in record.events if event.event == "run.ended"]
    if ended and ended[-1]:
        return [str(line) for line in ended[-1]]
    begun = max((place for place, event in enumerate(record.events) if event.event == "run.begun"), default=0)
    met = (event for event in record.events[begun:] if event.event in {"run.failing", "lease.lost"})
    return [str(line) for event in met for line in event.data.get("error", [])[1:]][:12]


def _not_verified(record: RunRecord, production: ProductionRecord) -> list[str]:
    told = {"restore.ended", "lease.lost"}
    said = [event for event in record.events if event.event in told and event.host == production.host]
    seen = said[-1].message if said else production_words(production)[0]
    return [
        f"PRODUCTION NOT VERIFIED: {production.service} on {production.host}: {seen}",
        f"  next: opsctl rollback {production.host}     (the armed guard goes on trying meanwhile)",
    ]

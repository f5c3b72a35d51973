"""The last lines that a person reads: what was found, whether production is back, what to type next."""

from __future__ import annotations

from opsctl.campaign.reporting import Aftermath
from opsctl.errors import ExitCode
from opsctl.runs.journal import Journal
from opsctl.runs.reading import load_run
from opsctl.terminal.run_view import production_words


def last_word(journal: Journal, run: str, code: ExitCode, aftermath: Aftermath) -> str:
    """Return the closing lines of a run. The last one is about production, and is true."""
    record = load_run(journal, run)
    lines = [""]
    if record.reason:
        lines.append(f"{record.outcome}: {record.reason}")
        errors = [event for event in record.events if event.event in {"run.failing", "run.ended", "lease.lost"}]
        for event in errors[:1]:
            lines.extend(f"  {line}" for line in event.data.get("error", [])[1:])
    lines += [aftermath.finding, ""] if aftermath.finding else []
    lines += [f"changed: {alarm}" for alarm in aftermath.alarms]
    lines += aftermath.troubles
    if code is not ExitCode.UNFIT:
        lines.extend(f"report: {path}" for path in aftermath.written)
    if code in {ExitCode.UNFIT, ExitCode.HELD}:
        lines.append("nothing was touched")
        return "\n".join(lines)
    if code is ExitCode.FAILED and any(production.restored_by == "guard" for production in record.production):
        lines.append(f"next: opsctl resume {run}")
    for production in record.production:
        words, _ = production_words(production)
        if production.verified:
            lines.append(f"production {production.service} on {production.host}: {words}")
        elif code is not ExitCode.PRODUCTION_NOT_VERIFIED:
            # The code was decided from what was seen; what is missing is its record (a full disk, an early end).
            back = "is back and verified, which the journal could not record"
            seen = "was not touched" if production.down_since is None else back
            lines.append(f"production {production.service} on {production.host}: {seen}")
    if code is ExitCode.PRODUCTION_NOT_VERIFIED:
        unverified = [production for production in record.production if not production.verified]
        for production in unverified:
            said = [
                e for e in record.events if e.event in {"restore.ended", "lease.lost"} and e.host == production.host
            ]
            seen = said[-1].message if said else "nothing could be seen of it"
            lines.append(f"PRODUCTION NOT VERIFIED: {production.service} on {production.host}: {seen}")
            lines.append(f"  next: opsctl rollback {production.host}     (the armed guard goes on trying meanwhile)")
    return "\n".join(lines)

"""From what a person typed to snapshots: a run, the beginning of its id, or ``baseline``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from opsctl.errors import UnfitError
from opsctl.quantities import parse_duration
from opsctl.snapshots.comparing import Comparison, compare, compare_with_nights
from opsctl.snapshots.models import Snapshot
from opsctl.snapshots.store import History

BASELINE = "baseline"


def compare_all(
    a: Sequence[Snapshot] | None,
    b: Sequence[Snapshot],
    history: History,
    *,
    nights: int = 14,
    force: bool = False,
) -> list[Comparison]:
    """Compare every service that both sides have; ``a`` None is the history's baseline of each.

    Raises UnfitError where there is nothing to compare, or where two were not measured alike and it was not asked
    to compare them anyway: the differences are listed.
    """
    pairs: list[Comparison] = []
    for snapshot in b:
        if a is None:
            earlier = history.baseline(snapshot, nights=nights)
            if earlier:
                pairs.append(compare_with_nights(earlier, snapshot))
            continue
        pairs.extend(
            compare(other, snapshot) for other in a if (other.host, other.service) == (snapshot.host, snapshot.service)
        )
    if not pairs and a is not None and len(a) == len(b) == 1:
        # One service each, of different names or hosts: the person named both runs, so that is what they meant.
        pairs = [compare(a[0], b[0])]
    if not pairs:
        raise UnfitError(
            "there is nothing to compare",
            wanted="a service on a host that both sides measured" if a else "an earlier night measured alike",
            seen="; ".join(f"{item.run}: {item.service} on {item.host}" for item in (*(a or ()), *b)),
            hint="opsctl history tpot.p50 shows what the history holds",
        )
    unequal = [pair for pair in pairs if not pair.comparable]
    if unequal and not force:
        raise UnfitError(
            f"{unequal[0].a} and {unequal[0].b} were not measured alike",
            seen="; ".join(f"{item.name}: {_short(item.a)} → {_short(item.b)}" for item in unequal[0].differences[:8]),
            hint="compare them all the same with --force",
        )
    return pairs


def _short(text: str) -> str:
    return (text if len(text) <= 60 else text[:57] + "…") or "(nothing)"


def snapshots_of_run(run: str, history: History, load: Callable[[str], Sequence[Snapshot]]) -> list[Snapshot]:
    """Return a run's snapshots: from the history, else made from its record by ``load``.

    Raises UnfitError for the beginning of several runs, or where the run measured nothing without a profiler.
    """
    runs = sorted({snapshot.run for snapshot in history.snapshots() if snapshot.run.startswith(run)})
    if run in runs or len(runs) == 1:
        return history.snapshots(run=run if run in runs else runs[0])
    if runs:
        raise UnfitError(f"{run!r} is the beginning of {len(runs)} runs", seen=", ".join(runs[:5]), hint="opsctl runs")
    made = list(load(run))
    if not made:
        raise UnfitError(
            f"run {run} measured nothing that can be compared",
            wanted="verified cells of a phase without a profiler",
            hint=f"opsctl report {run} says what became of each cell",
        )
    return made


def since(text: str | None, *, now: datetime | None = None) -> str | None:
    """Return the ISO time that ``30d``, ``12h`` or a date such as 2026-11-01 stands for. Raises UnfitError."""
    if text is None:
        return None
    try:
        ago = timedelta(seconds=parse_duration(text))
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise UnfitError(f"--since {text!r} is no time", wanted="30d, 12h, or a date such as 2026-11-01") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    return ((now or datetime.now(UTC)) - ago).isoformat()

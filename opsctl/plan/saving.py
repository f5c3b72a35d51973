"""What another order of the phases would save: weight loads are the dear part of a campaign."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from opsctl.plan.hostplan import Saving
from opsctl.playbook.models import NOTHING
from opsctl.playbook.steps import Playbook


def loads_in_order(serves: tuple[str, ...], productions: AbstractSet[str]) -> int:
    """Return the loads that a sequence of phases needs on a host whose production serves before and after.

    A phase needs a load when its service does not serve yet; the restore needs one for each production
    service that does not serve at the end.
    """
    serving: frozenset[str] = frozenset(productions)
    loads = 0
    for serve in serves:
        if serve == NOTHING:
            serving = frozenset()
        elif serve not in serving:
            loads += 1
            serving = frozenset({serve})
    return loads + len(productions - serving)


def best_order(playbook: Playbook, productions: AbstractSet[str]) -> tuple[int, tuple[str, ...]]:
    """Return the least number of loads that any order of the phases needs, and names of phases in such an order.

    Production first (it serves already), then free GPUs, then every other service once.
    """
    names = dict.fromkeys(phase.serve for phase in playbook.phases)
    groups = sorted(names, key=lambda serve: (serve not in productions, serve != NOTHING))
    ordered = [phase for serve in groups for phase in playbook.phases if phase.serve == serve]
    return loads_in_order(tuple(phase.serve for phase in ordered), productions), tuple(phase.name for phase in ordered)


def saving_of(playbook: Playbook, productions: AbstractSet[str]) -> Saving | None:
    """Return a better order, or None where the playbook's own is as good as any."""
    serves = tuple(phase.serve for phase in playbook.phases)
    needed = loads_in_order(serves * playbook.rounds.count, productions)
    least, order = best_order(playbook, productions)
    if least >= needed:
        return None
    once = loads_in_order(serves, productions)
    return Saving(least, needed, order, because_of_rounds=once == least)

"""Changes of a figure over nights, told from noise whatever that noise's shape.

Method: the change-point model of D. M. Hawkins and Q. Deng, "A nonparametric control chart based on the
Mann-Whitney statistic", Journal of Quality Technology 42 (2010) 165-173 (also in the R package cpm: G. J. Ross,
Journal of Statistical Software 66(3), 2015), with van der Waerden's normal scores in place of the ranks, which
find a step a little sooner. Each night the last nights since the last change are split at every place; the split
whose two sides differ most in score is the candidate::

    a_i = Phi^-1(rank_i / (n + 1)),   S_k = a_1 + ... + a_k,   V = sum of a_i^2
    T_n = max over k >= n - 20 of |S_k| / sqrt(k (n - k) V / (n (n - 1)))

and it is a change when T_n > h_n. Only ranks enter, so the thresholds h_n give the same false alarm rate for
any noise that is independent from night to night; they were found by simulation (``benchmarks/change_detection.py
--thresholds``) such that a quiet series alarms in 1 night of 450. Two figures a host are watched, so a host
alarms in fewer than 1 of 200 quiet nights. Noise that is *not* independent (a host that is warm all summer) will
alarm more often.

One bad night is not a change: a night more than 5 scaled MADs from the median (Hampel's identifier: F. R. Hampel,
JASA 69 (1974) 383-393), with ordinary nights on both sides, is named an outlier and left out of the ranks. Two such
nights in a row are a level, so a large step is found a night later and no more.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, ConfigDict

from opsctl.snapshots.store import Point, Series

FALSE_ALARM = 1 / 450
"""Per figure and night, in quiet series."""
EARLY_FALSE_ALARM = 1 / 2000
SETTLED = 25
"""With fewer nights since the last change a level is hardly known: an early alarm costs the history it rests on."""
FEWEST = 12
"""Nights since the last change before anything is judged."""
WINDOW = 60
"""Nights that are looked at: older ones say less about tonight, and the table of thresholds ends there."""
RECENT = 20
"""A change further back than this many nights was found when it was recent: looking there again costs false alarms."""
HAMPEL = 5.0
MAD_TO_SIGMA = 1.4826
OUTLIER_NEEDS = 8
TIMID = 1e-12

THRESHOLDS = (
    2.771, 2.882, 2.979, 3.066, 3.143, 3.214, 3.270, 3.261, 3.272, 3.304,
    3.314, 3.331, 3.360, 3.216, 3.176, 3.147, 3.134, 3.132, 3.134, 3.123,
    3.135, 3.137, 3.127, 3.140, 3.126, 3.136, 3.140, 3.137, 3.132, 3.133,
    3.137, 3.144, 3.152, 3.153, 3.166, 3.156, 3.171, 3.166, 3.162, 3.178,
    3.155, 3.174, 3.173, 3.182, 3.173, 3.164, 3.181, 3.175, 3.190,
)  # fmt: skip
"""h_n for n = FEWEST to WINDOW: ``benchmarks/change_detection.py --thresholds`` prints them anew."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Change(_Model):
    """A change of level. Indexes are into the series' points."""

    began: int
    """First night of the new level, as well as it can be told."""
    found: int
    """Night at which it was found: no earlier night gave it away."""
    before: float
    after: float
    """Medians of the nights before and after."""
    statistic: float
    threshold: float

    @property
    def relative(self) -> float:
        """Return after / before - 1; NaN where before is 0."""
        return self.after / self.before - 1 if self.before else math.nan


class Changes(_Model):
    """What is to be seen in one series."""

    changes: tuple[Change, ...] = ()
    outliers: tuple[int, ...] = ()
    renewals: tuple[int, ...] = ()
    """Nights from which on something else was measured (another fingerprint): judged anew from there."""
    judged: int = 0
    """Nights on which there were enough to judge by."""


def detect_changes(series: Series) -> Changes:
    """Return changes, outliers and renewals of a series, as they would have been found night by night."""
    renewals = [
        index
        for index in range(1, len(series.points))
        if series.points[index].identity != series.points[index - 1].identity
    ]
    changes: list[Change] = []
    outliers: list[int] = []
    judged = 0
    bounds = [0, *renewals, len(series.points)]
    for start, end in pairwise(bounds):
        values = [point.value for point in series.points[start:end]]
        found = detect(values)
        judged += found.judged
        changes += [
            change.model_copy(update={"began": change.began + start, "found": change.found + start})
            for change in found.changes
        ]
        outliers += [index + start for index in found.outliers]
    return Changes(changes=tuple(changes), outliers=tuple(outliers), renewals=tuple(renewals), judged=judged)


def detect(values: Sequence[float]) -> Changes:
    """Return changes and outliers of plain values, one a night, the oldest first.

    After a change was found, judging starts anew with the next night: the nights that gave it away were chosen
    for being extreme, and a level learnt from them would alarm again as soon as ordinary nights follow.
    """
    changes: list[Change] = []
    judged = restart = 0
    for night in range(len(values)):
        start = max(restart, night + 1 - WINDOW)
        places = [start + index for index in _without_bad_nights(values[start : night + 1])]
        if len(places) < FEWEST:
            continue
        judged += 1
        split, statistic = strongest_split([values[place] for place in places])
        # A window that slides sees new splits each night: it needs the last, stricter threshold.
        threshold = THRESHOLDS[-1 if start > restart else len(places) - FEWEST]
        if statistic > threshold:
            changes.append(
                Change(
                    began=places[split],
                    found=night,
                    before=statistics.median(values[place] for place in places[:split]),
                    after=statistics.median(values[place] for place in places[split:]),
                    statistic=statistic,
                    threshold=threshold,
                )
            )
            restart = night + 1
    segments = [0, *(change.began for change in changes), len(values)]
    outliers = [start + index for start, end in pairwise(segments) for index in hampel(values[start:end])]
    return Changes(changes=tuple(changes), outliers=tuple(outliers), judged=judged)


def _without_bad_nights(values: Sequence[float]) -> list[int]:
    """Return the places of values without outliers that stand alone: two in a row are a level, not an accident."""
    bad = set(hampel(values))
    alone = {index for index in bad if index - 1 not in bad and index + 1 not in bad}
    return [index for index in range(len(values)) if index not in alone]


def strongest_split(values: Sequence[float]) -> tuple[int, float]:
    """Return (length of the first side, T) of the split whose sides differ most in score."""
    count = len(values)
    by_rank = normal_scores(count)
    # Equal values share their mean rank, and so the mean of the two scores around it.
    scores = [(by_rank[math.floor(rank) - 1] + by_rank[math.ceil(rank) - 1]) / 2 for rank in ranks(values)]
    middle = math.fsum(scores) / count
    squares = math.fsum((score - middle) ** 2 for score in scores)
    if squares == 0:
        return 1, 0.0
    best, place, total = 0.0, 1, 0.0
    for split, score in enumerate(scores[:-1], start=1):
        total += score - middle
        statistic = abs(total) / math.sqrt(split * (count - split) * squares / (count * (count - 1)))
        if statistic > best and split >= count - RECENT:
            best, place = statistic, split
    return place, best


@cache
def normal_scores(count: int) -> tuple[float, ...]:
    """Return van der Waerden's scores of the ranks 1 to ``count``."""
    inverse = statistics.NormalDist().inv_cdf
    return tuple(inverse(rank / (count + 1)) for rank in range(1, count + 1))


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1 on; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for index in order[first : last + 1]:
            ranked[index] = (first + last) / 2 + 1
        first = last + 1
    return ranked


def hampel(values: Sequence[float]) -> list[int]:
    """Return the places of values more than 5 scaled MADs from the median, where there are enough to say so."""
    if len(values) < OUTLIER_NEEDS:
        return []
    middle = statistics.median(values)
    scale = MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values)
    # Without any spread every difference would be infinite: a millionth of the value counts as one then.
    scale = max(scale, abs(middle) * 1e-6, TIMID)
    return [index for index, value in enumerate(values) if abs(value - middle) > HAMPEL * scale]


def described(change: Change, points: Sequence[Point]) -> str:
    """Return one line about a change."""
    return (
        f"{100 * change.relative:+.1f} % from {points[change.began].time[:10]} on "
        f"(run {points[change.began].run}; found {points[change.found].time[:10]})"
    )

"""A figure over nights as a chart: levels, changes, outliers, and where something else began to be measured."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from opsctl.report.charts import BAD, PALETTE, QUIET, WARN, short_label, upright
from opsctl.report.document import Chart
from opsctl.snapshots import Changes, Series


def trend(series: Series, changes: Changes, identity: str) -> Chart:
    """Return the chart of one series. ``identity`` is the chart's anchor, unique on its page."""
    times = [point.time for point in series.points]
    values = [point.value for point in series.points]
    data = [_nights(series, times, values), _levels(changes, times, values)]
    if changes.outliers:
        data.append(_outliers(changes, times, values))
    marks = [
        *((times[change.began], BAD, f"{100 * change.relative:+.1f} %") for change in changes.changes),
        *((times[index], QUIET, "measured differently") for index in changes.renewals),
    ]
    layout = {
        "xaxis": {"type": "date"},
        "yaxis": {"title": {"text": short_label(series.unit)}},
        "height": 270,
        "shapes": [upright(time, colour, width=1.5) for time, colour, _ in marks],
        "annotations": [_said_above(time, colour, text) for time, colour, text in marks],
    }
    return Chart(
        identity,
        f"{series.key.name}, {series.key.cell}: {series.service} on {series.host}",
        {"data": data, "layout": layout},
    )


def _nights(series: Series, times: list[str], values: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "night",
        "x": times,
        "y": values,
        "text": [short_label(point.run) for point in series.points],
        "line": {"color": PALETTE[0], "width": 1},
        "marker": {"size": 5},
        "hovertemplate": "%{x|%Y-%m-%d}: %{y:.4g}<br>%{text}<extra></extra>",
    }


def _levels(changes: Changes, times: list[str], values: list[float]) -> dict[str, Any]:
    """Return the median between two changes as a step; None parts one step from the next."""
    bounds = [0, *sorted({*changes.renewals, *(change.began for change in changes.changes)}), len(values)]
    ends: list[tuple[str | None, float | None]] = []
    for start, end in pairwise(bounds):
        if end > start:
            level = statistics.median(values[start:end])
            ends += [(times[start], level), (times[end - 1], level), (None, None)]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "level (median)",
        "x": [time for time, _ in ends],
        "y": [level for _, level in ends],
        "line": {"color": PALETTE[2], "width": 2, "dash": "dash"},
        "hoverinfo": "skip",
    }


def _outliers(changes: Changes, times: list[str], values: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "outlier",
        "x": [times[index] for index in changes.outliers],
        "y": [values[index] for index in changes.outliers],
        "marker": {"color": WARN, "symbol": "x", "size": 10},
        "hovertemplate": "outlier: %{y:.4g}<extra></extra>",
    }


def _said_above(time: str, colour: str, text: str) -> dict[str, Any]:
    place = {"x": time, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top"}
    return {**place, "text": text, "showarrow": False, "font": {"color": colour}}

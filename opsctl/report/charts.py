"""Charts as plain Plotly figures: dictionaries of data and layout. Plotly itself only runs in the browser.

No colour of text, grid or paper is set here: the page sets them for light, dark and print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.quantities import format_duration, format_size
from opsctl.record import HoldRecord, RunRecord
from opsctl.report.document import Chart
from opsctl.report.numbers import digits, seconds_between
from opsctl.report.reading import Placed
from opsctl.report.traces import TraceReading
from opsctl.results import Figure
from opsctl.stages.rendering import LineChart

# Okabe and Ito's palette, without its black and yellow: told apart by people with any colour vision, on both papers.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#7F7F7F")
# A stack can have more parts than a line chart has lines (which change their dash instead).
STACK = (*PALETTE, "#44AA99", "#AA4499", "#999933", "#6A5ACD", "#B8866B", "#4E7A27")
GOOD, BAD, WARN, QUIET = "#009E73", "#D55E00", "#E69F00", "#9A9A9A"
DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
ROLE_COLOURS = {
    "production": GOOD,
    "variant": "#CC79A7",
    "stage": "#0072B2",
    "loading": "#56B4E9",
    "stopping": WARN,
    "nobody": QUIET,
}
BAR_HEIGHT = 38
NAME_LIMIT = 40


def timeline(record: RunRecord) -> Chart:
    """Return who held the GPUs of each host, with the time without production marked."""
    hosts = list(dict.fromkeys(hold.host for hold in record.holds))
    roles = list(dict.fromkeys(hold.role for hold in record.holds))
    data = [_role_bars(role, [hold for hold in record.holds if hold.role == role], record.ended) for role in roles]
    shapes, annotations = [], []
    for item in record.production:
        end = item.back_at or record.ended
        if item.down_since is None or end is None or item.host not in hosts:
            continue
        row = hosts.index(item.host)
        seconds = seconds_between(item.down_since, end) or 0.0
        shapes.append(
            {
                "type": "line",
                "x0": item.down_since,
                "x1": end,
                "y0": row + 0.44,
                "y1": row + 0.44,
                "line": {"color": BAD, "width": 4},
            }
        )
        label = "production down " if item.back_at else "production down, not seen back: "
        annotations.append(
            {
                "x": item.down_since,
                "y": row + 0.44,
                "text": short_label(f"{label}{format_duration(seconds)}"),
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "bottom",
                "font": {"color": BAD},
            }
        )
    layout = {
        "barmode": "overlay",
        "xaxis": {"type": "date", "title": {"text": "UTC"}},
        "yaxis": {"type": "category", "categoryarray": hosts, "automargin": True, "range": [-0.6, len(hosts) - 0.2]},
        "height": 110 + 90 * len(hosts),
        # Names that do not fit into their bar are left to the legend and the table.
        "uniformtext": {"minsize": 10, "mode": "hide"},
        "shapes": shapes,
        "annotations": annotations,
    }
    return Chart(
        "timeline", "Who held the GPUs", _figure(data, layout), "The line above the bar: time without production."
    )


def _role_bars(role: str, holds: Sequence[HoldRecord], run_end: str | None) -> dict[str, Any]:
    ends = [hold.ended or run_end for hold in holds]
    seconds = [max(0.0, seconds_between(hold.started, end) or 0.0) for hold, end in zip(holds, ends, strict=True)]
    return {
        "type": "bar",
        "orientation": "h",
        "name": role,
        "y": [hold.host for hold in holds],
        "base": [hold.started for hold in holds],
        # On a date axis the length of a bar is in milliseconds.
        "x": [1000 * length for length in seconds],
        "width": 0.6,
        "marker": {"color": ROLE_COLOURS.get(role, QUIET)},
        "text": [short_label(hold.holder or "nobody") for hold in holds],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "customdata": [format_duration(length) for length in seconds],
        "hovertemplate": "%{text}<br>%{customdata}<extra>%{fullData.name}</extra>",
    }


def decode_steps(readings: Sequence[TraceReading]) -> Chart:
    """Return a decode step of each window as a stacked bar by category, with what is idle at the end."""
    categories = list(dict.fromkeys(item.name for reading in readings for item in reading.document.categories))
    names = [short_label(reading.name).replace("/", "<br>") for reading in readings]
    data = []
    for index, category in enumerate(categories):
        found = [
            next((item for item in reading.document.categories if item.name == category), None) for reading in readings
        ]
        data.append(_stack(category, names, [_ms(item.busy_us_per_step if item else None) for item in found], index))
    idle = []
    for reading in readings:
        wall, busy = reading.document.main.wall_us, reading.document.busy_us_per_step
        idle.append(None if wall is None or busy is None else (wall.mean - busy) / 1000)
    data.append({**_stack("idle", names, idle, 0), "marker": {"color": QUIET, "opacity": 0.35}})
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms a decode step"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "height": 80 + BAR_HEIGHT * len(readings),
    }
    return Chart(
        "decode-step",
        "A decode step by category",
        _figure(data, layout),
        "Exclusive busy time per category; idle is wall time less the union of all busy intervals.",
    )


def _stack(name: str, rows: Sequence[str], lengths: Sequence[float | None], index: int) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": short_label(name),
        "y": list(rows),
        "x": list(lengths),
        "marker": {"color": STACK[index % len(STACK)]},
        "hovertemplate": "%{x:.3f} ms<extra>%{fullData.name}</extra>",
    }


def ranks(window: TraceReading) -> Chart:
    """Return busy time of each rank, split into communication and the rest."""
    listed = window.document.whole_ranks
    names = [f"rank {rank.rank}" for rank in listed]
    communication = [_ms(rank.exposed_communication_us_per_step) for rank in listed]
    rest = [
        None
        if rank.busy_us_per_step is None
        else (rank.busy_us_per_step - (rank.exposed_communication_us_per_step or 0.0)) / 1000
        for rank in listed
    ]
    data = [_stack("exposed communication", names, communication, 0), _stack("everything else", names, rest, 1)]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "ms busy a decode step"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
        "height": 80 + BAR_HEIGHT * len(listed),
    }
    return Chart("ranks", "Ranks side by side", _figure(data, layout))


def lines(placed: Sequence[Placed], hint: LineChart) -> Chart | None:
    """Return the chart that a stage describes; None where no cell has its figures."""
    groups: dict[str, list[Placed]] = {}
    for item in placed:
        groups.setdefault(_line_name(item, hint), []).append(item)
    data = [
        line
        for index, (name, mine) in enumerate(groups.items())
        for dash, figure in zip(DASHES, hint.figures, strict=False)
        if (line := _line(mine, figure, name, hint, _stroke(index) if len(hint.figures) == 1 else _dashed(index, dash)))
    ]
    if not data:
        return None
    named = {
        at: str(item.cell.axes[hint.ticks])
        for item in placed
        if hint.ticks in item.cell.axes and (at := _x(item, hint)) is not None
    }
    ticks = sorted(named) or sorted({place for line in data for place in line["x"]})
    axis: dict[str, Any] = {"title": {"text": hint.x_title}, "type": "log", "tickvals": ticks}
    if hint.sizes:
        axis["ticktext"] = [format_size(at) + (f"<br>{named[at]} tok" if at in named else "") for at in ticks]
    layout: dict[str, Any] = {
        "xaxis": axis,
        "yaxis": {"title": {"text": hint.y_title}, **({"type": "log"} if hint.y_log else {"rangemode": "tozero"})},
        "height": 380,
        "shapes": [upright(at, QUIET, width=1) for at in named],
    }
    roofs = [
        height.value / share.value
        for item in placed
        if (share := item.cell.figure(hint.roof)) and share.value > 0 and (height := item.cell.figure(hint.figures[0]))
    ]
    if roofs:
        layout |= _roof(max(roofs), hint.roof_title)
    return Chart(hint.id, hint.title, _figure(data, layout))


def _line_name(item: Placed, hint: LineChart) -> str:
    if hint.one_line_a_step:
        return item.place
    axes = item.cell.axes
    if hint.lines:
        return ", ".join(str(axes.get(name)) for name in hint.lines)
    first, *rest = [name for name in axes if name not in {*hint.x, hint.ticks}] or [""]
    return ", ".join([str(axes.get(first, item.step.stage)), *(f"{name}={axes[name]}" for name in rest)])


def _x(item: Placed, hint: LineChart) -> float | None:
    places = [item.cell.axes[name] for name in hint.x if name in item.cell.axes]
    return float(places[0]) if places and isinstance(places[0], int | float) else None


def _line(
    placed: Sequence[Placed], name: str, label: str, hint: LineChart, stroke: dict[str, str]
) -> dict[str, Any] | None:
    points = [
        (place, figure)
        for item in placed
        if (place := _x(item, hint)) is not None and (figure := item.cell.figure(name)) is not None
    ]
    if not points:
        return None
    points.sort(key=lambda point: point[0])
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": short_label(label) + (f" {name.rsplit('.', 1)[-1]}" if len(hint.figures) > 1 else ""),
        "x": [place for place, _ in points],
        "y": [figure.value for _, figure in points],
        "error_y": _bars([figure for _, figure in points]),
        "text": [format_size(place) if hint.sizes else f"{place:g}" for place, _ in points],
        "line": stroke,
        "hovertemplate": "%{text}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _dashed(index: int, dash: str) -> dict[str, str]:
    return {"color": PALETTE[index % len(PALETTE)], "dash": dash}


def _bars(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if item.high is None else item.high - item.value for item in figures],
        "arrayminus": [0.0 if item.low is None else item.value - item.low for item in figures],
        "visible": any(item.high is not None for item in figures),
        "thickness": 1,
    }


def upright(place: object, colour: str, *, width: float) -> dict[str, Any]:
    """Return a dotted line over the whole height of a chart at a place of its x axis."""
    line = {"color": colour, "width": width, "dash": "dot"}
    return {"type": "line", "yref": "paper", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": line}


def _stroke(index: int) -> dict[str, str]:
    """Return how the line of that number is drawn: a colour, and another dash each time the colours are used up."""
    return {"color": PALETTE[index % len(PALETTE)], "dash": DASHES[index // len(PALETTE) % len(DASHES)]}


def _roof(rate: float, title: str) -> dict[str, Any]:
    """Return a line over the whole chart, with its name."""
    line = {"color": BAD, "dash": "dash", "width": 2}
    place = {"xref": "paper", "x": 0, "y": rate, "xanchor": "left", "yanchor": "bottom"}
    text = f"{title} {digits(rate)} GB/s"
    return {
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": rate, "y1": rate, "line": line}],
        "annotations": [{**place, "text": text, "showarrow": False, "font": {"color": BAD}}],
    }


def _ms(micros: float | None) -> float | None:
    return None if micros is None else micros / 1000


def short_label(text: str) -> str:
    """Return text for a chart: Plotly reads a little HTML in labels, so its marks are taken out, and it is bounded."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    plain = plain.replace("&", "＆").replace("<", "‹").replace(">", "›")
    return plain if len(plain) <= NAME_LIMIT else plain[: NAME_LIMIT - 1] + "…"


def _figure(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    return {"data": list(data), "layout": layout}

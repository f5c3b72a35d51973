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

# Okabe and Ito's palette, without its black and yellow: told apart by people with any colour vision, on both papers.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6D31", "#7F7F7F")
# A stack can have more parts than a line chart has lines (which change their dash instead).
STACK = (*PALETTE, "#44AA99", "#AA4499", "#999933", "#6A5ACD", "#B8866B", "#4E7A27")
GOOD, BAD, WARN, QUIET = "#009E73", "#D55E00", "#E69F00", "#9A9A9A"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
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


def serving(placed: Sequence[Placed]) -> list[Chart]:
    """Return TPOT and output throughput against concurrency, a line a step."""
    latency, throughput = [], []
    places = list(dict.fromkeys(item.place for item in placed))
    for index, place in enumerate(places):
        mine = [item for item in placed if item.place == place and _load(item) is not None]
        label = short_label(place)
        for dash, statistic in zip(("solid", "dot"), ("p50", "p99"), strict=True):
            line = _line(mine, f"tpot.{statistic}", f"{label} {statistic}", index, dash)
            if line:
                latency.append(line)
        line = _line(mine, "output_throughput", label, index, "solid")
        if line:
            throughput.append(line)
    axis = {
        "title": {"text": "concurrency (or requests a second)"},
        "type": "log",
        "tickvals": sorted({load for line in (*latency, *throughput) for load in line["x"]}),
    }
    made = []
    if latency:
        layout = {"xaxis": axis, "yaxis": {"title": {"text": "TPOT, ms"}, "rangemode": "tozero"}, "height": 340}
        made.append(Chart("tpot", "TPOT against concurrency", _figure(latency, layout)))
    if throughput:
        layout = {"xaxis": axis, "yaxis": {"title": {"text": "output, tok/s"}, "rangemode": "tozero"}, "height": 340}
        made.append(Chart("throughput", "Output throughput against concurrency", _figure(throughput, layout)))
    return made


def _load(item: Placed) -> float | None:
    for axis in ("concurrency", "request_rate", "request-rate"):
        setting = item.cell.axes.get(axis)
        if isinstance(setting, int | float):
            return float(setting)
    return None


def _line(placed: Sequence[Placed], name: str, label: str, index: int, dash: str) -> dict[str, Any] | None:
    points = [(_load(item), figure) for item in placed if (figure := item.cell.figure(name)) is not None]
    if not points:
        return None
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label,
        "x": [load for load, _ in points],
        "y": [figure.value for _, figure in points],
        "error_y": _bars([figure for _, figure in points]),
        "line": {"color": PALETTE[index % len(PALETTE)], "dash": dash},
        "hovertemplate": "%{x}: %{y:.4g}<extra>%{fullData.name}</extra>",
    }


def _bars(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [0.0 if item.high is None else item.high - item.value for item in figures],
        "arrayminus": [0.0 if item.low is None else item.value - item.low for item in figures],
        "visible": any(item.high is not None for item in figures),
        "thickness": 1,
    }


def gemm(placed: Sequence[Placed]) -> Chart:
    """Return bandwidth of each product against tokens, under the roof that was measured beside it."""
    kinds = list(dict.fromkeys((item.cell.axes.get("op"), item.cell.axes.get("backend")) for item in placed))
    lines = [_product(index, kind, placed) for index, kind in enumerate(kinds)]
    data = [line for line in lines if line["x"]]
    layout: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "tokens in the step (M)"},
            "type": "log",
            "tickvals": sorted({tokens for line in data for tokens in line["x"]}),
        },
        "yaxis": {"title": {"text": "GB/s"}, "rangemode": "tozero"},
        "height": 400,
    }
    roofs = [
        bandwidth.value / share.value
        for item in placed
        if (bandwidth := item.cell.figure("gemm.bandwidth"))
        and (share := item.cell.figure("gemm.share_of_bandwidth"))
        and share.value > 0
    ]
    if roofs:
        layout |= _roof(max(roofs))
    return Chart("gemm", "Matrix products under the bandwidth roof", _figure(data, layout))


def upright(place: object, colour: str, *, width: float) -> dict[str, Any]:
    """Return a dotted line over the whole height of a chart at a place of its x axis."""
    line = {"color": colour, "width": width, "dash": "dot"}
    return {"type": "line", "yref": "paper", "x0": place, "x1": place, "y0": 0, "y1": 1, "line": line}


def _stroke(index: int) -> dict[str, str]:
    """Return how the line of that number is drawn: a colour, and another dash each time the colours are used up."""
    return {"color": PALETTE[index % len(PALETTE)], "dash": DASHES[index // len(PALETTE) % len(DASHES)]}


def _product(index: int, kind: tuple[object, object], placed: Sequence[Placed]) -> dict[str, Any]:
    """Return the line of one product by one backend."""
    points = [
        (item.cell.axes["m"], bandwidth.value)
        for item in placed
        if (item.cell.axes.get("op"), item.cell.axes.get("backend")) == kind
        and (bandwidth := item.cell.figure("gemm.bandwidth"))
        and "m" in item.cell.axes
    ]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": short_label(", ".join(map(str, kind))),
        "x": [tokens for tokens, _ in points],
        "y": [rate for _, rate in points],
        "line": _stroke(index),
        "hovertemplate": "M=%{x}: %{y:.4g} GB/s<extra>%{fullData.name}</extra>",
    }


def _roof(rate: float) -> dict[str, Any]:
    """Return a line over the whole chart at the copy bandwidth, with its name."""
    line = {"color": BAD, "dash": "dash", "width": 2}
    place = {"xref": "paper", "x": 0, "y": rate, "xanchor": "left", "yanchor": "bottom"}
    text = f"measured copy bandwidth {digits(rate)} GB/s"
    return {
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": rate, "y1": rate, "line": line}],
        "annotations": [{**place, "text": text, "showarrow": False, "font": {"color": BAD}}],
    }


def collectives(placed: Sequence[Placed]) -> Chart:
    """Return the time of each collective against message size, the model's own sizes marked by their tokens."""
    data: list[dict[str, Any]] = []
    own: dict[float, str] = {}
    kinds = list(dict.fromkeys(_kind(item) for item in placed))
    for index, kind in enumerate(kinds):
        points = []
        for item in placed:
            size, time = item.cell.axes.get("bytes"), item.cell.figure("collective.time.p50")
            if _kind(item) == kind and isinstance(size, int | float) and time:
                points.append((size, time.value))
                if "tokens" in item.cell.axes:
                    own[float(size)] = str(item.cell.axes["tokens"])
        if points:
            points.sort()
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": short_label(kind),
                    "x": [size for size, _ in points],
                    "y": [micros for _, micros in points],
                    "text": [format_size(size) for size, _ in points],
                    "line": _stroke(index),
                    "hovertemplate": "%{text}: %{y:.4g} µs<extra>%{fullData.name}</extra>",
                }
            )
    ticks = sorted(own) or sorted({size for line in data for size in line["x"]})
    layout = {
        "xaxis": {
            "title": {"text": "message size (tokens where it is the model's own)"},
            "type": "log",
            "tickvals": ticks,
            "ticktext": [format_size(size) + (f"<br>{own[size]} tok" if size in own else "") for size in ticks],
        },
        "yaxis": {"title": {"text": "p50, µs"}, "type": "log"},
        "height": 400,
        "shapes": [upright(size, QUIET, width=1) for size in own],
    }
    return Chart("collectives", "Collectives against message size", _figure(data, layout))


def _kind(item: Placed) -> str:
    axes = item.cell.axes
    rest = ", ".join(f"{key}={axes[key]}" for key in axes if key not in {"op", "bytes", "tokens"})
    return f"{axes.get('op', item.step.stage)}" + (f", {rest}" if rest else "")


def _ms(micros: float | None) -> float | None:
    return None if micros is None else micros / 1000


def short_label(text: str) -> str:
    """Return text for a chart: Plotly reads a little HTML in labels, so its marks are taken out, and it is bounded."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    plain = plain.replace("&", "＆").replace("<", "‹").replace(">", "›")
    return plain if len(plain) <= NAME_LIMIT else plain[: NAME_LIMIT - 1] + "…"


def _figure(data: Sequence[dict[str, Any]], layout: dict[str, Any]) -> dict[str, Any]:
    return {"data": list(data), "layout": layout}

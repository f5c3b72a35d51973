"""What the figures rest on and what they do not cover: scope, environment, variants, sources, files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsctl.quantities import format_size
from opsctl.report.document import Block, Inline, Items, Mark, Prose, Section, table
from opsctl.report.numbers import ABSENT
from opsctl.report.reading import Material, Placed
from opsctl.report.sections.overview import cell_state, state
from opsctl.report.traces import unique
from opsctl.results import State
from opsctl.stages import STAGES

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What nvidia-smi writes around the heads of its tables."""
_NAMED = 5  # cells alike that have a row each; more of them share one, and the folded table names them all


def scope(material: Material) -> Section:
    """List every planned cell with its state, and say what the run did not look at."""
    placed = material.cells()
    blocks: list[Block] = []
    if placed:
        counts = Counter(str(item.cell.state) for item in placed)
        order = [str(item) for item in State]
        summary = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
        blocks.append(Prose(f"{len(placed)} cells were planned: {summary}."))
        wrong = [item for item in placed if item.cell.state is not State.VERIFIED]
        if wrong:
            blocks.append(
                table(
                    ("Step", "Cell", "State", "Why"),
                    list(_not_verified(wrong)),
                    caption="Planned and not verified",
                )
            )
        blocks.append(
            table(
                ("Step", "Cell", "State", "Figures"),
                [
                    (
                        Mark(item.place, "code"),
                        Mark(item.cell.id, "code"),
                        cell_state(item.cell),
                        str(len(item.cell.figures)),
                    )
                    for item in placed
                ],
                numeric=(3,),
                folded=True,
                caption=f"All {len(placed)} planned cells",
            )
        )
    else:
        blocks.append(Prose("No cell was planned: the run measured nothing."))
    blocks.append(Prose("What this campaign did not look at:"))
    blocks.append(Items(tuple(_not_looked_at(material))))
    return Section("scope", "Scope: what was planned, what was not looked at", tuple(blocks), short="Scope")


def _not_verified(placed: Sequence[Placed]) -> Iterator[tuple[Inline, ...]]:
    """Yield a row a cell, or one for all cells of a step that have one state for one reason, where they are many."""
    alike: dict[tuple[str, State, str], list[str]] = {}
    for item in placed:
        reason = item.cell.reason or "no reason was recorded"
        alike.setdefault((item.place, item.cell.state, reason), []).append(item.cell.id)
    for (place, what, reason), cells in alike.items():
        named = [f"{len(cells)} cells"] if len(cells) > _NAMED else [Mark(name, "code") for name in cells]
        yield from ((Mark(place, "code"), name, state(what), reason) for name in named)


def _not_looked_at(material: Material) -> list[str]:
    record = material.record
    steps = [step for phase in record.phases for step in phase.steps]
    ran = {placed.step.stage for placed in material.cells(verified=True)}
    missing = [
        f"{stage.about} (no verified {name} cell)" for name, stage in STAGES.items() if stage.about and name not in ran
    ]
    unfinished = [f"step {step.id}, which has no result" for step in steps if step.result is None]
    axes: dict[str, set[object]] = {}
    for placed in material.cells("serving-benchmark", verified=True):
        for name, setting in placed.cell.axes.items():
            axes.setdefault(name, set()).add(setting)
    ranges = [
        f"any {name.replace('_', ' ')} other than {', '.join(str(value) for value in sorted(found, key=str_number))}"
        for name, found in axes.items()
    ]
    lengths = {
        (step.options.get("input-tokens"), step.options.get("output-tokens"))
        for step in steps
        if step.stage == "serving-benchmark" and "input-tokens" in step.options
    }
    ranges += [f"requests other than {i} tokens in and {o} tokens out" for i, o in sorted(lengths, key=str)]
    hosts = ", ".join(record.hosts) or "the host of this run"
    return [
        *missing,
        *unfinished,
        *ranges,
        f"any host other than {hosts}, and any hour of the day other than that of the run",
        "another parallelism, batch policy or engine version in service: what is said of them is computed, not served",
        "the quality of the model's output",
    ]


def str_number(item: object) -> tuple[int, float, str]:
    """Order numbers as numbers, and before words."""
    return (0, float(item), "") if isinstance(item, int | float) else (1, 0.0, str(item))


def environment(material: Material) -> Section:
    """Give what the figures were taken on, host by host, and how each variant differs from production."""
    blocks: list[Block] = []
    known = {line for facts in material.record.environment.values() for line in _flat(facts)}
    for host, facts in material.record.environment.items():
        rows = [(key, Mark(text, "code")) for key, text in _flat(facts)]
        blocks.append(table((f"On {host}", "Seen"), rows))
    for place, result in material.results():
        rows = [(key, Mark(text, "code")) for key, text in _flat(result.environment) if (key, text) not in known]
        if rows:
            caption = f"Environment of {place}, where it differs"
            blocks.append(table(("During the step", "Seen"), rows, folded=True, caption=caption))
    if not blocks:
        blocks.append(Prose("The run recorded no environment: its figures cannot be compared with others."))
    for variant, differences in material.record.variants.items():
        blocks.append(Prose(f"How {variant} differs from production:"))
        blocks.append(Items(tuple(Mark(line, "code") for line in differences) or ("not at all",)))
    return Section("environment", "Environment", tuple(blocks), short="Environment")


def _flat(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return an environment a line each; lists of equal things are folded with their count."""
    lines: list[tuple[str, str]] = []
    for key, found in facts.items():
        if isinstance(found, Mapping):
            lines.extend((f"{key}.{inner}", text) for inner, text in _flat(found))
        elif isinstance(found, list | tuple) and found and all(isinstance(item, Mapping) for item in found):
            lines.extend((key, text) for text in _grouped(found))
        elif isinstance(found, list | tuple):
            lines.append((key, " ".join(str(item) for item in found) or ABSENT))
        else:
            lines.append((key, "unknown" if found is None else _COLOUR.sub("", str(found))))
    return lines


def _grouped(items: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]) -> list[str]:
    described = Counter(
        json.dumps({key: text for key, text in item.items() if key != "index"}, default=str) for item in items
    )
    return [
        f"{count} × {', '.join(f'{k} {v}' for k, v in json.loads(text).items())}" for text, count in described.items()
    ]


def sources(material: Material) -> Section:
    """Name the file behind every figure, with what proves that it is whole."""
    record = material.record
    folder = Path(record.folder)
    rows: list[tuple[Inline, ...]] = [
        (
            Mark(artifact.path, "code", href=artifact.path if (folder / artifact.path).is_file() else ""),
            artifact.kind or ABSENT,
            format_size(artifact.size),
            Mark(artifact.sha256, "code"),
            place,
        )
        for place, result in material.results()
        for artifact in unique(result.artifacts, folder)
    ]
    formulas: dict[str, set[str]] = {}
    for placed in material.cells():
        for figure in placed.cell.figures:
            if figure.formula:
                formulas.setdefault(figure.formula, set()).add(figure.name)
    blocks: list[Block] = [
        Prose(
            f"Run {record.run}, playbook {record.playbook_file or record.playbook}, opsctl {record.opsctl_version}, "
            f"controller {record.controller or 'unknown'}. The run's journal has every action, event and observation."
        )
    ]
    if formulas:
        blocks.append(
            table(
                ("Figures", "Formula"),
                [(", ".join(sorted(names)), text) for text, names in formulas.items()],
                caption="How figures were computed",
            )
        )
    if rows:
        blocks.append(
            table(
                ("File", "Kind", "Size", "SHA-256", "Step"),
                rows,
                numeric=(2,),
                folded=True,
                caption=f"{len(rows)} files of the run: links where they were fetched, else they lie on the host",
            )
        )
    else:
        blocks.append(Prose("No file was fetched."))
    return Section("sources", "Sources", tuple(blocks), short="Sources")

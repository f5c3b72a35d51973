"""What the stages concluded from their own measurements: findings, topology, parallelism.

Nothing is computed here: the sentences and numbers are the stages' (``opsctl/stages/advice.py``), which advise
nothing where nothing was measured. Any stage may leave ``findings`` and ``advice`` in its result's detail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.report.document import Block, Callout, Inline, Items, Prose, Section, table
from opsctl.report.numbers import ABSENT, digits
from opsctl.report.reading import Material


def advice(material: Material) -> Section:
    """Give every stage's findings, and the advice on parallelism with its assumptions; say so where there is none."""
    blocks: list[Block] = []
    advised = False
    for place, result in material.results():
        found = result.detail.get("advice")
        blocks += [Callout(str(finding), "warn") for finding in _list(result.detail.get("findings"))]
        if isinstance(found, Mapping):
            blocks += _advice_of(place, found)
            advised = True
    if not advised:
        blocks.append(
            Prose(
                "None: advice on parallelism comes from collectives measured on this topology, and none were verified."
            )
        )
    return Section("advice", "Advice, and what it assumes", tuple(blocks), short="Advice")


def _advice_of(place: str, found: Mapping[str, Any]) -> list[Block]:
    rows: list[tuple[Inline, ...]] = []
    for choice in _maps(found.get("choices")):
        tensor, expert = _number(choice.get("tensor_parallel_us")), _number(choice.get("expert_parallel_us"))
        settings = choice.get("settings")
        chosen = settings.items() if isinstance(settings, Mapping) else ()
        rows.append(
            (
                str(choice.get("tokens", ABSENT)),
                ABSENT if tensor is None else digits(tensor / 1e3),
                ABSENT if expert is None else digits(expert / 1e3),
                "; ".join(f"{op}: {setting}" for op, setting in chosen) or ABSENT,
                ", ".join(str(name) for name in _list(choice.get("missing"))) or "nothing",
            )
        )
    head = ("Tokens", "Tensor parallel, ms a step", "Expert parallel, ms a step", "Fastest settings", "Not measured")
    blocks: list[Block] = [
        Prose(f"From step {place}, on {found.get('topology') or 'a topology that is not known'}:"),
        Items(tuple(str(line) for line in _list(found.get("lines")))),
    ]
    if rows:
        blocks.append(table(head, rows, numeric=(0, 1, 2), note="Calls a step × measured p50 of each collective."))
    blocks += [Prose("It assumes:"), Items(tuple(str(line) for line in _list(found.get("assumptions"))))]
    return blocks


def _maps(found: Any) -> list[Mapping[str, Any]]:
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list | tuple) else []


def _list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else []


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

"""What the stages concluded from their own measurements: sums of matrix products, topology, parallelism.

Nothing is computed here: the sentences and numbers are the stages' (``opsctl/stages/advice.py``,
``gemm_sums.py``), which advise nothing where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.report.document import Block, Callout, Inline, Items, Prose, Section, table
from opsctl.report.numbers import ABSENT, digits
from opsctl.report.reading import Material


def gemm_sums(material: Material) -> Section | None:
    """Show what the matrix products of one decode step cost beside the floor of reading the weights."""
    rows: list[tuple[Inline, ...]] = []
    for place, result in material.results():
        for batch in _maps(result.detail.get("sums")) if result.stage == "gemm" else ():
            cost, floor = _number(batch.get("gemm_us_per_step")), _number(batch.get("weight_floor_us"))
            missing = ", ".join(str(name) for name in _list(batch.get("missing")))
            rows.append(
                (
                    place,
                    str(batch.get("tokens", ABSENT)),
                    ABSENT if cost is None else digits(cost / 1e3),
                    ABSENT if floor is None else digits(floor / 1e3),
                    f"{digits(cost / floor, 3)} ×" if cost and floor else ABSENT,
                    missing or "nothing",
                )
            )
    if not rows:
        return None
    note = (
        "Calls × time of the fastest verified kernel, over the operations of one decode step; the floor is the bytes "
        "of weights read / the copy bandwidth measured in the same step. Attention and collectives are not in it, and "
        "an operation that is missing makes the sum too small."
    )
    head = (
        "Step",
        "Tokens",
        "Products, ms a step",
        "Weight-read floor, ms",
        "Against the floor",
        "Missing from the sum",
    )
    block = table(head, rows, numeric=(1, 2, 3, 4), note=note)
    return Section("gemm-sums", "Matrix products of one decode step", (block,), short="Products a step")


def advice(material: Material) -> Section:
    """Give the advice on parallelism, with its topology and assumptions; say so where there is none."""
    blocks: list[Block] = []
    for place, result in material.results():
        if result.stage != "collectives":
            continue
        found = result.detail.get("advice")
        blocks += [Callout(str(finding), "warn") for finding in _list(result.detail.get("findings"))]
        if isinstance(found, Mapping):
            blocks += _advice_of(place, found)
    if not blocks:
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

"""What the matrix products of one decode step cost together, beside the floor that reading the weights sets. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.results import Cell, State
from opsctl.stages.models import ModelShapes


def _fastest(cells: Sequence[Cell], op: str, tokens: int) -> tuple[str, float, float] | None:
    """Return (backend, µs, weight bytes) of the fastest verified kernel of an operation; None where none is."""
    found = []
    for cell in cells:
        time = cell.figure("gemm.time")
        if cell.state is State.VERIFIED and time and cell.axes.get("op") == op and cell.axes.get("m") == tokens:
            found.append((str(cell.axes["backend"]), time.value, float(cell.detail.get("weight_bytes", 0.0))))
    return min(found, key=lambda each: each[1], default=None)


def step_sums(shapes: ModelShapes, cells: Sequence[Cell], ceilings: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return a document a batch: each operation's share, the sum, the floor, and what is missing from it.

    ``gemm_us_per_step`` sums, over the operations of a decode step, calls × time of the fastest verified kernel;
    ``weight_floor_us`` is the bytes of weights that those calls read ÷ the copy bandwidth measured in the same run.
    Kernels are timed one after another: overlap on other streams, attention itself and collectives are not in it.
    """
    batches = sorted({int(cell.axes["m"]) for cell in cells if "m" in cell.axes})
    bandwidth = float(ceilings["copy_bandwidth"]) if ceilings and ceilings.get("copy_bandwidth") else None
    documents = []
    for tokens in batches:
        rows: list[dict[str, Any]] = []
        missing: list[str] = []
        for op in shapes.ops:
            if not op.calls:
                continue
            best = _fastest(cells, op.name, tokens)
            if best is None:
                missing.append(op.name)
                continue
            backend, micros, weight_bytes = best
            rows.append(
                {
                    "op": op.name,
                    "backend": backend,
                    "calls": op.calls,
                    "us": micros,
                    "us_per_step": op.calls * micros,
                    "weight_bytes_per_step": op.calls * weight_bytes,
                }
            )
        total = sum(float(row["us_per_step"]) for row in rows)
        read = sum(float(row["weight_bytes_per_step"]) for row in rows)
        documents.append(
            {
                "tokens": tokens,
                "ops": rows,
                "missing": missing,
                "gemm_us_per_step": total,
                "weight_bytes_per_step": read,
                "weight_floor_us": read / bandwidth * 1e6 if bandwidth else None,
                "layers": shapes.layers,
                "gemm_us_per_layer": _per_layer(shapes, rows),
            }
        )
    return [document for document in documents if document["ops"]]


def _per_layer(shapes: ModelShapes, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return µs of one layer by kind: what every layer has, plus what only dense or only expert layers have."""
    once = {row["op"]: row["us"] for row in rows}
    calls = {row["op"]: row["calls"] for row in rows}
    every = sum(once[op] for op in once if calls[op] == shapes.layers and op != "lm_head")
    kinds: dict[str, float] = {}
    dense = shapes.layers - shapes.moe_layers
    if dense and any(op.startswith("mlp_") for op in once):
        shared = 0.0 if dense != shapes.layers else sum(once[op] for op in once if op.startswith("mlp_"))
        kinds["dense"] = every - shared + sum(once[op] for op in once if op.startswith("mlp_"))
    if shapes.moe_layers:
        experts = ("router", "shared_gate_up", "shared_down", "experts")
        counted = sum(once[op] for op in once if op in experts and calls[op] == shapes.layers)
        kinds["experts"] = every - counted + sum(once[op] for op in once if op in experts)
    return kinds

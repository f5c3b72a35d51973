"""Stage gpu-check: whether each GPU moves memory as fast as its kind should, and as fast as the others of its host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Literal

from pydantic import Field

from opsctl.options import Model
from opsctl.payload.gpu_check import MOVED, Spec
from opsctl.quantities import Duration, Size
from opsctl.results import Cell, State, StepResult
from opsctl.stages.base import Invocation, Place, Stage, StageContext, needs_free_gpus
from opsctl.stages.rendering import Column, FigureKind, Rendering, ResultTable

#: Memory bandwidth in GB/s by the vendor's data sheets; the first that stands in a GPU's name counts.
DATA_SHEET = {
    "B200": 8000,
    "GB200": 8000,
    "GH200 480GB": 4000,
    "H200": 4800,
    "H100 NVL": 3900,
    "H100 PCIe": 2000,
    "H100": 3350,
    "H20": 4000,
    "A100-SXM4-80GB": 2039,
    "A100 80GB PCIe": 1935,
    "A100-SXM4-40GB": 1555,
    "A100-PCIE-40GB": 1555,
    "L40S": 864,
    "L40": 864,
    "L4": 300,
    "A10G": 600,
    "A10": 600,
    "T4": 320,
    "RTX PRO 6000 Blackwell": 1792,
    "RTX 5090": 1792,
    "RTX 4090": 1008,
    "RTX 6000 Ada": 960,
    "GB10": 273,
}
_ON_DEVICE = ("device-copy", "device-triad")
_GRACE = 60.0


class GpuCheck(Model):
    """Memory bandwidth of each GPU, and copies between it and the host."""

    size: Size = Field(default=1 << 30, ge=1 << 20)
    """Bytes of one buffer on the GPU: well over its cache."""
    host_size: Size = Field(default=256 << 20, ge=1 << 20)
    """Bytes of one copy between host and GPU."""
    repetitions: int = Field(default=20, ge=3)
    """Measurements of each cell and GPU; the median is reported."""
    tolerance: float = Field(default=0.05, gt=0, lt=1)
    """A GPU that is slower than the median of the host's others by more than this share is named."""
    expected: float = Field(default=0.75, gt=0, le=1)
    """A GPU that reaches less than this share of its data sheet (or of its PCIe link, pinned) is named."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """auto: GPUs where the host has them, else only its own memory. cuda: no GPU is a failure."""
    limit: Duration = 10 * 60.0
    """Longest time for the step; the host itself ends it then."""


class GpuCheckStage(Stage):
    """One cell a test, over all GPUs of the host."""

    name = "gpu-check"
    options = GpuCheck
    about = "memory and copy bandwidth of each GPU"
    figures = (
        FigureKind("bandwidth.min", "higher", headline=True),
        FigureKind("bandwidth.median", "higher", headline=True),
        FigureKind("bandwidth.*", "higher"),
    )
    incidental = ("tolerance", "expected")
    rendering = Rendering(
        title="Memory and copy bandwidth of each GPU",
        short="GPU check",
        columns=(
            Column("Test", axes=("test",)),
            Column("Slowest, GB/s", "bandwidth.min"),
            Column("Median, GB/s", "bandwidth.median"),
            Column("Fastest, GB/s", "bandwidth.max"),
        ),
        note="Median over repetitions of each GPU, by CUDA events; pageable copies and host memory by wall time. One "
        "GPU after another: copies of several GPUs at once share links, and are slower. Every copy was compared with "
        "its source. cpu-copy is the host's own memory.",
        told=("size", "host-size"),
    )

    def problems(self, options: GpuCheck, places: Sequence[Place]) -> Iterable[tuple[str, str]]:
        """Yield GPUs in use."""
        if options.device != "cpu":
            yield from needs_free_gpus(self.name, places)

    def cells(self, options: GpuCheck, context: StageContext) -> tuple[Cell, ...]:
        """Return a cell a test: how many GPUs there are is the payload's to see."""
        return tuple(Cell(id=test, axes={"test": test}) for test in MOVED)

    def invocation(self, options: GpuCheck, context: StageContext, cells: Sequence[Cell]) -> Invocation:
        """Say what to run."""
        spec = Spec(
            cells=tuple(cell.id for cell in cells),
            size=int(options.size),
            host_size=int(options.host_size),
            repetitions=options.repetitions,
            device=options.device,
        )
        return Invocation(stage=self.name, spec=spec, limit=options.limit + _GRACE)

    def judge(
        self,
        options: GpuCheck,
        context: StageContext,
        planned: Sequence[Cell],
        records: Sequence[Mapping[str, Any]],
    ) -> StepResult:
        """Return every cell, and in ``detail`` each GPU beside what it should reach, and findings by name."""
        result = super().judge(options, context, planned, records)
        rows = [row for cell in result.cells if cell.state is State.VERIFIED for row in _rows(cell, result.environment)]
        found = [*result.detail.get("findings", ()), *_findings(rows, options)]
        return result.model_copy(update={"detail": {**result.detail, "gpus": rows, "findings": found}})

    def tables(self, result: StepResult) -> tuple[ResultTable, ...]:
        """Return each GPU beside what it should reach."""
        rows = tuple(
            (
                row["test"],
                f"GPU {row['gpu']}",
                row["model"],
                row["bandwidth"],
                row["expected"],
                f"{row['bandwidth'] / row['expected']:.0%}" if row["expected"] else None,
            )
            for row in result.detail.get("gpus") or ()
        )
        if not rows:
            return ()
        note = "Expected: memory by the vendor's data sheet, pinned copies by the PCIe link's generation and width."
        return (ResultTable("Each GPU", ("Test", "GPU", "Model", "GB/s", "Expected", "Share"), rows, note),)


def data_sheet(name: str) -> float | None:
    """Return the memory bandwidth of a GPU's data sheet in GB/s; None where this version does not know it."""
    return next((float(rate) for words, rate in DATA_SHEET.items() if re.search(rf"\b{words}\b", name)), None)


def _rows(cell: Cell, environment: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a document a GPU of one test: index, model, bandwidth and expected (GB/s; None where not known)."""
    names = list(environment.get("gpu_names") or ())
    links = list(environment.get("link_limits") or ())
    rows = []
    for index, model in enumerate(names):
        found = cell.figure(f"bandwidth.gpu{index}")
        if found is None:
            continue
        expected = None
        if cell.id in _ON_DEVICE:
            expected = data_sheet(str(model))
        elif cell.id.endswith("pinned") and index < len(links):
            expected = links[index]
            # More than PCIe can carry: the GPU is attached by another link (NVLink-C2C), and nothing is known of it.
            expected = None if expected is not None and found.value > expected else expected
        rows.append(
            {"test": cell.id, "gpu": index, "model": str(model), "bandwidth": found.value, "expected": expected}
        )
    return rows


def _findings(rows: Sequence[Mapping[str, Any]], options: GpuCheck) -> list[str]:
    """Return a sentence for each GPU that is slower than the others of its model, or than it should be."""
    found = []
    for row in rows:
        named, rate = f"GPU {row['gpu']} ({row['model']})", row["bandwidth"]
        others = [
            each["bandwidth"]
            for each in rows
            if each is not row and (each["test"], each["model"]) == (row["test"], row["model"])
        ]
        if others and rate < (1 - options.tolerance) * median(others):
            share = 1 - rate / median(others)
            found.append(
                f"{named}: {row['test']} at {rate:.0f} GB/s is {share:.0%} slower than the median of the host's others "
                f"({median(others):.0f} GB/s)"
            )
        if row["expected"] and rate < options.expected * row["expected"]:
            what = "its data sheet" if row["test"] in _ON_DEVICE else "its PCIe link"
            found.append(
                f"{named}: {row['test']} at {rate:.0f} GB/s is {rate / row['expected']:.0%} of {what} "
                f"({row['expected']:.0f} GB/s)"
            )
    return found

"""The words in which `opsctl bench` takes a stage's options on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from opsctl.errors import UnfitError
from opsctl.quantities import parse_duration


def has_gpu() -> bool:
    """Return whether this machine seems to have an NVIDIA GPU, without importing torch."""
    return shutil.which("nvidia-smi") is not None


def parse_shapes(texts: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return N × K pairs from ``7168x1024``. Raises UnfitError."""
    shapes = []
    for text in texts:
        n, mark, k = text.lower().replace("×", "x").partition("x")
        if not (mark and n.strip().isdecimal() and k.strip().isdecimal()):
            raise UnfitError(f"--shape: {text!r} is no shape", wanted="NxK, such as 7168x1024")
        shapes.append((int(n), int(k)))
    return tuple(shapes)


def parse_sweep(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return axes from ``NCCL_PROTO=default,LL``. Raises UnfitError."""
    axes = {}
    for text in texts:
        name, mark, values = text.partition("=")
        if not (mark and name and values):
            raise UnfitError(f"--sweep: {text!r} is no axis", wanted="NAME=VALUE,VALUE, such as NCCL_PROTO=default,LL")
        axes[name] = tuple(value for value in values.split(",") if value)
    return axes


def parse_slo(texts: Sequence[str]) -> dict[str, float]:
    """Return limits in seconds from ``ttft=2s``. Raises UnfitError."""
    limits = {}
    for text in texts:
        name, _, limit = text.partition("=")
        try:
            limits[name] = parse_duration(limit)
        except ValueError as error:
            raise UnfitError(f"--slo: {text!r} is no limit", wanted="NAME=DURATION, such as ttft=2s") from error
    return limits

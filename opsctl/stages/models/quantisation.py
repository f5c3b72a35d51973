"""Which weights of a model are quantised, and how, as its config.json says. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from opsctl.stages.models.shapes import BF16

Format = Callable[[str], str]
"""A module's name, such as ``model.layers.5.mlp.experts.0.gate_proj`` → its weight format, such as ``w4a16-g32``."""


def _group(bits: int, group: int) -> str:
    return f"w{bits}a16-g{group}"


def _ignored(patterns: list[str], module: str) -> bool:
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
        elif module == pattern or module.endswith(f".{pattern}") or f".{pattern}." in f".{module}.":
            return True
    return False


def _compressed_tensors(config: Mapping[str, Any]) -> tuple[str, list[str]]:
    groups = list(dict(config.get("config_groups") or {}).values())
    if len(groups) != 1:
        msg = f"{len(groups)} quantisation groups: only models with one are understood"
        raise ValueError(msg)
    weights = dict(groups[0].get("weights") or {})
    bits, kind = weights.get("num_bits"), weights.get("type")
    activations = groups[0].get("input_activations")
    ignore = [str(pattern) for pattern in config.get("ignore") or ()]
    if kind == "float" and bits == 8:
        return "fp8", ignore
    if kind == "int" and activations is None and bits in {4, 8}:
        return _group(bits, int(weights.get("group_size") or -1)), ignore
    msg = f"weights of {bits} bits of type {kind}{' with quantised activations' if activations else ''}"
    raise ValueError(msg)


def weight_format(config: Mapping[str, Any]) -> Format:
    """Return the function from a module's name to its format.

    Understands compressed-tensors (one group), gptq, awq and fp8; raises ValueError with what it saw otherwise.
    """
    quantised = config.get("quantization_config")
    if not quantised:
        return lambda _module: BF16
    method = str(quantised.get("quant_method", "")).replace("_", "-")
    if method == "compressed-tensors":
        form, ignore = _compressed_tensors(quantised)
    elif method in {"gptq", "gptq-marlin", "awq", "awq-marlin"}:
        form = _group(int(quantised["bits"]), int(quantised.get("group_size", -1)))
        ignore = [str(name) for name in quantised.get("modules_to_not_convert") or ()]
        # Neither method touches lm_head or the router unless it says so.
        ignore += ["lm_head", r"re:.*\.gate$"]
    elif method == "fp8":
        form = "fp8"
        ignore = [
            str(name) for name in quantised.get("ignored_layers") or quantised.get("modules_to_not_convert") or ()
        ]
        ignore += ["lm_head", r"re:.*\.gate$"]
    else:
        msg = f"quantisation {method or 'without quant_method'} is not understood"
        raise ValueError(msg)
    return lambda module: BF16 if _ignored(ignore, module) else form

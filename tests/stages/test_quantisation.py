from typing import Any

import pytest

from opsctl.stages.models.quantisation import weight_format

LAYER = "model.layers.5."


def form(quantisation: dict[str, Any] | None, module: str) -> str:
    config = {"quantization_config": quantisation} if quantisation else {}
    return weight_format(config)(module)


def group(bits: int, size: int, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "group_size": size, "type": "int", **more}
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


@pytest.mark.parametrize(
    ("quantisation", "module", "expected"),
    [
        (None, "mlp.gate_proj", "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "mlp.gate_proj", "w4a16-g128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "mlp.gate_proj", "w4a16-g-1"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "lm_head", "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "mlp.gate", "bf16"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": ["o_proj"]}, "o_proj", "bf16"),
        ({"quant_method": "fp8"}, "mlp.gate_proj", "fp8"),
        ({"quant_method": "fp8", "ignored_layers": ["model.layers.5.mlp.gate_proj"]}, "mlp.gate_proj", "bf16"),
        ({"quant_method": "compressed-tensors", **group(4, 32)}, "mlp.experts.0.gate_proj", "w4a16-g32"),
        ({"quant_method": "compressed-tensors", **group(8, 128)}, "mlp.gate_proj", "w8a16-g128"),
        ({"quant_method": "compressed-tensors", **group(8, 0, type="float")}, "mlp.gate_proj", "fp8"),
        (
            {"quant_method": "compressed-tensors", **group(4, 32), "ignore": ["re:.*self_attn.*", "lm_head"]},
            "self_attn.q_proj",
            "bf16",
        ),
    ],
)
def test_formats(quantisation: dict[str, Any] | None, module: str, expected: str) -> None:
    name = module if module == "lm_head" else LAYER + module
    assert form(quantisation, name) == expected


@pytest.mark.parametrize(
    ("quantisation", "said"),
    [
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "0 quantisation groups"),
        ({"quant_method": "compressed-tensors", **group(3, 32)}, "3 bits"),
        ({"bits": 4}, "without quant_method"),
    ],
)
def test_what_is_not_understood_is_said(quantisation: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        form(quantisation, "x")

"""Kimi-K2.5 INT4, built in: its published text configuration.

hidden 7168, 61 layers of which the first is dense, 384 routed experts with top-8 and one shared. compressed-tensors
quantises the routed experts only (4-bit symmetric, groups of 32); attention, shared experts, the dense MLP and
lm_head stay BF16, so a Marlin measurement "at attention's shapes" would be of nothing that this model runs.
"""

from __future__ import annotations

from typing import Any, Final

KIMI_K25: Final[dict[str, Any]] = {
    "model_type": "kimi_k2",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 1,
    "n_routed_experts": 384,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_attention_heads": 64,
    "vocab_size": 163840,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "group_size": 32, "symmetric": True, "type": "int", "strategy": "group"},
            }
        },
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    },
}

#!/usr/bin/env python3
"""Write one rank's share of Kimi-K2.5 INT4 at TP=8 as a model of its own for one GPU: config and a byte tokenizer.

kimi_shard.py FOLDER [LAYERS]. There are no weights: vLLM fills them with ``--load-format dummy``. Widths that tensor
parallelism divides are divided by 8 (heads, expert and dense intermediate sizes, vocabulary); the others stay as they
are in the model. Needs the packages tokenizers and transformers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

SHARE = 8
WEIGHTS = {
    "num_bits": 4,
    "type": "int",
    "symmetric": True,
    "strategy": "group",
    "group_size": 32,
    "dynamic": False,
    "actorder": None,
    "observer": "minmax",
    "observer_kwargs": {},
    "block_structure": None,
}
QUANTISATION = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": WEIGHTS,
        }
    },
}


def config(layers: int, bos: int, eos: int) -> dict[str, Any]:
    """Return config.json of the share, with that many layers (61 is the whole model)."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "hidden_size": 7168,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "intermediate_size": 18432 // SHARE,
        "moe_intermediate_size": 2048 // SHARE,
        "n_routed_experts": 384,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "num_attention_heads": 64 // SHARE,
        "num_key_value_heads": 64 // SHARE,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163840 // SHARE,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "num_nextn_predict_layers": 0,
        "ep_size": 1,
        "quantization_config": QUANTISATION,
    }


def write_tokenizer(folder: Path) -> tuple[int, int]:
    """Write a tokenizer of single bytes into the folder; return the ids of its begin and end marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - only where the server runs
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")  # noqa: S106
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    return vocabulary["<s>"], vocabulary["</s>"]


def main(folder: Path, layers: int) -> None:
    """Write the model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    bos, eos = write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config(layers, bos, eos), indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": bos, "eos_token_id": eos}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 61)

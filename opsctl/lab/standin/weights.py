"""Weights for the torch engine: a random Llama in real safetensors shards, named and indexed as a real one is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "eos_token_id": 257,
}


def shapes(config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return every tensor's name and shape, [out, in] as torch's linear has it."""
    hidden, head = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {
            f"{at}.input_layernorm.weight": (hidden,),
            f"{at}.self_attn.q_proj.weight": (queries, hidden),
            f"{at}.self_attn.k_proj.weight": (keys, hidden),
            f"{at}.self_attn.v_proj.weight": (keys, hidden),
            f"{at}.self_attn.o_proj.weight": (hidden, queries),
            f"{at}.post_attention_layernorm.weight": (hidden,),
            f"{at}.mlp.gate_proj.weight": (config["intermediate_size"], hidden),
            f"{at}.mlp.up_proj.weight": (config["intermediate_size"], hidden),
            f"{at}.mlp.down_proj.weight": (hidden, config["intermediate_size"]),
        }
    return found | {"model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}


def make_model(folder: Path, *, shards: int = 6, seed: int = 0) -> None:
    """Write config.json, the shards and their index. The same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    config = {name: value for name, value in CONFIG.items() if isinstance(value, int)}
    per_shard: list[dict[str, np.ndarray]] = [{} for _ in range(shards)]
    where: dict[str, str] = {}
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    for number, (name, shape) in enumerate(shapes(config).items()):
        norm = len(shape) == 1
        tensor = np.ones(shape) if norm else chance.standard_normal(shape) / np.sqrt(shape[-1])
        per_shard[number % shards][name] = tensor.astype(np.float32)
        where[name] = names[number % shards]
    for name, tensors in zip(names, per_shard, strict=True):
        save_file(tensors, folder / name, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensors in per_shard for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=1))

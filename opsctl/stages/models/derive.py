"""From a model's config.json to the shapes that one rank runs. Pure.

Understood: dense and mixture-of-experts decoders of the Llama, Qwen, Mixtral and DeepSeek-V3 (MLA) kind, told apart
by the keys that they have, not by their names. Sharding is vLLM's: columns for the first product of a pair, rows
for the second, key and value heads replicated where there are fewer than ranks, vocabulary padded to 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.stages.models.quantisation import Format, weight_format
from opsctl.stages.models.shapes import CollectivePlan, DenseOp, ExpertsOp, ModelShapes

_ACTIVATION_BYTES = 2  # BF16
_VOCABULARY_PADDING = 64


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part: multimodal models nest it; quantisation may stand outside."""
    inner = config.get("text_config") or config.get("llm_config")
    if not isinstance(inner, Mapping):
        return config
    outside = config.get("quantization_config")
    return {**inner, **({"quantization_config": outside} if outside and "quantization_config" not in inner else {})}


class _Config:
    """Typed access with errors that name the key."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.raw = config

    def integer(self, *names: str, default: int | None = None) -> int:
        for name in names:
            value = self.raw.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        if default is None:
            msg = f"config.json has no {' or '.join(names)}"
            raise ValueError(msg)
        return default


def _split(what: str, size: int, ways: int) -> int:
    if size % ways:
        msg = f"{what} of {size} cannot be split over {ways} ranks"
        raise ValueError(msg)
    return size // ways


def _attention(c: _Config, tensor_parallel: int, form: Format, layers: int) -> list[DenseOp]:
    hidden = c.integer("hidden_size")
    heads = c.integer("num_attention_heads")
    local = _split("attention heads", heads, tensor_parallel)
    prefix = f"model.layers.{layers - 1}.self_attn"
    if "kv_lora_rank" in c.raw:
        return _latent_attention(c, local, form, layers, prefix)
    key_value = c.integer("num_key_value_heads", default=heads)
    head = c.integer("head_dim", default=hidden // heads)
    local_key_value = max(1, key_value // tensor_parallel)
    qkv = (local + 2 * local_key_value) * head
    return [
        DenseOp("qkv", qkv, hidden, form(f"{prefix}.q_proj"), layers),
        DenseOp("o_proj", hidden, local * head, form(f"{prefix}.o_proj"), layers),
    ]


def _latent_attention(c: _Config, local: int, form: Format, layers: int, prefix: str) -> list[DenseOp]:
    """Multi-head latent attention; at decode kv_b is absorbed into two products, one a head."""
    hidden, latent = c.integer("hidden_size"), c.integer("kv_lora_rank")
    nope, rope, value = c.integer("qk_nope_head_dim"), c.integer("qk_rope_head_dim"), c.integer("v_head_dim")
    query = c.raw.get("q_lora_rank")
    a_form = form(f"{prefix}.kv_a_proj_with_mqa")
    if query:
        ops = [
            DenseOp("fused_qkv_a", query + latent + rope, hidden, a_form, layers, note="replicated"),
            DenseOp("q_b", local * (nope + rope), query, form(f"{prefix}.q_b_proj"), layers),
        ]
    else:
        ops = [
            DenseOp("q_proj", local * (nope + rope), hidden, form(f"{prefix}.q_proj"), layers),
            DenseOp("kv_a", latent + rope, hidden, a_form, layers, note="replicated"),
        ]
    kv_b = form(f"{prefix}.kv_b_proj")
    return [
        *ops,
        DenseOp("kv_b", local * (nope + value), latent, kv_b, 0, note="prefill only: absorbed at decode"),
        # vLLM dequantises kv_b for the absorbed products, so these are BF16 whatever its format.
        DenseOp("q_absorb", latent, nope, calls=layers, batch=local, note="kv_b absorbed, one product a head"),
        DenseOp("v_up", value, latent, calls=layers, batch=local, note="kv_b absorbed, one product a head"),
        DenseOp("o_proj", hidden, local * value, form(f"{prefix}.o_proj"), layers),
    ]


def moe_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the indices of the layers with routed experts, in the several spellings that models use."""
    c = _Config(config)
    layers = c.integer("num_hidden_layers")
    if not any(config.get(name) for name in ("n_routed_experts", "num_local_experts", "num_experts")):
        return ()
    first = c.integer("first_k_dense_replace", default=0)
    every = c.integer("moe_layer_freq", default=1) if "n_routed_experts" in config else 1
    sparse = c.integer("decoder_sparse_step", default=1)
    dense = {int(layer) for layer in config.get("mlp_only_layers") or ()}
    return tuple(
        layer
        for layer in range(layers)
        if layer >= first and layer % every == 0 and (layer + 1) % sparse == 0 and layer not in dense
    )


def _mlp(name: str, local: int, c: _Config, *, form: Format, module: str, calls: int) -> list[DenseOp]:
    hidden = c.integer("hidden_size")
    return [
        DenseOp(f"{name}gate_up", 2 * local, hidden, form(f"{module}.gate_proj"), calls),
        DenseOp(f"{name}down", hidden, local, form(f"{module}.down_proj"), calls),
    ]


def _experts(
    c: _Config, tensor_parallel: int, expert_parallel: int, form: Format, layers: tuple[int, ...]
) -> list[Any]:
    hidden = c.integer("hidden_size")
    experts = c.integer("n_routed_experts", "num_local_experts", "num_experts")
    top_k = c.integer("num_experts_per_tok", "top_k")
    width = c.integer("moe_intermediate_size", default=c.integer("intermediate_size"))
    module = f"model.layers.{layers[-1]}.mlp"
    # The router is never quantised: in the models it is no Linear, and vLLM gives it no quantisation.
    ops: list[Any] = [DenseOp("router", experts, hidden, calls=len(layers), note="replicated")]
    shared = c.integer("shared_expert_intermediate_size", default=width * c.integer("n_shared_experts", default=0))
    if shared:
        named = "shared_experts" if c.raw.get("n_shared_experts") else "shared_expert"
        share = _split("the shared experts' width", shared, tensor_parallel)
        ops += _mlp("shared_", share, c, form=form, module=f"{module}.{named}", calls=len(layers))
    # Expert parallel splits whole experts; what remains of tensor parallel splits each expert's width.
    local = _split("an expert's width", width, max(1, tensor_parallel // expert_parallel))
    routed = form(f"{module}.experts.0.gate_proj")
    one = "one expert alone, latency-bound: part of the row experts"
    return [
        *ops,
        DenseOp("w13", 2 * local, hidden, routed, 0, note=one),
        DenseOp("w2", hidden, local, routed, 0, note=one),
        ExpertsOp(
            "experts",
            experts=_split("experts", experts, expert_parallel),
            all_experts=experts,
            top_k=top_k,
            hidden=hidden,
            intermediate=local,
            dtype=routed,
            calls=len(layers),
        ),
    ]


def _collectives(c: _Config, tensor_parallel: int, sparse: int, local_vocabulary: int) -> tuple[CollectivePlan, ...]:
    """One all-reduce for the embedding and two a layer (shared and routed experts are summed first), one all-gather."""
    if tensor_parallel == 1:
        return ()
    hidden, layers = c.integer("hidden_size"), c.integer("num_hidden_layers")
    message = hidden * _ACTIVATION_BYTES
    logits = local_vocabulary * tensor_parallel * _ACTIVATION_BYTES
    what = f"embedding 1, o_proj {layers}, dense MLP {layers - sparse}, experts {sparse}"
    return (
        CollectivePlan("all_reduce", 1 + 2 * layers, message, what),
        CollectivePlan("all_gather", 1, logits, "logits"),
    )


def derive(config: Mapping[str, Any], *, name: str, tensor_parallel: int = 1, expert_parallel: int = 1) -> ModelShapes:
    """Return what one rank runs in a decode step.

    Raises ValueError with what is missing, not understood, or cannot be split that way.
    """
    text = text_config(config)
    c = _Config(text)
    form = weight_format(text)
    layers, hidden = c.integer("num_hidden_layers"), c.integer("hidden_size")
    sparse = moe_layers(text)
    if expert_parallel > 1 and not sparse:
        msg = f"{name} has no experts to split over {expert_parallel} ranks"
        raise ValueError(msg)
    if tensor_parallel % expert_parallel and expert_parallel % tensor_parallel:
        msg = f"tensor parallel {tensor_parallel} and expert parallel {expert_parallel} do not divide one another"
        raise ValueError(msg)
    ops: list[DenseOp | ExpertsOp] = [*_attention(c, tensor_parallel, form, layers)]
    dense = [layer for layer in range(layers) if layer not in sparse]
    if dense:
        width = _split("the MLP's width", c.integer("intermediate_size"), tensor_parallel)
        ops += _mlp("mlp_", width, c, form=form, module=f"model.layers.{dense[0]}.mlp", calls=len(dense))
    if sparse:
        ops += _experts(c, tensor_parallel, expert_parallel, form, sparse)
    padded = -(-c.integer("vocab_size") // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    vocabulary = _split("the padded vocabulary", padded, tensor_parallel)
    ops.append(DenseOp("lm_head", vocabulary, hidden, form("lm_head")))
    return ModelShapes(
        name=name,
        tensor_parallel=tensor_parallel,
        expert_parallel=expert_parallel,
        hidden=hidden,
        layers=layers,
        ops=tuple(ops),
        collectives=_collectives(c, tensor_parallel, len(sparse), vocabulary),
        moe_layers=len(sparse),
        top_k=c.integer("num_experts_per_tok", "top_k", default=0),
    )

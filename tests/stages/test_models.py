"""Shapes against what is published of the models, and against what a real trace showed."""

from typing import Any

import pytest

from opsctl.stages.models import KIMI_K25, DenseOp, ExpertsOp, ModelShapes, derive, experts_hit
from opsctl.stages.models.derive import moe_layers, text_config
from opsctl.stages.models.shapes import bytes_per_weight

LLAMA_70B = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}
MIXTRAL = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
}
QWEN_MOE = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
QWEN2_MOE = {**QWEN_MOE, "shared_expert_intermediate_size": 20480, "mlp_only_layers": [0, 1], "decoder_sparse_step": 2}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "intermediate_size": 18432,
    "moe_layer_freq": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_attention_heads": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
TINY = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1024,
    "vocab_size": 258,
}


def dense(shapes: ModelShapes, name: str) -> tuple[int, int]:
    op = shapes.op(name)
    assert isinstance(op, DenseOp)
    return op.n, op.k


def experts(shapes: ModelShapes) -> ExpertsOp:
    op = shapes.op("experts")
    assert isinstance(op, ExpertsOp)
    return op


@pytest.fixture(scope="module")
def kimi() -> ModelShapes:
    return derive(KIMI_K25, name="kimi-k2.5", tensor_parallel=8)


@pytest.mark.parametrize(
    ("name", "n", "k", "megabytes"),
    [
        ("fused_qkv_a", 2112, 7168, 30.3),
        ("q_b", 1536, 1536, 4.7),
        ("kv_b", 2048, 512, 2.1),
        ("o_proj", 7168, 1024, 14.7),
        ("mlp_gate_up", 4608, 7168, 66.1),
        ("mlp_down", 7168, 2304, 33.0),
        ("router", 384, 7168, 5.5),
        ("shared_gate_up", 512, 7168, 7.3),
        ("shared_down", 7168, 256, 3.7),
        ("w13", 512, 7168, 2.06),
        ("w2", 7168, 256, 1.03),
        ("lm_head", 20480, 7168, 293.6),
    ],
)
def test_kimi_at_tensor_parallel_8(kimi: ModelShapes, name: str, n: int, k: int, megabytes: float) -> None:
    op = kimi.op(name)
    assert isinstance(op, DenseOp)
    assert (op.n, op.k) == (n, k)
    assert op.weight_bytes / 1e6 == pytest.approx(megabytes, rel=0.02)


def test_kimi_quantises_routed_experts_only(kimi: ModelShapes) -> None:
    assert {op.name for op in kimi.ops if op.dtype != "bf16"} == {"w13", "w2", "experts"}
    assert experts(kimi).dtype == "w4a16-g32"
    assert bytes_per_weight("w4a16-g32") == 0.5625
    assert experts(kimi).expert_bytes / 1e6 == pytest.approx(3.10, abs=0.01)


def test_kimis_bytes_a_step(kimi: ModelShapes) -> None:
    assert kimi.weight_bytes(1) / 1e9 == pytest.approx(6.0, abs=0.05)
    assert kimi.weight_bytes(64) / 1e9 == pytest.approx(57.3, abs=0.1)


def test_kimis_collectives(kimi: ModelShapes) -> None:
    counted = {plan.op: (plan.calls, plan.bytes_per_token) for plan in kimi.collectives}
    assert counted == {"all_reduce": (123, 14336), "all_gather": (1, 163840 * 2)}


def test_a_real_trace_of_a_small_llama_had_nine_all_reduces_and_one_all_gather() -> None:
    counted = {plan.op: plan.calls for plan in derive(TINY, name="tiny", tensor_parallel=2).collectives}
    assert counted == {"all_reduce": 9, "all_gather": 1}


def test_one_rank_has_no_collectives() -> None:
    assert derive(TINY, name="tiny").collectives == ()


def test_llama_70b() -> None:
    shapes = derive(LLAMA_70B, name="llama", tensor_parallel=8)
    assert dense(shapes, "qkv") == ((8 + 2) * 128, 8192)
    assert dense(shapes, "o_proj") == (8192, 1024)
    assert dense(shapes, "mlp_gate_up") == (7168, 8192)
    assert dense(shapes, "mlp_down") == (8192, 3584)
    assert dense(shapes, "lm_head") == (16032, 8192)
    # 70.6 billion parameters less the embedding, in BF16, over 8 ranks.
    assert shapes.weight_bytes(1) * 8 / 2 == pytest.approx(70.55e9 - 128256 * 8192, rel=0.005)


def test_key_value_heads_are_replicated_where_there_are_fewer_than_ranks() -> None:
    assert dense(derive(LLAMA_70B, name="llama", tensor_parallel=16), "qkv") == ((4 + 2) * 128, 8192)


def test_mixtral() -> None:
    shapes = derive(MIXTRAL, name="mixtral", tensor_parallel=2)
    assert (experts(shapes).experts, experts(shapes).top_k, experts(shapes).intermediate) == (8, 2, 7168)
    assert "mlp_gate_up" not in shapes.names
    assert "shared_gate_up" not in shapes.names
    assert shapes.moe_layers == 32


def test_qwen_moe() -> None:
    shapes = derive(QWEN_MOE, name="qwen", tensor_parallel=4)
    assert (experts(shapes).experts, experts(shapes).intermediate, experts(shapes).calls) == (128, 192, 48)
    assert dense(shapes, "w13") == (384, 2048)


def test_qwen2_moe_has_shared_and_dense_layers() -> None:
    shapes = derive(QWEN2_MOE, name="qwen", tensor_parallel=4)
    assert moe_layers(QWEN2_MOE) == tuple(range(3, 48, 2))
    assert dense(shapes, "shared_gate_up") == (10240, 2048)
    assert shapes.op("mlp_gate_up").calls == 48 - shapes.moe_layers


def test_deepseek_v3() -> None:
    shapes = derive(DEEPSEEK_V3, name="v3", tensor_parallel=8)
    assert dense(shapes, "q_b") == (16 * 192, 1536)
    assert (experts(shapes).experts, experts(shapes).dtype) == (256, "fp8")
    assert (shapes.op("router").dtype, shapes.op("lm_head").dtype) == ("bf16", "bf16")
    assert (shapes.op("mlp_down").calls, shapes.op("experts").calls) == (3, 58)
    # Its paper says 37 billion activated parameters.
    whole = derive(DEEPSEEK_V3, name="v3")
    assert sum(op.flops(1) * op.calls for op in whole.ops) / 2 == pytest.approx(37e9, rel=0.05)


def test_expert_parallel_splits_whole_experts(kimi: ModelShapes) -> None:
    split = experts(derive(KIMI_K25, name="kimi", tensor_parallel=8, expert_parallel=8))
    assert (split.experts, split.all_experts, split.intermediate) == (48, 384, 2048)
    # The same weights a rank, and the same expected reads of a big batch.
    assert split.expert_bytes * split.experts == experts(kimi).expert_bytes * 384
    assert split.hit(64) == pytest.approx(experts(kimi).hit(64) / 8)


@pytest.mark.parametrize(("tokens", "hit"), [(1, 8.0), (8, 59.5), (64, 284.2)])
def test_experts_hit(tokens: int, hit: float) -> None:
    assert experts_hit(384, 8, tokens) == pytest.approx(hit, abs=0.2)


def test_multimodal_models_nest_it() -> None:
    nested = {"text_config": TINY, "vision_config": {}, "quantization_config": {"quant_method": "fp8"}}
    assert text_config(nested)["quantization_config"]["quant_method"] == "fp8"
    assert derive(nested, name="vl").op("qkv").dtype == "fp8"


@pytest.mark.parametrize(
    ("changes", "ranks", "said"),
    [
        ({"hidden_size": None}, 1, "no hidden_size"),
        ({"num_hidden_layers": "4"}, 1, "no num_hidden_layers"),
        ({}, 3, "attention heads of 8 cannot be split over 3 ranks"),
        ({"quantization_config": {"quant_method": "bitnet"}}, 1, "bitnet is not understood"),
    ],
)
def test_what_cannot_be_derived_says_why(changes: dict[str, Any], ranks: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        derive({**TINY, **changes}, name="tiny", tensor_parallel=ranks)


def test_experts_over_ranks_of_a_dense_model() -> None:
    with pytest.raises(ValueError, match="no experts"):
        derive(TINY, name="tiny", tensor_parallel=2, expert_parallel=2)

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from opsctl.errors import TraceError
from opsctl.trace.categories import default_categories, read_table

NAMES = {
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
        "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>()",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<3>()",
        "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<>>()",
        "void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>()",
        "void multimem_all_reduce_kernel<c10::BFloat16, 16>()",
        "gloo:all_reduce",
        "c10d::allreduce_",
        "_C::shm_gather",
        "mscclpp_allreduce7",
    ],
    "router": [
        "void vllm::moe::topkGatingSoftmax<8, 384, 4, 16, 32, int>(float const*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*)",
        "void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>()",
        "void vllm::moe::grouped_topk_fused_kernel<float>()",
    ],
    "moe-gemm": [
        "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 128, 1, 8, 8, true>()",
        "fused_moe_kernel_gptq_awq",
        "fused_moe_kernel",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<>>>",
        "void deep_gemm::sm90_m_grouped_fp8_gemm_nt_contiguous<>",
    ],
    "dense-gemm": [
        "_C::weight_packed_linear",
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
        "void marlin::Marlin<__nv_bfloat16, 1125899906909960l>()",
        "ampere_bf16_s16816gemm_bf16_64x64_ldg8_f2f_stages_64x5_tn",
        "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>()",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x16x256",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16>()",
        "aten::mm",
    ],
    "attention": [
        "void flash::flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576>>()",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>()",
        "fmhaSm100aKernel_QkvBfloat16OBfloat16H576PagedKv",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<>()",
        "_fwd_grouped_kernel_stage1",
        "kernel_unified_attention_2d",
        "void vllm::paged_attention_v1_kernel<>()",
        "void vllm::concat_and_cache_mla_kernel<>()",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>()",
        "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x128",
        "vllm::unified_attention_with_output",
    ],
    "norm": [
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>()",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>()",
        "triton_red_fused_add_rms_norm_0",
    ],
    "quantise": [
        "void vllm::scaled_fp8_quant_kernel_strided<>()",
        "_per_token_group_quant_8bit",
        "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda, LoadWithCast<1>, StoreWithCast<1>>()",
    ],
    "activation": [
        "void vllm::act_and_mul_kernel<c10::BFloat16, &silu_kernel>()",
        "void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::silu_kernel>()",
    ],
    "sampling": [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>()",
        "void (anonymous namespace)::cunn_SoftMaxForward<4, float, float, float>()",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>()",
        "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4>()",
    ],
    "copy": [
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<>()",
        "void at::native::vectorized_gather_kernel<16, long>()",
        "aten::_to_copy",
        "void at::native::vectorized_elementwise_kernel<2, at::native::FillFunctor<long>>()",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>>()",
        "triton_poi_fused_add_0",
    ],
    "convolution": [
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>()",
        "miopenSp3AsmConv_v30_3_1_gfx9_fp32_f3x2_stride1",
        "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc",
    ],
    "optimizer": ["void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>()"],
    "other": ["my_own_kernel"],
}


@pytest.mark.parametrize(("category", "name"), [(key, name) for key, names in NAMES.items() for name in names])
def test_real_names_fall_where_they_belong(category: str, name: str) -> None:
    assert default_categories().category("kernel", name) == category


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(args)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(args)", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(args)", "send_recv"),
        ("ncclDevKernel_Broadcast_RING_LL(args)", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(args)", "reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>()", "all_reduce"),
        ("void quickreduce::allreduce_prototype_twoshot<>()", "all_reduce"),
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:all_gather", "all_gather"),
        ("_C::shm_allreduce", "all_reduce"),
        ("_C::shm_all_gather", "all_gather"),
        ("_C::shm_gather", "gather"),
        ("_C::shm_send_tensor_list", "send_recv"),
        ("void multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 7168>()", "all_to_all"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("c10d::allreduce_", None),
        ("nvjet_sm90", None),
    ],
)
def test_operations_of_collectives(name: str, operation: str | None) -> None:
    assert default_categories().collective("kernel", name) == operation


def test_copies_of_the_device_are_copies_whatever_their_name() -> None:
    assert default_categories().category("gpu_memcpy", "ncclSomething") == "copy"


def test_communication_yields_to_all_others() -> None:
    assert default_categories().order[-2:] == ["other", "communication"]


@pytest.mark.parametrize("file", ["categories.yml", "collectives.yml"])
def test_the_tables_are_yaml_that_says_what_our_small_reader_reads(file: str) -> None:
    text = (resources.files("opsctl.trace") / file).read_text(encoding="utf-8")
    ours = {name: [pattern.pattern for pattern in patterns] for name, patterns in read_table(text, file).items()}
    assert ours == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a:\n  - x\n", 2),
        ("  - 'x'\n", 1),
        ("a:\na:\n", 2),
        ("a:\n  - '('\n", 2),
        ("a: 'x'\n", 1),
        ("a:\n\t- 'x'\n", 2),
    ],
)
def test_anything_beyond_the_subset_is_refused_by_line(text: str, line: int) -> None:
    with pytest.raises(TraceError, match=f"table.yml:{line}: "):
        read_table(text, "table.yml")

"""``tiny_model.py DIR``: write a random Llama with a byte-level tokenizer, small enough for a vLLM on one core a rank.

4 layers, hidden 512, six safetensors shards, so that a load shows progress and a decode step at TP=2 has
1 + 2 x 4 = 9 all-reduces. Run by path with the vLLM environment's Python, which has what it
imports; this project's has not (script/vllm-cpu does it).
"""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # type: ignore[import-not-found]
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # type: ignore[import-not-found]

LAYERS, HIDDEN, HEADS = 4, 512, 8
PADDED_VOCABULARY = 320


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that maps each byte to one token: any text has as many tokens as bytes."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>"]
    plain = Tokenizer(models.BPE(vocab={name: index for index, name in enumerate(names)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="</s>")  # noqa: S106
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


def main(folder: str) -> None:
    """Write tokenizer, configuration and weights to the folder."""
    torch.manual_seed(0)
    tokenizer().save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=PADDED_VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=2048,
        torch_dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="4MB")


if __name__ == "__main__":
    main(sys.argv[1])

"""``tiny_gguf.py FILE``: write a random Llama as GGUF, small enough for llama.cpp on a core.

4 layers, hidden 256, a byte-level tokenizer. Run by path with the llama.cpp environment's Python, which has what it
imports; this project's has not (``script/llama-cpp`` does it).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import gguf  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt

LAYERS, HIDDEN, HEADS, INNER, CONTEXT = 4, 256, 8, 512, 4096


def byte_symbols() -> list[str]:
    """Return the printable symbol of each byte, as GPT-2's tokenizer names them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    symbols = {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [symbols[byte] for byte in range(256)]


def tensors(vocabulary: int, end: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the weights. The end's row of the output is zero, so that greedy decoding never ends a text early."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    output = matrix(vocabulary, HIDDEN)
    output[end] = 0
    yield "token_embd.weight", matrix(vocabulary, HIDDEN)
    yield "output.weight", output
    yield "output_norm.weight", np.ones(HIDDEN, np.float32)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"blk.{layer}.{name}.weight", matrix(HIDDEN, HIDDEN)
        for name, rows, columns in (
            ("ffn_gate", INNER, HIDDEN),
            ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ):
            yield f"blk.{layer}.{name}.weight", matrix(rows, columns)


def main(path: str) -> None:
    """Write configuration, tokenizer and weights to the file."""
    tokens = [*byte_symbols(), "Ġt", "<s>", "</s>"]
    begin, end = len(tokens) - 2, len(tokens) - 1
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 2) + [gguf.TokenType.CONTROL] * 2)
    # llama.cpp refuses a byte-pair vocabulary without merges.
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(begin)
    writer.add_eos_token_id(end)
    for name, values in tensors(len(tokens), end):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])

"""One rank of a tensor-parallel Llama over torch.distributed, small and plain.

A forward pass does what a real one does: 1 all-reduce for the vocabulary-parallel embedding, 2 a layer (after
o_proj and after down_proj), and 1 all-gather of the logits. Prompts and running requests share the pass; attention
looks at each request's own cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from opsctl.lab.standin.executor import Step


@dataclass
class Shape:
    """What config.json says, and this rank's share of it."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    eps: float
    theta: float

    @classmethod
    def read(cls, config: dict[str, Any], world: int) -> Shape:
        """Return this rank's share. Raises ValueError when the heads cannot be split."""
        heads, key_heads, vocabulary = (
            config["num_attention_heads"],
            config["num_key_value_heads"],
            config["vocab_size"],
        )
        if heads % world or key_heads % world or vocabulary % world:
            raise ValueError(
                f"{heads} heads, {key_heads} key heads or {vocabulary} words do not split over {world} ranks"
            )
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads // world,
            key_heads=key_heads // world,
            head=config["head_dim"],
            vocabulary=vocabulary // world,
            eps=config["rms_norm_eps"],
            theta=config["rope_theta"],
        )


COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
"""Tensors of which a rank holds some rows (outputs, words)."""
ROW = ("o_proj", "down_proj")
"""Tensors of which a rank holds some columns (inputs): their product is a part of a sum."""


@dataclass
class _Cache:
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    length: int = 0


class Transformer:
    """The weights of one rank, and its requests' caches."""

    def __init__(self, shape: Shape, rank: int, world: int) -> None:
        self.shape = shape
        self.weights: dict[str, Tensor] = {}
        self._rank = rank
        self._world = world
        self._caches: dict[int, _Cache] = {}

    def take(self, name: str, read: Callable[[int, int, int], Tensor], full: tuple[int, ...]) -> None:
        """Take this rank's part of a tensor; ``read(axis, begin, end)`` reads a slice of it from the shard."""
        kind = name.rsplit(".", 2)[-2]
        axis = 1 if kind in ROW else 0
        if kind in COLUMN or kind in ROW:
            part = full[axis] // self._world
            self.weights[name] = read(axis, self._rank * part, (self._rank + 1) * part)
        else:
            self.weights[name] = read(0, 0, full[0])

    def forward(self, step: Step) -> dict[int, int]:
        """Return each request's next token. Every rank gets the same step and returns the same tokens."""
        with torch.inference_mode():
            return self._forward(step)

    def _forward(self, step: Step) -> dict[int, int]:
        for number in step.finished:
            self._caches.pop(number, None)
        rows = [(number, tokens) for number, tokens in step.prefills]
        rows += [(number, (token,)) for number, token in step.decodes]
        for number, _ in rows:
            self._caches.setdefault(number, _Cache())
        flat = torch.tensor([token for _, tokens in rows for token in tokens])
        position = torch.cat(
            [torch.arange(len(tokens)) + self._caches[number].length for number, tokens in rows],
        )
        state = self._embed(flat % (self.shape.vocabulary * self._world))
        spans = self._spans(rows)
        for layer in range(self.shape.layers):
            state = state + self._attend(layer, state, position, spans)
            state = state + self._feed_forward(layer, state)
        for number, tokens in rows:
            self._caches[number].length += len(tokens)
        last = state[torch.tensor([end - 1 for _, _, end in spans])]
        logits = self._gather(functional.linear(self._norm(last, "model.norm.weight"), self.weights["lm_head.weight"]))
        return {number: int(token) for (number, _), token in zip(rows, logits.argmax(-1).tolist(), strict=True)}

    @staticmethod
    def _spans(rows: list[tuple[int, tuple[int, ...]]]) -> list[tuple[int, int, int]]:
        spans, begin = [], 0
        for number, tokens in rows:
            spans.append((number, begin, begin + len(tokens)))
            begin += len(tokens)
        return spans

    def _embed(self, tokens: Tensor) -> Tensor:
        first = self._rank * self.shape.vocabulary
        local = tokens - first
        mine = (local >= 0) & (local < self.shape.vocabulary)
        state = functional.embedding(
            local.clamp(0, self.shape.vocabulary - 1), self.weights["model.embed_tokens.weight"]
        )
        return self._sum(state * mine.unsqueeze(-1))

    def _attend(self, layer: int, state: Tensor, position: Tensor, spans: list[tuple[int, int, int]]) -> Tensor:
        at, shape = f"model.layers.{layer}", self.shape
        normed = self._norm(state, f"{at}.input_layernorm.weight")
        queries, keys, values = (
            functional.linear(normed, self.weights[f"{at}.self_attn.{name}.weight"]).view(-1, heads, shape.head)
            for name, heads in (("q_proj", shape.heads), ("k_proj", shape.key_heads), ("v_proj", shape.key_heads))
        )
        queries, keys = self._rotate(queries, position), self._rotate(keys, position)
        outputs = []
        for number, begin, end in spans:
            cache = self._caches[number]
            if len(cache.keys) <= layer:
                cache.keys.append(keys[begin:end])
                cache.values.append(values[begin:end])
            else:
                cache.keys[layer] = torch.cat([cache.keys[layer], keys[begin:end]])
                cache.values[layer] = torch.cat([cache.values[layer], values[begin:end]])
            outputs.append(self._scores(queries[begin:end], cache.keys[layer], cache.values[layer]))
        together = torch.cat(outputs).reshape(-1, shape.heads * shape.head)
        return self._sum(functional.linear(together, self.weights[f"{at}.self_attn.o_proj.weight"]))

    def _scores(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        repeat = self.shape.heads // self.shape.key_heads
        attended = functional.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys.repeat_interleave(repeat, 1).transpose(0, 1).unsqueeze(0),
            values.repeat_interleave(repeat, 1).transpose(0, 1).unsqueeze(0),
            is_causal=queries.shape[0] > 1,  # prompts come whole; a running request's one token sees all before it
        )
        return attended.squeeze(0).transpose(0, 1)

    def _rotate(self, states: Tensor, position: Tensor) -> Tensor:
        half = self.shape.head // 2
        frequency = torch.exp(-math.log(self.shape.theta) * torch.arange(half) / half)
        angle = (position.unsqueeze(-1) * frequency).unsqueeze(1)
        first, second = states[..., :half], states[..., half:]
        cosine, sine = angle.cos(), angle.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def _feed_forward(self, layer: int, state: Tensor) -> Tensor:
        at = f"model.layers.{layer}"
        normed = self._norm(state, f"{at}.post_attention_layernorm.weight")
        gate = functional.silu(functional.linear(normed, self.weights[f"{at}.mlp.gate_proj.weight"]))
        up = functional.linear(normed, self.weights[f"{at}.mlp.up_proj.weight"])
        return self._sum(functional.linear(gate * up, self.weights[f"{at}.mlp.down_proj.weight"]))

    def _norm(self, state: Tensor, name: str) -> Tensor:
        return functional.rms_norm(state, (self.shape.hidden,), self.weights[name], self.shape.eps)

    @staticmethod
    def _sum(part: Tensor) -> Tensor:
        part = part.contiguous()
        dist.all_reduce(part)
        return part

    def _gather(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self._world)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)

"""The formulas of `tests.model.formula` for one sentence pair, with all that the views show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

from nmt.config.model import ModelConfig
from tests.model.formula import Formula, Sublayer


class Head(NamedTuple):
    """One head of an attention sublayer: T queries read S keys."""

    query: Tensor  # (T, E)
    key: Tensor  # (S, E)
    value: Tensor  # (S, E)
    products: Tensor  # (T, S)
    weights: Tensor  # (T, S)
    mixed: Tensor  # (T, E)


class Stream(NamedTuple):
    """The residual stream around a sublayer. (T, D)."""

    before: Tensor
    added: Tensor
    after: Tensor


class Watched(Formula):
    """Keeps the heads and the streams of the last pass, by names such as encoder.0.self_attention.

    Also has rotary positions (Su et al. 2021), can read later target tokens, and can set the output
    of one head to 0. Norms and tables of positions are computed by torch in one step.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, weights)
        self.of_heads: dict[str, list[Head]] = {}
        self.streams: dict[str, Stream] = {}
        self.sinusoids: dict[int, Tensor] = {}
        self.is_causal = True
        self.silent: tuple[str, int] | None = None  # Name of a sublayer, and head from 0.

    @override
    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return F.layer_norm(x, x.shape[1:], weight, bias, 1e-5)

    @override
    def sinusoid(self, position: int, dim: int) -> Tensor:
        if position not in self.sinusoids:
            self.sinusoids[position] = super().sinusoid(position, dim)
        return self.sinusoids[position]

    def rotated(self, x: Tensor) -> Tensor:
        """Rotate the features i and i + E / 2 of row p by the angle p / 10000^(2i / E)."""
        half = x.shape[1] // 2
        rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), rates)
        first, second = x[:, :half], x[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)

    @override
    def heads(self, x: Tensor, query: Tensor, name: str, *, causal: bool) -> Tensor:
        config, width = self.config, query.shape[1]
        count, dim = config.num_heads, width // config.num_heads
        groups = config.num_kv_heads or count
        if name.endswith("self_attention"):
            sizes = [width, groups * dim, groups * dim]
            queries, keys, values = self.linear(x, f"{name}.query_key_value").split(sizes, dim=1)
        else:
            queries = self.linear(query, f"{name}.query")
            keys, values = self.linear(x, f"{name}.key_value").chunk(2, dim=1)
        self.of_heads[name] = []
        for head in range(count):
            group = head // (count // groups)
            own, shared = (slice(n * dim, (n + 1) * dim) for n in (head, group))
            q, k, v = queries[:, own], keys[:, shared], values[:, shared]
            if name.endswith("self_attention") and config.positions == "rotary":
                q, k = self.rotated(q), self.rotated(k)
            products = q @ k.T
            scores = products / dim**0.5
            if causal and self.is_causal:
                later = torch.ones_like(scores).triu(1) > 0
                scores = scores.masked_fill(later, -torch.inf)
            weights = scores.softmax(1)
            mixed = weights @ v
            if self.silent == (name, head):
                mixed = torch.zeros_like(mixed)
            self.of_heads[name].append(Head(q, k, v, products, weights, mixed))
        mixed = torch.cat([head.mixed for head in self.of_heads[name]], dim=1)
        return self.linear(mixed, f"{name}.output")

    @override
    def residual(self, x: Tensor, name: str, sublayer: Sublayer) -> Tensor:
        is_pre = self.config.norm_position == "pre"
        added = sublayer(self.norm(x, f"{name}.norm") if is_pre else x)
        total = x + added
        after = total if is_pre else self.norm(total, f"{name}.norm")
        self.streams[name.removesuffix("_residual")] = Stream(x, added, after)
        return after

    def attention(self, kind: str) -> Tensor:
        """Return the weights of the last pass: (layers, H, T, S)."""
        side = "encoder" if kind == "encoder" else "decoder"
        name = "cross_attention" if kind == "cross" else "self_attention"
        layers = range(getattr(self.config, f"{side}_layers"))
        heads = [self.of_heads[f"{side}.{layer}.{name}"] for layer in layers]
        return torch.stack([torch.stack([head.weights for head in layer]) for layer in heads])

    def mean_cross(self) -> Tensor:
        """Return the mean over the heads in the upper half of the decoder's layers: (T, S)."""
        weights = self.attention("cross")
        return weights[len(weights) // 2 :].mean((0, 1))

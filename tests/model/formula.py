"""The Transformer worked out from the papers' formulas: one sentence and one head at a time.

Names are those of the papers; nothing is shared with the model but its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from nmt.config.model import ModelConfig

Sublayer = Callable[[Tensor], Tensor]


class Formula:
    """The Transformer of the paper with the options above, for one sentence pair."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, weights

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def norm(self, x: Tensor, name: str) -> Tensor:
        kind = self.config.norm
        epsilon = self.config.norm_epsilon or (1e-6 if kind == "rms" else 1e-5)
        rows = []
        for a in x:
            mean = 0 if kind == "rms" else a.sum() / len(a)
            variance = ((a - mean) ** 2).sum() / len(a)
            bottom = variance**0.5 + epsilon if kind == "layer-std" else (variance + epsilon) ** 0.5
            rows.append((a - mean) / bottom)
        y = torch.stack(rows)
        if self.config.norm_gain:
            y = y * self.weights[f"{name}.weight"]
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def embed(self, ids: list[int], side: str, table: str) -> Tensor:
        dim = self.weights[table].shape[1]
        rows = []
        for place, token in enumerate(ids):
            row = self.weights[table][token]
            if side == "target" and place == 0 and self.config.decoder_start == "zero":
                row = torch.zeros(dim, dtype=torch.float64)
            if self.config.scale_embeddings:
                row = row * dim**0.5
            position = place + self.config.first_position
            if self.config.positions == "learned":
                row = row + self.weights[f"{side}_embedding.positions.weight"][position]
            elif self.config.positions.startswith("sinusoidal"):
                row = row + self.sinusoid(position, dim)
            rows.append(row)
        return torch.stack(rows)

    def sinusoid(self, position: int, dim: int) -> Tensor:
        row = torch.zeros(dim, dtype=torch.float64)
        for i in range(dim // 2):
            if self.config.positions == "sinusoidal":
                angle, sine, cosine = position / 10_000 ** (2 * i / dim), 2 * i, 2 * i + 1
            elif self.config.positions == "sinusoidal-concatenated":
                angle, sine, cosine = position / 10_000 ** (2 * i / dim), i, dim // 2 + i
            else:
                angle = position / 10_000 ** (i / max(dim // 2 - 1, 1))
                sine, cosine = i, dim // 2 + i
            pair = torch.tensor(angle, dtype=torch.float64)
            row[sine], row[cosine] = pair.sin(), pair.cos()
        return row.float().double()  # tables are float32

    def heads(self, x: Tensor, query: Tensor, name: str, *, causal: bool) -> Tensor:
        """Queries read ``x``: equations 3 and 4 of Shaw et al. (2018) where there are vectors."""
        config, is_self = self.config, name.endswith("self_attention")
        groups, dim = config.num_kv_heads or config.num_heads, query.shape[1] // config.num_heads
        if is_self:
            rows = [config.num_heads * dim, groups * dim, groups * dim]
            projected = self.linear(x, f"{name}.query_key_value").split(rows, dim=1)
        else:
            keys, values = self.linear(x, f"{name}.key_value").chunk(2, dim=1)
            projected = self.linear(query, f"{name}.query"), keys, values
        of_keys, of_values = (self.weights.get(f"{name}.positions.{k}") for k in ("keys", "values"))
        longest, mixed = config.max_relative_distance, []
        for head in range(config.num_heads):
            group = head // (config.num_heads // groups)
            q = projected[0][:, head * dim : (head + 1) * dim]
            k, v = (part[:, group * dim : (group + 1) * dim] for part in projected[1:])
            rows_of_head = []
            for i in range(len(q)):
                read = range(i + 1 if causal else len(k))
                clipped = [max(-longest, min(longest, j - i)) + longest for j in read]
                keys_of_i, values_of_i = k[: len(read)], v[: len(read)]
                if of_keys is not None and of_values is not None:
                    keys_of_i = keys_of_i + of_keys[clipped]
                    values_of_i = values_of_i + of_values[clipped]
                e = keys_of_i @ q[i] / dim**0.5
                alpha = e.exp() / e.exp().sum()
                rows_of_head.append(alpha @ values_of_i)
            mixed.append(torch.stack(rows_of_head))
        return self.linear(torch.cat(mixed, dim=1), f"{name}.output")

    def self_attention(self, name: str, causal: bool) -> Sublayer:
        return lambda x: self.heads(x, x, name, causal=causal)

    def feed_forward(self, x: Tensor, name: str) -> Tensor:
        inner = self.linear(x, f"{name}.inner")
        silu = self.config.activation == "silu"
        inner = inner / (1 + (-inner).exp()) if silu else inner.clamp(min=0)
        return self.linear(inner, f"{name}.outer")

    def residual(self, x: Tensor, name: str, sublayer: Sublayer) -> Tensor:
        if self.config.norm_position == "pre":
            return x + sublayer(self.norm(x, f"{name}.norm"))
        return self.norm(x + sublayer(x), f"{name}.norm")

    def stack(self, x: Tensor, side: str, memory: Tensor | None) -> Tensor:
        for layer in range(getattr(self.config, f"{side}_layers")):
            name, causal = f"{side}.{layer}", memory is not None
            own, cross = f"{name}.self_attention", f"{name}.cross_attention"
            x = self.residual(x, f"{name}.self_residual", self.self_attention(own, causal))
            if memory is not None:
                read = partial(self.heads, memory, name=cross, causal=False)
                x = self.residual(x, f"{name}.cross_residual", read)
            inner = partial(self.feed_forward, name=f"{name}.feed_forward")
            x = self.residual(x, f"{name}.feed_forward_residual", inner)
        return self.norm(x, f"{side}_norm") if self.config.norm_position == "pre" else x

    def logits(self, source: list[int], target: list[int]) -> Tensor:
        tables = {
            "separate": ("source_vectors", "target_vectors", "output_vectors"),
            "decoder-tied": ("source_vectors", "target_vectors", "target_vectors"),
            "inputs-shared": ("source_vectors", "source_vectors", "output_vectors"),
            "tied": ("source_vectors", "source_vectors", "source_vectors"),
        }[self.config.embeddings]
        memory = self.stack(self.embed(source, "source", tables[0]), "encoder", None)
        hidden = self.stack(self.embed(target, "target", tables[1]), "decoder", memory)
        logits = hidden @ self.weights[tables[2]].T
        return logits + self.weights["output_bias"] if self.config.output_bias else logits

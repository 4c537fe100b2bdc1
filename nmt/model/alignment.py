"""Where the decoder looks before it says a token: soft word alignments from a trained model.

Upper layers say it best: Garg et al. (2019), Jointly Learning to Align and Translate, found the
last but one of six. In a model with three decoder layers, trained on Multi30k, the step that
predicts a token looked at its source; that of Chen et al. (2020), which reads it, looked further.

Shapes: B sentences, S source and T target positions, H heads, E width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nmt.model.attention import mean_weights
from nmt.model.blocks import CrossAttention
from nmt.model.layout import Layout
from nmt.model.transformer import Transformer


@torch.inference_mode()
def source_attention(
    model: Transformer, source: Tensor, source_lengths: Tensor, target: Tensor, lengths: Tensor
) -> Tensor:
    """Return how much of each source token the decoder sees before it says each target token.

    Args:
        model: Not training.
        source: Source ids, padded, ending in EOS. (B, S), int64.
        source_lengths: Tokens of each source with EOS. (B,), int64.
        target: BOS and target ids, padded. (B, T), int64.
        lengths: Tokens of each target with BOS. (B,), int64.

    Returns:
        (B, T, S), float32: row t is of the token after ``target[t]``; the mean over the heads of
        the upper half of the layers. Rows sum to 1; those of padding are to be ignored.
    """
    found: list[Tensor] = []

    def look(module: CrossAttention, inputs: tuple[Any, ...]) -> None:
        found.append(_weights(module, *inputs))

    layers = [layer.cross_attention for layer in model.aligning_layers]
    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        source_layout = Layout.from_lengths(source_lengths, source.shape[1])
        target_layout = Layout.from_lengths(lengths, target.shape[1])
        memory = model.encode(source_layout.pack(source), source_layout)
        model.decode(target_layout.pack(target), memory, target_layout, source_layout)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(found).mean(0)


def _weights(
    module: CrossAttention, values: Tensor, memory: Tensor, layouts: tuple[Layout, Layout]
) -> Tensor:
    query_layout, key_layout = layouts
    heads = (module.num_heads, module.head_dim)
    query = query_layout.unpack(module.project_queries(values)).unflatten(-1, heads)
    key = key_layout.unpack(module.project_memory(memory)).unflatten(-1, (2, *heads))[:, :, 0]
    mask = key_layout.mask()[:, None, None, :]
    bias = torch.zeros_like(mask, dtype=torch.float32).masked_fill_(~mask, -torch.inf)
    return mean_weights(query.transpose(1, 2), key.transpose(1, 2), bias)

"""The model section and vocabulary sizes -> a freshly initialised model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from nmt.config.model import ModelConfig
from nmt.model.blocks import CrossAttention, SelfAttention
from nmt.model.layers import FeedForward
from nmt.model.transformer import Transformer


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> Transformer:
    """Build the Transformer on the CPU in float32, from torch's default random generator.

    Raises:
        ValueError: The embeddings are tied, but the vocabularies differ in size.
    """
    if config.embeddings == "tied" and source_vocab_size != target_vocab_size:
        raise ValueError(
            f"tied embeddings need one vocabulary, but the sizes are {source_vocab_size} "
            f"and {target_vocab_size}"
        )
    return Transformer(config, source_vocab_size, target_vocab_size)


def count_parameters(model: Transformer) -> Mapping[str, int]:
    """Count parameters by part: embedding and output, encoder, decoder."""
    sizes = {"embeddings": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        part = name.split("_")[0].split(".")[0]
        sizes[part if part in sizes else "embeddings"] += parameter.numel()
    return sizes


def fused_rows(model: nn.Module) -> Mapping[str, list[int]]:
    """Return, for each weight that holds several matrices one above the other, their rows.

    Weight name -> rows of queries, keys and values; of keys and values; of gates and values.
    """
    fused = {}
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention | CrossAttention):
            shared = [module.num_kv_heads * module.head_dim] * 2
            if isinstance(module, SelfAttention):
                rows = [module.num_heads * module.head_dim, *shared]
                fused[f"{name}.query_key_value.weight"] = rows
            else:
                fused[f"{name}.key_value.weight"] = shared
        elif isinstance(module, FeedForward):
            inner, outer = module.inner.weight, module.outer.weight
            fused[f"{name}.inner.weight"] = [outer.shape[1]] * (len(inner) // outer.shape[1])
    return fused

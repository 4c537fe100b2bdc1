"""A Transformer -> the files of a CTranslate2 model: mostly a renaming of its parameters.

Shapes: V vocabulary, D model width, P positions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt.config.model import ModelConfig
from nmt.errors import ConfigError
from nmt.exchange.ctranslate2_package import import_ctranslate2
from nmt.model.layers import CrossAttention, DecoderLayer, EncoderLayer, FeedForward, SelfAttention
from nmt.model.positions import LearnedPositions, sinusoids
from nmt.model.transformer import Embedding, Transformer
from nmt.text import BOS_ID, EOS_ID, UNK_ID

_EXPRESSED = frozenset({
    "preset", "encoder_layers", "decoder_layers", "model_dim", "ff_dim", "num_heads",
    "num_kv_heads", "decoder_model_dim", "decoder_ff_dim", "norm_position", "norm", "positions",
    "max_positions", "activation", "bias", "embeddings", "scale_embeddings", "output_bias",
    "dropout", "attention_dropout", "activation_dropout", "word_dropout",
})  # fmt: skip
"""Keys of the model section that may have any value. Missing is ``qk_norm``: in cross-attention,
CTranslate2 normalises the queries of all heads together (its ``process_cross_attention``)."""
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swiglu": "SWISH"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CTranslate2Format:
    """What the files hold besides the parameters."""

    source_tokens: Sequence[str]
    """The source vocabulary; no string twice."""
    target_tokens: Sequence[str]
    """The target vocabulary; no string twice."""
    quantization: str
    """Type of the weights, by CTranslate2's name."""
    num_positions: int
    """Rows P of a table of positions that is not learned."""


def check_expressible(config: ModelConfig) -> None:
    """Refuse what CTranslate2 has no counterpart for.

    Raises:
        ConfigError: Names the keys at fault.
    """
    values = config.model_dump()
    faults = [
        f"model.{name} {json.dumps(values[name])}"
        for name, field in ModelConfig.model_fields.items()
        if name not in _EXPRESSED and values[name] != field.default
    ]
    if faults:
        raise ConfigError(
            f"CTranslate2 cannot express {', '.join(faults)}.",
            fix="Export with --to safetensors, or train a model without.",
        )


def write_ctranslate2(folder: Path, model: Transformer, form: CTranslate2Format) -> None:
    """Write ``model`` into ``folder``.

    Raises:
        ConfigError: CTranslate2 is not installed, or cannot express the model.
    """
    check_expressible(model.config)
    specs = import_ctranslate2("ctranslate2.specs")
    spec = specs.TransformerSpec(
        _encoder(specs, model, form.num_positions), _decoder(specs, model, form.num_positions)
    )
    spec.register_source_vocabulary(list(form.source_tokens))
    spec.register_target_vocabulary(list(form.target_tokens))
    spec.config.unk_token = form.target_tokens[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = form.target_tokens[BOS_ID]
    spec.config.eos_token = form.target_tokens[EOS_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=form.quantization)
    spec.save(str(folder))


def _encoder(specs: Any, model: Transformer, num_positions: int) -> Any:
    config = model.config
    shape = _shape(specs, config, config.model_dim)
    spec = specs.TransformerEncoderSpec(config.encoder_layers, **shape)
    spec.embeddings[0].weight = _array(model.source_vectors)
    spec.scale_embeddings = config.scale_embeddings
    _positions(spec, model.source_embedding, config, (num_positions, config.model_dim))
    for target, layer in zip(spec.layer, model.encoder, strict=True):
        assert isinstance(layer, EncoderLayer)
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual.norm)
        _feed_forward(target.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    if config.norm_position == "pre":
        _norm(spec.layer_norm, model.encoder_norm)
    return spec


def _decoder(specs: Any, model: Transformer, num_positions: int) -> Any:
    config = model.config
    shape = _shape(specs, config, config.decoder_dim)
    spec = specs.TransformerDecoderSpec(config.decoder_layers, **shape)
    spec.embeddings.weight = _array(model.target_table)
    spec.scale_embeddings = config.scale_embeddings
    _positions(spec, model.target_embedding, config, (num_positions, config.decoder_dim))
    for target, layer in zip(spec.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        _self_attention(target.self_attention, layer.self_attention, layer.self_residual.norm)
        _cross_attention(target.attention, layer.cross_attention, layer.cross_residual.norm)
        _feed_forward(target.ffn, layer.feed_forward, layer.feed_forward_residual.norm)
    if config.norm_position == "pre":
        _norm(spec.layer_norm, model.decoder_norm)
    spec.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.projection.bias = _array(model.output_bias)
    return spec


def _shape(specs: Any, config: ModelConfig, dim: int) -> dict[str, Any]:
    """Arguments that the specifications of encoder and decoder share."""
    return {
        "num_heads": config.num_heads,
        "pre_norm": config.norm_position == "pre",
        "activation": specs.Activation[_ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation == "swiglu",
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.num_kv_heads,
        "rotary_dim": dim // config.num_heads if config.positions == "rotary" else None,
        "rotary_interleave": False,
    }


def _positions(
    spec: Any, embedding: Embedding, config: ModelConfig, shape: tuple[int, int]
) -> None:
    """Set the table of positions (P, D), whatever they are made of."""
    if config.positions == "rotary":
        return
    if isinstance(embedding.positions, LearnedPositions):
        table: Tensor = embedding.positions.weight
    elif config.positions in ("sinusoidal", "sinusoidal-halves"):
        table = sinusoids(*shape, config.positions)
    else:  # no positions: without a table CTranslate2 would make sinusoids
        table = torch.zeros(shape)
    spec.position_encodings.encodings = _array(table)


def _self_attention(spec: Any, attention: SelfAttention, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.query_key_value)
    _linear(spec.linear[1], attention.output)


def _cross_attention(spec: Any, attention: CrossAttention, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear[0], attention.query)
    _linear(spec.linear[1], attention.key_value)
    _linear(spec.linear[2], attention.output)


def _feed_forward(spec: Any, layer: FeedForward, norm: nn.Module) -> None:
    _norm(spec.layer_norm, norm)
    _linear(spec.linear_1, layer.outer)
    if not hasattr(spec, "linear_0_noact"):
        _linear(spec.linear_0, layer.inner)
        return
    for part, half in zip((spec.linear_0, spec.linear_0_noact), (0, 1), strict=True):
        part.weight = _array(layer.inner.weight.chunk(2)[half])  # the gate comes first
        if layer.inner.bias is not None:
            part.bias = _array(layer.inner.bias.chunk(2)[half])


def _linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight = _array(layer.weight)
    if layer.bias is not None:
        spec.bias = _array(layer.bias)


def _norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):  # one without beta would be taken for an RMSNorm
        bias = dict(norm.named_parameters()).get("bias")
        spec.beta = _array(torch.zeros_like(norm.weight) if bias is None else bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().numpy()

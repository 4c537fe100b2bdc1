"""The Transformer's shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from nmt.config import Registered, Section

_POSITIONS = ("sinusoidal", "sinusoidal-halves", "learned", "rotary", "none")

MODEL_PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    # Vaswani et al. (2017), table 3.
    "transformer-base": {},
    "transformer-big": {"model_dim": 1024, "ff_dim": 4096, "num_heads": 16, "dropout": 0.3},
    # Small data, small machine.
    "tiny": {
        "encoder_layers": 3, "decoder_layers": 3, "model_dim": 256, "ff_dim": 1024,
        "num_heads": 4, "norm_position": "pre",
    },
    "modern": {
        "encoder_layers": 12, "decoder_layers": 3, "norm_position": "pre", "norm": "rms",
        "activation": "swiglu", "ff_dim": 1408, "positions": "rotary", "qk_norm": True,
        "bias": False,
    },
})  # fmt: skip
"""Name -> the fields of `ModelConfig` that differ from its defaults (the paper's base)."""


class ModelConfig(Section):
    """An encoder-decoder Transformer. The defaults are the published base model."""

    preset: Literal["transformer-base", "transformer-big", "tiny", "modern"] | None = None
    """Values to start from; other keys of this section override them. ``transformer-base`` and
    ``transformer-big`` are the paper's, ``tiny`` is for small data and CPUs, ``modern`` has a deep
    encoder, a shallow decoder and later findings (RMSNorm, SwiGLU, rotary positions)."""
    encoder_layers: int = Field(default=6, ge=1, le=100)
    """Layers of the encoder."""
    decoder_layers: int = Field(default=6, ge=1, le=100)
    """Layers of the decoder."""
    model_dim: int = Field(default=512, ge=8, le=1 << 20)
    """Width of the residual stream."""
    ff_dim: int = Field(default=2048, ge=8, le=1 << 20)
    """Inner width of the feed-forward layers."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads; must divide ``model_dim``."""
    num_kv_heads: int | None = Field(default=None, ge=1)
    """Key/value heads shared by groups of heads (Ainslie et al. 2023); all heads when null."""
    decoder_model_dim: int | None = Field(default=None, ge=8, le=1 << 20)
    """Width of the decoder's residual stream, if another than ``model_dim``."""
    decoder_ff_dim: int | None = Field(default=None, ge=8, le=1 << 20)
    """Inner width of the decoder's feed-forward layers, if another than ``ff_dim``."""
    norm_position: Literal["post", "pre"] = "post"
    """Normalise after each residual sum (Vaswani et al. 2017) or before each sub-layer."""
    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm, or RMSNorm (Zhang and Sennrich 2019)."""
    positions: Annotated[str, Registered("nmt.model.positions:POSITIONS", _POSITIONS)] = (
        "sinusoidal"
    )
    """Position encoding: sines and cosines interleaved (the paper) or in two halves
    (Tensor2Tensor), a learned table, rotations of queries and keys (Su et al. 2021), or none."""
    max_positions: int = Field(default=1024, ge=2, le=1 << 24)
    """Rows of the learned table; other encodings have no limit."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Non-linearity of the feed-forward layers."""
    qk_norm: bool = False
    """Normalise queries and keys per head (Henry et al. 2020)."""
    bias: bool = True
    """Biases in the linear layers and LayerNorms."""
    embeddings: Literal["separate", "decoder-tied", "tied"] = "tied"
    """Share no table, the target's with the output projection, or all three (joint vocabulary)."""
    scale_embeddings: bool = True
    """Multiply embeddings by sqrt(model_dim)."""
    output_bias: bool = False
    """A bias per entry in the output projection."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of every sub-layer's output and of the sum of embedding and position."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout inside the feed-forward layers."""
    word_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability of dropping a whole token's embedding."""
    source_bos: bool = False
    """Read BOS before the source as well, in training and translation."""

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, values: Any) -> Any:
        name = values.get("preset") if isinstance(values, dict) else None
        known = MODEL_PRESETS.get(name, {}) if isinstance(name, str) else {}
        return {**known, **values} if known else values

    def _disagreements(self) -> Iterator[str]:
        heads, kv_heads = self.num_heads, self.num_kv_heads
        for dim in (self.model_dim, self.decoder_dim):
            if dim % heads:
                yield f"num_heads ({heads}) must divide the width {dim}"
            elif self.positions == "rotary" and (dim // heads) % 2:
                yield "rotary positions need an even width per head"
            if self.positions.startswith("sinusoidal") and dim % 2:
                yield "sinusoidal positions need an even width"
        if kv_heads is not None and heads % kv_heads:
            yield f"num_kv_heads ({kv_heads}) must divide num_heads ({heads})"
        if self.embeddings == "tied" and self.decoder_dim != self.model_dim:
            yield "tied embeddings need decoder_model_dim equal to model_dim"

    @property
    def decoder_dim(self) -> int:
        """Width of the decoder's residual stream."""
        return self.decoder_model_dim or self.model_dim

    @property
    def decoder_ff(self) -> int:
        """Inner width of the decoder's feed-forward layers."""
        return self.decoder_ff_dim or self.ff_dim

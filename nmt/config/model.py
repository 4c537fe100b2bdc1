"""Sections of the configuration that a trained model keeps: architecture and decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import lcm
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    model_validator,
)

from nmt.config.filling import MODEL_PRESETS
from nmt.config.section import Count, Many, Probability, Registered, Section

_OF_SAMPLING = ("temperature", "top_k", "top_p", "epsilon_cutoff")
OF_BEAMS = ("patience", "diverse_beam_groups", "coverage_penalty")
_OF_RESULTS = ("n_best", "search", "sampling", "return_alternatives")
_Width = Annotated[int, Field(ge=2, le=1 << 20)]
_NumLayers = Annotated[int, Field(ge=1, le=100)]
BiasPlace = Literal["attention", "feed-forward", "norm"]  # Layers that can have a bias.


class ModelConfig(Section):
    """An encoder-decoder Transformer. The defaults are the published base model.

    Args:
        preset: Architecture to start from: ``transformer-base`` or ``transformer-big`` (Vaswani et
            al. 2017), ``tiny`` for small data and CPUs, ``modern``, or ``marian``, a small model
            that the Transformers library can load (MarianMT). Keys of this section override it.
        encoder_layers: Number of encoder layers.
        decoder_layers: Number of decoder layers.
        model_dim: Model dimension (width of the residual stream).
        ff_dim: Inner dimension of the feed-forward layers.
        num_heads: Number of attention heads; must divide ``model_dim``.
        num_kv_heads: Number of key/value heads, shared by groups of heads (Ainslie et al. 2023).
            null: as many as ``num_heads``.
        decoder_model_dim: Model dimension of the decoder. null: the same as ``model_dim``.
        decoder_ff_dim: Inner dimension of the decoder's feed-forward layers. null: the same as
            ``ff_dim``.
        norm_position: Normalize after each residual sum (``post``, Vaswani et al. 2017) or before
            each sublayer (``pre``).
        norm: Normalization: LayerNorm (``layer``), LayerNorm that divides by std + epsilon
            (``layer-std``), or RMSNorm (``rms``).
        norm_gain: Train a gain, a factor for each feature, in each normalization.
        norm_epsilon: Epsilon of the normalization. null: 1e-5, or 1e-6 for ``rms``.
        positions: Position encoding. Sinusoids follow the paper, Hugging Face
            (``-concatenated``) or Marian (``-halves``).
        max_positions: Maximum number of learned positions; other encodings have no limit.
        position_init: Initial vectors of ``positions: learned``: normal with variance 1 / width, or
            zeros.
        first_position: Number of the first position, for sinusoids and learned positions.
        max_relative_distance: Maximum distance of ``positions: relative``; longer distances use the
            embedding of the maximum.
        activation: Activation function of the feed-forward layers; ``silu`` is also called swish.
        qk_norm: Normalize queries and keys per head (Henry et al. 2020).
        bias: Biases of linear layers and LayerNorms: ``true`` (all layers), ``false`` (no layers),
            or a list of kinds of layers.
        embeddings: Embedding matrices to share. ``inputs-shared`` and ``tied`` (all three) need a
            joint vocabulary.
        scale_embeddings: Multiply embeddings by sqrt(model_dim).
        output_bias: Add a bias to the output projection.
        decoder_start: First input of the decoder: the embedding of BOS, or zeros. The position
            encoding is added to either.
        embedding_init: Initial embeddings: normal with variance 1 / width, or Xavier-uniform.
        dropout: Dropout of each sublayer's output, and of the sum of embedding and position.
        attention_dropout: Dropout of attention weights.
        decoder_attention_dropout: Dropout of attention weights in the decoder. null: the same as
            ``attention_dropout``.
        activation_dropout: Dropout inside the feed-forward layers.
        word_dropout: Probability of dropping the whole embedding of a token.
        source_bos: Add BOS to the start of the source, in training and translation.
    """

    preset: Literal["transformer-base", "transformer-big", "tiny", "modern", "marian"] | None = None
    encoder_layers: _NumLayers = 6
    decoder_layers: _NumLayers = 6
    model_dim: _Width = 512
    ff_dim: _Width = 2048
    num_heads: Count = 8
    num_kv_heads: Count | None = None
    decoder_model_dim: _Width | None = None
    decoder_ff_dim: _Width | None = None
    norm_position: Literal["post", "pre"] = "post"
    norm: Literal["layer", "layer-std", "rms"] = "layer"
    norm_gain: bool = True
    norm_epsilon: float | None = Field(default=None, gt=0, lt=1)
    positions: Annotated[str, Registered("position scheme")] = "sinusoidal"
    max_positions: int = Field(default=1024, ge=2, le=1 << 24)
    position_init: Literal["normal", "zeros"] = "normal"
    first_position: int = Field(default=0, ge=0, le=2)
    max_relative_distance: int = Field(default=16, ge=1, le=4096)
    activation: Literal["relu", "gelu", "silu", "swiglu"] = "relu"
    qk_norm: bool = False
    bias: bool | Many[BiasPlace] = True
    embeddings: Literal["separate", "decoder-tied", "inputs-shared", "tied"] = "tied"
    scale_embeddings: bool = True
    output_bias: bool = False
    decoder_start: Literal["bos", "zero"] = "bos"
    embedding_init: Literal["normal", "xavier-uniform"] = "normal"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    decoder_attention_dropout: Probability | None = None
    activation_dropout: Probability = 0.0
    word_dropout: Probability = 0.0
    source_bos: bool = False

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {**MODEL_PRESETS.get(str(values.get("preset")), {}), **values}

    def _disagreements(self) -> Iterator[str]:
        heads = self.num_heads
        for dim in (self.model_dim, self.decoder_dim):
            step = heads  # suitable widths are multiples of this number
            if self.positions == "rotary":
                step *= 2  # each head has an even width
            elif self.positions.startswith("sinusoidal"):
                step = lcm(step, 2)  # the whole width is even
            nearest = step * max(round(dim / step), 1)
            if dim % heads:
                fix = f"use num_heads {_nearest_divisor(dim, heads)} or the width {nearest}"
                yield f"num_heads ({heads}) must divide the width {dim}: {fix}"
            elif self.positions == "rotary" and (dim // heads) % 2:
                yield f"rotary positions need an even width per head: use the width {nearest}"
            if self.positions.startswith("sinusoidal") and dim % 2:
                yield f"sinusoidal positions need an even width: use {nearest}"
        if self.num_kv_heads is not None and heads % self.num_kv_heads:
            fix = f"use {_nearest_divisor(heads, self.num_kv_heads)}"
            yield f"num_kv_heads ({self.num_kv_heads}) must divide num_heads ({heads}): {fix}"
        if self.shares_inputs and self.decoder_dim != self.model_dim:
            yield f"{self.embeddings} embeddings need decoder_model_dim equal to model_dim"

    @property
    def shares_inputs(self) -> bool:
        """Whether source and target share one embedding matrix."""
        return self.embeddings in ("inputs-shared", "tied")

    @property
    def ties_output(self) -> bool:
        """Whether the output projection is the target embedding matrix."""
        return self.embeddings in ("decoder-tied", "tied")

    @property
    def position_limit(self) -> int | None:
        """Longest sentence that learned positions support; None for other position schemes."""
        if self.positions != "learned":
            return None
        return self.max_positions - self.first_position

    def has_bias(self, place: BiasPlace) -> bool:
        """Whether layers of this kind have a bias."""
        if isinstance(self.bias, bool):
            return self.bias
        return place in self.bias

    @property
    def decoder_dim(self) -> int:
        """Width of the decoder's residual stream."""
        return self.decoder_model_dim or self.model_dim

    @property
    def decoder_ff(self) -> int:
        """Inner width of the decoder's feed-forward layers."""
        return self.decoder_ff_dim or self.ff_dim


def _nearest_divisor(number: int, wanted: int) -> int:
    """Return the divisor of ``number`` that is nearest to ``wanted``."""
    divisors = (divisor for divisor in range(1, number + 1) if number % divisor == 0)
    return min(divisors, key=lambda divisor: abs(divisor - wanted))


def _pattern(text: str) -> str:
    """Check a regular expression, and return it."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class DecodingConfig(Section):
    """Beam search or sampling: limits, penalties and constraints.

    Args:
        search: Search algorithm; ``auto`` chooses it from the other options.
        beam_size: Beam size: hypotheses per sentence. 1 is greedy search; larger is slower.
        n_best: Number of translations per sentence; at most ``beam_size`` in beam search.
        length_penalty: Exponent of the length penalty; higher favours longer translations. 0
            compares plain log probabilities.
        length_penalty_form: Formula of the length penalty. ``power``: length^a. ``gnmt``: ((5 +
            length) / 6)^a (Wu et al. 2016, section 7).
        coverage_penalty: Weight of the penalty for source tokens with little attention (Wu et al.
            2016). 0: off.
        patience: The search stops after ``patience`` x ``beam_size`` finished hypotheses (Kasai et
            al. 2022), or when no other hypothesis can become better. With 1, a better translation
            that is longer is often missed; more than 2 is slower and changes few translations.
        diverse_beam_groups: Number of beam groups that avoid each other's tokens; must divide
            ``beam_size``.
        diverse_beam_strength: Penalty on a token's log probability for each beam of an earlier
            group that chose it.
        sampling: Sample instead of searching. Samples of a line do not depend on batching.
        temperature: Softmax temperature of sampling; below 1, probable tokens become more probable.
        top_k: Sample only from the k most probable tokens (Fan et al. 2018). 0: all tokens.
        top_p: Sample from the smallest set of tokens with this total probability (Holtzman et al.
            2020).
        epsilon_cutoff: Sample only from tokens with at least this probability (Hewitt et al. 2022).
        seed: Random seed of sampling.
        return_alternatives: Return the ``n_best`` most probable next tokens after the prefix, each
            completed by greedy search.
        prefix_bias_beta: 0 forces the prefix. Above 0, prefix tokens get this share of the
            probability while the hypothesis agrees with the prefix.
        no_repeat_ngram_size: Length of n-grams that must not repeat in a translation (Paulus et al.
            2018). 0: off.
        repetition_penalty: Factor on the log probability of tokens that the translation already
            contains (Keskar et al. 2019). 1: off.
        keep_special_mass: Keep PAD, UNK and BOS in the softmax, as Marian and Hugging Face do. They
            are never chosen. CTranslate2 ignores this option, so a few translations differ.
        shortlist: Restrict each sentence to likely target tokens. Faster for large vocabularies
            with the torch engine; a few translations change. CTranslate2 then searches sentences
            one by one, in about twice the time of batches without a shortlist.
        max_length_factor: Maximum output length: ``max_length_factor`` x source tokens +
            ``max_length_offset``.
        max_length_offset: Tokens added to the maximum output length.
        min_length_factor: Minimum output length: ``min_length_factor`` x source tokens.
        batch_tokens: Maximum source tokens per batch, with padding. ``auto``: 2048 on a CPU, as
            many as fit on a GPU.
        protect: Regular expressions (Python) of text that is copied to the translation, such as
            names of products.
    """

    search: Annotated[str, Registered("search", first=("auto",))] = "auto"
    beam_size: int = Field(default=5, ge=1, le=256)
    n_best: Count = 1
    length_penalty: float = Field(default=1.0, ge=0, le=20)
    length_penalty_form: Literal["power", "gnmt"] = "power"
    coverage_penalty: float = Field(default=0.0, ge=0, le=1000)
    patience: PositiveFloat = 2.0
    diverse_beam_groups: Count = 1
    diverse_beam_strength: float = Field(default=0.5, ge=0, le=1000)
    sampling: bool = False
    temperature: float = Field(default=1.0, ge=1e-4)
    top_k: int = Field(default=0, ge=0, le=1 << 20)
    top_p: float = Field(default=1.0, gt=0, le=1)
    epsilon_cutoff: Probability = 0.0
    seed: int = Field(default=1, ge=0, lt=2**31)
    return_alternatives: bool = False
    prefix_bias_beta: Probability = 0.0
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=1 << 20)
    repetition_penalty: PositiveFloat = 1.0
    keep_special_mass: bool = False
    shortlist: bool = False
    max_length_factor: float = Field(default=2.0, ge=0, le=1000)
    max_length_offset: int = Field(default=20, ge=1, le=10_000)
    min_length_factor: float = Field(default=0.0, ge=0, le=1000)
    batch_tokens: Count | Literal["auto"] = "auto"
    protect: Many[Pattern] = ()

    @property
    def num_hypotheses(self) -> int:
        """Number of hypotheses per sentence in the search."""
        if self.sampling or self.return_alternatives:
            return self.n_best
        return self.beam_size

    def plain(self, beam_size: int) -> Self:
        """Return the same limits and penalties for plain beam search with one result."""
        shared = self.model_dump(exclude={*_OF_SAMPLING, *OF_BEAMS, *_OF_RESULTS})
        return type(self)(**{**shared, "beam_size": beam_size})

    def _disagreements(self) -> Iterator[str]:
        mode = "sampling" if self.sampling else "return_alternatives"
        for key in (*_OF_SAMPLING, *OF_BEAMS):
            value = getattr(self, key)
            if value == type(self).model_fields[key].default:
                continue
            if key in _OF_SAMPLING and not self.sampling:
                yield f"{key} ({value}) needs sampling: set sampling to true"
            # One of the two modes replaces beam search; both together are reported below.
            elif key in OF_BEAMS and self.sampling != self.return_alternatives:
                yield f"{key} ({value}) needs beam search: remove it, or set {mode} to false"
        if self.sampling and self.return_alternatives:
            yield "sampling and return_alternatives cannot be combined"
        elif self.return_alternatives and self.prefix_bias_beta:
            yield "return_alternatives needs a forced prefix: set prefix_bias_beta to 0"
        if self.sampling or self.return_alternatives:
            return
        n_best = self.n_best
        beam_size = self.beam_size
        if n_best > beam_size:
            yield f"n_best ({n_best}) is more than beam_size ({beam_size}): raise `beam_size`"
        elif n_best > self.patience * beam_size:
            # The search stops after so many finished hypotheses.
            product = f"patience x beam_size ({self.patience * beam_size:g})"
            yield f"n_best ({n_best}) is more than {product}"
        if beam_size % self.diverse_beam_groups:
            groups = f"diverse_beam_groups ({self.diverse_beam_groups})"
            yield f"{groups} does not divide beam_size ({beam_size})"

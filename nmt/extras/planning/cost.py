"""The model section and sentence lengths -> the arithmetic of training, in FLOPs.

Counted as in Chowdhery et al. (2022), appendix B: a multiplication with its addition is 2 FLOPs, so
a token costs 2 for each entry of a matrix it is multiplied with, and twice that again on the way
back: 6 in training. Embedding look-ups, relative positions, biases, norms, softmax and dropout are
left out. In an encoder-decoder model not every token meets every matrix:

- a source token pays for the encoder, and for the keys and values that cross-attention makes of it
  in each decoder layer;
- a target token pays for the rest of the decoder and for the output projection.

Attention multiplies tokens with tokens, without parameters: for each layer and sentence, 2 x 2 x
queries x keys x width forward (scores, then values) and 6 x 2 in training. It is kept apart. Causal
masks do not lower it, as in that appendix.

These are the FLOPs that the model needs: for real tokens, without padding, without what an
implementation computes twice (activation checkpointing, fused attention), and as if all of it were
trained (freezing parts saves up to a third of theirs, or more).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from nmt.config.model import ModelConfig

IntArray = npt.NDArray[np.integer]
TRAINING_FLOPS = 6  # FLOPs for each entry of a matrix and token: 2 forward, 4 backward.


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulParameters:
    """Entries of the matrices that tokens are multiplied with."""

    encoder: int  # Met by each source token.
    # Cross-attention's keys and values, in all decoder layers: met by each source token.
    memory: int
    decoder: int  # The rest of the decoder: met by each target token.
    output: int  # Output projection, tied or not: met by each target token.

    @property
    def per_source_token(self) -> int:
        """What a source token meets."""
        return self.encoder + self.memory

    @property
    def per_target_token(self) -> int:
        """What a target token meets."""
        return self.decoder + self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSums:
    """Sums over sentence pairs that the FLOPs depend on. S and T are a pair's lengths with EOS."""

    source_tokens: int  # Sum of S.
    target_tokens: int  # Sum of T.
    source_squares: int  # Sum of S x S: the scores of one encoder layer and head.
    target_squares: int  # Sum of T x T: the same of the decoder's self-attention.
    products: int  # Sum of T x S: the same of its cross-attention.

    @classmethod
    def of_pairs(cls, source_lengths: IntArray, target_lengths: IntArray) -> Self:
        """Sum over pairs of these lengths, (n,) each, EOS included."""
        source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
        return cls(
            source_tokens=int(source.sum()),
            target_tokens=int(target.sum()),
            source_squares=int(source @ source),
            target_squares=int(target @ target),
            products=int(target @ source),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFlops:
    """FLOPs of forward and backward over a `LengthSums`, by part."""

    encoder: int
    memory: int
    decoder: int
    output: int
    attention: int  # Products of tokens with tokens, of all layers.

    @property
    def matmul(self) -> int:
        """Products with parameters only: all but attention."""
        return self.total - self.attention

    @property
    def total(self) -> int:
        """All parts."""
        return sum(getattr(self, part.name) for part in fields(self))


def matmul_parameters(config: ModelConfig, target_vocab_size: int) -> MatmulParameters:
    """Count the entries of the model's matrices by which tokens are multiplied with them."""
    dim, layers = config.decoder_dim, config.decoder_layers
    return MatmulParameters(
        encoder=config.encoder_layers * _layer(config, config.model_dim, config.ff_dim),
        memory=layers * 2 * config.model_dim * _kv_dim(config, dim),
        decoder=layers * (2 * dim**2 + _layer(config, dim, config.decoder_ff)),
        output=target_vocab_size * dim,
    )


def training_flops(
    config: ModelConfig, target_vocab_size: int, sums: LengthSums, *, passes: int = 1
) -> TrainingFlops:
    """Count the FLOPs of forward and backward over every pair of ``sums``.

    Args:
        config: The model section.
        target_vocab_size: Entries of the target vocabulary.
        sums: The pairs.
        passes: How often each pair is read: twice in R-Drop.
    """
    matrices = matmul_parameters(config, target_vocab_size)
    source, target = (TRAINING_FLOPS * passes * x for x in (sums.source_tokens, sums.target_tokens))
    scores = config.encoder_layers * config.model_dim * sums.source_squares
    scores += config.decoder_layers * config.decoder_dim * (sums.target_squares + sums.products)
    return TrainingFlops(
        encoder=matrices.encoder * source,
        memory=matrices.memory * source,
        decoder=matrices.decoder * target,
        output=matrices.output * target,
        attention=TRAINING_FLOPS * passes * 2 * scores,
    )


def _layer(config: ModelConfig, dim: int, ff_dim: int) -> int:
    """Matrices of self-attention and feed-forward."""
    attention = 2 * dim**2 + 2 * dim * _kv_dim(config, dim)
    gates = 2 if config.activation == "swiglu" else 1
    return attention + (gates + 1) * dim * ff_dim


def _kv_dim(config: ModelConfig, dim: int) -> int:
    """Width of the keys, and of the values: of all their heads."""
    return (config.num_kv_heads or config.num_heads) * (dim // config.num_heads)

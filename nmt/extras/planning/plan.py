"""A configuration and its data -> what training needs, in FLOPs, and what looks wrong about it.

Measures nothing, and loads no torch.

FLOPs are counted as in Chowdhery et al. (2022), appendix B: a multiplication with its addition is 2
FLOPs, so a token costs 2 for each entry of a matrix it is multiplied with, and twice that again on
the way back: 6 in training. Embedding look-ups, relative positions, biases, norms, softmax and
dropout are left out. In an encoder-decoder model not every token meets every matrix:

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

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig, usual_vocab_size
from nmt.data.corpus import corpus_names
from nmt.data.prepare_report import KEPT, PrepareReport
from nmt.errors import DataError
from nmt.training.schedule import build_schedule

IntArray = npt.NDArray[np.integer]
TRAINING_FLOPS = 6  # FLOPs for each entry of a matrix and token: 2 forward, 4 backward.
_VOCAB_FACTOR = 4  # A vocabulary is odd that is so many times larger or smaller than usual.
_FEW_UPDATES = 25  # Of an epoch, below which a batch is a large part of the corpus.
_FEW_PAIRS = 1000  # Below this, a corpus is a toy.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known of a training before its first update; None where it is not."""

    total_steps: int | None
    updates_per_epoch: float | None
    report: PrepareReport | None  # Of the prepared data.

    @classmethod
    def estimate(cls, config: RunConfig) -> Plan:
        """Return what a configuration says, and data if they are prepared. Measures nothing."""
        training = config.training
        try:
            report: PrepareReport | None = PrepareReport.read(config.prepared_dir)
        except DataError:
            report = None
        updates = _updates_per_epoch(config, report) if report else None
        epochs = round(training.max_epochs * updates) if training.max_epochs and updates else None
        total = min((limit for limit in (training.max_steps, epochs) if limit), default=None)
        return cls(total_steps=total, updates_per_epoch=updates, report=report)


def advise(config: RunConfig, plan: Plan | None = None) -> Iterator[str]:
    """Yield what will disappoint, and what to set instead; by default by the estimated plan."""
    plan = plan or Plan.estimate(config)
    total, in_epoch = plan.total_steps, plan.updates_per_epoch
    if total is not None:
        yield from _about_warmup(config, total)
    if total and in_epoch and total < in_epoch:
        change = f"`set` training.max_steps={ceil(in_epoch)}"
        if config.training.max_minutes is not None and total != config.training.max_steps:
            change = "`set` training.max_minutes=null `set` training.max_epochs=1"
            if config.training.max_steps is not None:
                change += " `set` training.max_steps=null"
        yield (
            f"training ends at update {total:,}, and an epoch has {in_epoch:,.0f}: "
            f"{int(100 * (1 - total / in_epoch))}% of the pairs are never read; for all of them, "
            f"{change}"
        )
    num_pairs = _num_pairs(config, plan.report) if plan.report else 0
    if plan.report is None or num_pairs < _FEW_PAIRS:
        return
    if in_epoch and in_epoch < _FEW_UPDATES:
        yield (
            f"an epoch of {num_pairs:,} pairs has {in_epoch:,.0f} updates, so that a batch is a "
            f"large part of the corpus: make batches {_FEW_UPDATES / in_epoch:.0f} times smaller "
            "or more (batch.max_tokens)"
        )
    if config.tokenizer.kind in ("bpe", "unigram") and config.training.init_from is None:
        yield from _about_vocabulary(config, num_pairs, plan.report)


def _about_warmup(config: RunConfig, total: int) -> Iterator[str]:
    schedule = config.training.schedule
    rate = build_schedule(schedule, model_dim=config.model.model_dim, total_steps=total)
    warmup = schedule.warmup_updates(total)
    advice = "try training.schedule.warmup_ratio 0.06, a share of the run"
    if total > 1 and rate(total) > rate(total - 1):
        yield (
            f"training ends inside warm-up, after {total:,} of {warmup:,} updates of warm-up: "
            f"the learning rate never falls; {advice}"
        )
    elif warmup > total / 2 > 1:
        yield f"half of the {total:,} updates or more are warm-up ({warmup:,} asked for); {advice}"


def _about_vocabulary(config: RunConfig, num_pairs: int, report: PrepareReport) -> Iterator[str]:
    usual = usual_vocab_size(num_pairs)
    for size in dict.fromkeys(config.tokenizer.vocab_sizes):
        if usual / _VOCAB_FACTOR <= size <= usual * _VOCAB_FACTOR:
            continue
        lines = [f"{side.mean_length:.0f}" for side in report.sides if side.vocab_size == size]
        cut = f" ({' and '.join(dict.fromkeys(lines))} subwords a line)" if lines else ""
        what = "small" if size < usual else "large"
        yield (
            f"a vocabulary of {size:,} entries is {what} for {num_pairs:,} pairs{cut}: about "
            f"{usual:,} are usual (tokenizer.vocab_size)"
        )


def _num_pairs(config: RunConfig, report: PrepareReport) -> int:
    counts = (report.counts.get(name, {}) for name in corpus_names(config.data.train))
    return sum(count.get(KEPT, 0) for count in counts)


def _updates_per_epoch(config: RunConfig, report: PrepareReport) -> float | None:
    batch, num_pairs = config.batch, _num_pairs(config, report)
    tokens = sum(side.tokens for side in report.sides) + 2 * num_pairs
    most = batch.tokens_per_update or batch.max_tokens
    counts = [tokens / most] if isinstance(most, int) else []
    counts += [num_pairs / batch.max_sentences] if batch.max_sentences else []
    return max(counts, default=0.0) / batch.gradient_accumulation or None


class MatmulParameters(NamedTuple):
    """Entries of the matrices that tokens are multiplied with."""

    encoder: int  # Met by each source token.
    # Cross-attention's keys and values, in all decoder layers: met by each source token.
    memory: int
    decoder: int  # The rest of the decoder: met by each target token.
    output: int  # Output projection, tied or not: met by each target token.


class LengthSums(NamedTuple):
    """Sums over sentence pairs that the FLOPs depend on. S and T are a pair's lengths with EOS."""

    source_tokens: int  # Sum of S.
    target_tokens: int  # Sum of T.
    source_squares: int  # Sum of S x S: the scores of one encoder layer and head.
    target_squares: int  # Sum of T x T: the same of the decoder's self-attention.
    products: int  # Sum of T x S: the same of its cross-attention.

    @classmethod
    def of_pairs(cls, source_lengths: IntArray, target_lengths: IntArray) -> LengthSums:
        """Sum over pairs of these lengths, (n,) each, EOS included."""
        source, target = source_lengths.astype(np.int64), target_lengths.astype(np.int64)
        squares = source @ source, target @ target, target @ source
        return cls(*map(int, (source.sum(), target.sum(), *squares)))


class TrainingFlops(NamedTuple):
    """FLOPs of forward and backward over a `LengthSums`."""

    matmul: int  # Products with parameters.
    attention: int  # Products of tokens with tokens, of all layers.

    @property
    def total(self) -> int:
        """Both."""
        return self.matmul + self.attention


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
    matmul = (matrices.encoder + matrices.memory) * sums.source_tokens
    matmul += (matrices.decoder + matrices.output) * sums.target_tokens
    scores = config.encoder_layers * config.model_dim * sums.source_squares
    scores += config.decoder_layers * config.decoder_dim * (sums.target_squares + sums.products)
    each = TRAINING_FLOPS * passes
    return TrainingFlops(each * matmul, each * 2 * scores)


def _layer(config: ModelConfig, dim: int, ff_dim: int) -> int:
    """Matrices of self-attention and feed-forward."""
    attention = 2 * dim**2 + 2 * dim * _kv_dim(config, dim)
    gates = 2 if config.activation == "swiglu" else 1
    return attention + (gates + 1) * dim * ff_dim


def _kv_dim(config: ModelConfig, dim: int) -> int:
    """Width of the keys, and of the values: of all their heads."""
    return (config.num_kv_heads or config.num_heads) * (dim // config.num_heads)

"""Advice about a configuration before training, and the FLOPs of a training run.

This module measures nothing and does not load torch.

FLOPs are counted as in Chowdhery et al. (2022), appendix B. A multiplication with its addition is 2
FLOPs. So each token costs 2 FLOPs per matrix element in the forward pass and 4 in the backward
pass: 6 in training. Embedding look-ups, relative positions, biases, norms, softmax and dropout are
not counted. In an encoder-decoder model, tokens pass through different matrices:

- a source token passes through the encoder, and through the key and value projections of
  cross-attention in each decoder layer;
- a target token passes through the rest of the decoder and through the output projection.

Attention multiplies tokens with tokens, without parameters. For each layer and sentence, attention
costs 2 x 2 x queries x keys x width in the forward pass (scores, then values) and 6 x 2 x queries x
keys x width in training. Attention is counted separately. As in that appendix, causal masks do not
reduce the count.

The result is the FLOPs that the model needs: for real tokens without padding, without repeated
computation (activation checkpointing, fused attention), and with all parameters trained (freezing a
part saves a third of its FLOPs or more).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.config.filling import usual_vocab_size
from nmt.config.model import ModelConfig
from nmt.config.run import RunConfig
from nmt.data.corpus import corpus_names
from nmt.data.plan import epoch_weights
from nmt.data.prepare_report import KEPT, PrepareReport
from nmt.errors import DataError
from nmt.training.schedule import build_schedule

IntArray = npt.NDArray[np.integer]
TRAINING_FLOPS = 6  # FLOPs per matrix element and token: 2 forward, 4 backward.
_VOCAB_FACTOR = 4  # Warn if the vocabulary is 4 times larger or smaller than usual.
_FEW_UPDATES = 25  # Warn if an epoch has fewer updates.
_FEW_PAIRS = 1000  # Give no advice about data to a smaller corpus: it is a toy.


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The size of a training run, estimated before training. Unknown values are None."""

    total_steps: int | None
    updates_per_epoch: float | None
    report: PrepareReport | None  # Report of the prepared data.

    @classmethod
    def estimate(cls, config: RunConfig) -> Plan:
        """Estimate the plan from a configuration and, if available, its prepared data."""
        training = config.training
        try:
            report: PrepareReport | None = PrepareReport.read(config.prepared_dir)
        except DataError:
            report = None
        updates_per_epoch = None
        if report:
            updates_per_epoch = _updates_per_epoch(config, report)
        limits = []  # In updates. The smallest one ends training.
        if training.max_steps:
            limits.append(training.max_steps)
        if training.max_epochs and updates_per_epoch:
            limits.append(round(training.max_epochs * updates_per_epoch))
        total_steps = min(limits, default=None)
        return cls(total_steps=total_steps, updates_per_epoch=updates_per_epoch, report=report)


def advise(config: RunConfig, plan: Plan | None = None) -> Iterator[str]:
    """Yield warnings about a training run, each with the setting to change.

    Args:
        config: The configuration.
        plan: Size of the training run. If None, it is estimated.
    """
    plan = plan or Plan.estimate(config)
    training = config.training
    total_steps = plan.total_steps
    epoch_steps = plan.updates_per_epoch
    if training.precision == "float16" and training.device == "cpu":
        yield "float16 is slow on a CPU: set training.precision to auto"
    if config.decoding.sampling and "beam_size" in config.decoding.model_fields_set:
        yield "decoding.beam_size has no effect, because decoding.sampling is on: remove one"
    if total_steps is not None:
        yield from _about_warmup(config, total_steps)
    if total_steps and epoch_steps and total_steps < epoch_steps:
        change = f"`set` training.max_steps={ceil(epoch_steps)}"
        # If the time is the limit, and not `max_steps`, an epoch must replace it.
        if training.max_minutes is not None and total_steps != training.max_steps:
            change = "`set` training.max_minutes=null `set` training.max_epochs=1"
            if training.max_steps is not None:
                change += " `set` training.max_steps=null"
        unused_percent = int(100 * (1 - total_steps / epoch_steps))
        yield (
            f"training ends at update {total_steps:,}, but an epoch has {epoch_steps:,.0f} "
            f"updates: {unused_percent}% of the pairs are never used; to use all pairs, {change}"
        )
    if plan.report is None:
        return
    num_pairs = sum(_sizes(config, plan.report))
    if num_pairs < _FEW_PAIRS:
        return
    if epoch_steps and epoch_steps < _FEW_UPDATES:
        factor = ceil(10 * _FEW_UPDATES / epoch_steps) / 10
        yield (
            f"an epoch of {num_pairs:,} pairs has only {epoch_steps:,.0f} updates, as batches are "
            f"large; make batch.max_tokens at least {factor:g} times smaller"
        )
    if config.tokenizer.kind in ("bpe", "unigram") and not training.keeps_vocabulary:
        yield from _about_vocabulary(config, num_pairs, plan.report)


def _about_warmup(config: RunConfig, total_steps: int) -> Iterator[str]:
    """Yield a warning if the learning rate rises in all or most of the training."""
    schedule = config.training.schedule
    rate = build_schedule(schedule, model_dim=config.model.model_dim, total_steps=total_steps)
    warmup = schedule.warmup_updates(total_steps)
    advice = "set training.schedule.warmup_ratio to 0.06, a fraction of all updates"
    # The rate still rises at the last update.
    if total_steps > 1 and rate(total_steps) > rate(total_steps - 1):
        yield (
            f"training ends during warm-up, after {total_steps:,} of {warmup:,} warm-up updates: "
            f"the learning rate never falls; {advice}"
        )
    elif warmup > total_steps / 2 > 1:  # not in a training of one or two updates
        yield f"warm-up ({warmup:,} updates) takes over half of {total_steps:,} updates; {advice}"


def _about_vocabulary(config: RunConfig, num_pairs: int, report: PrepareReport) -> Iterator[str]:
    """Yield a warning for each unusual size of a vocabulary."""
    usual = usual_vocab_size(num_pairs)
    for size in dict.fromkeys(config.tokenizer.vocab_sizes):
        if usual / _VOCAB_FACTOR <= size <= usual * _VOCAB_FACTOR:
            continue
        # Mean lengths of the lines in the languages with this vocabulary size.
        lengths = [f"{side.mean_length:.0f}" for side in report.sides if side.vocab_size == size]
        measured = ""
        if lengths:
            measured = f" ({' and '.join(dict.fromkeys(lengths))} subwords per line)"
        kind = "small" if size < usual else "large"
        yield (
            f"a vocabulary of {size:,} subwords is {kind} for {num_pairs:,} pairs{measured}: about "
            f"{usual:,} are usual (tokenizer.vocab_size)"
        )


def _sizes(config: RunConfig, report: PrepareReport) -> list[int]:
    """Return the number of prepared pairs of each training corpus."""
    counts = (report.counts.get(name, {}) for name in corpus_names(config.data.training))
    return [count.get(KEPT, 0) for count in counts]


def _updates_per_epoch(config: RunConfig, report: PrepareReport) -> float | None:
    """Return the number of updates in an epoch; None if no limit of the batches is a number."""
    batch = config.batch
    sizes = _sizes(config, report)
    num_prepared = sum(sizes)
    # The weights say how often an epoch reads each corpus.
    num_pairs = sum(map(mul, sizes, epoch_weights(config.data, sizes)))
    # Each pair has two EOS in addition to its subwords.
    num_tokens = sum(side.tokens for side in report.sides) + 2 * num_prepared
    # The mean length of the prepared pairs is that of the pairs in an epoch.
    tokens_in_epoch = round(num_tokens * num_pairs / (num_prepared or 1))
    max_tokens = batch.tokens_per_update or batch.max_tokens
    # One number for each limit of the size of a batch. The strictest limit gives the most batches.
    num_batches = [0.0]
    if isinstance(max_tokens, int):
        num_batches.append(tokens_in_epoch / max_tokens)
    if batch.max_sentences:
        num_batches.append(num_pairs / batch.max_sentences)
    return max(num_batches) / batch.gradient_accumulation or None


class MatmulParameters(NamedTuple):
    """Numbers of matrix elements, by which tokens pass through the matrices."""

    encoder: int  # Encoder: source tokens.
    memory: int  # Key and value projections of cross-attention, in all layers: source tokens.
    decoder: int  # Rest of the decoder: target tokens.
    output: int  # Output projection, tied or not: target tokens.


class LengthSums(NamedTuple):
    """Sums over sentence pairs, to compute FLOPs. S and T: source and target length with EOS."""

    source_tokens: int  # Sum of S.
    target_tokens: int  # Sum of T.
    source_squares: int  # Sum of S x S, for encoder self-attention.
    target_squares: int  # Sum of T x T, for decoder self-attention.
    products: int  # Sum of T x S, for cross-attention.

    @classmethod
    def of_pairs(cls, source_lengths: IntArray, target_lengths: IntArray) -> LengthSums:
        """Compute the sums from the lengths of n pairs, with EOS. Both arrays have shape (n,)."""
        source = source_lengths.astype(np.int64)
        target = target_lengths.astype(np.int64)
        return cls(
            source_tokens=int(source.sum()),
            target_tokens=int(target.sum()),
            source_squares=int(source @ source),
            target_squares=int(target @ target),
            products=int(target @ source),
        )


class TrainingFlops(NamedTuple):
    """FLOPs of the forward and backward pass."""

    matmul: int  # Products of tokens with parameters.
    attention: int  # Products of tokens with tokens, in all layers.

    @property
    def total(self) -> int:
        """The FLOPs of both passes."""
        return self.matmul + self.attention


def matmul_parameters(config: ModelConfig, target_vocab_size: int) -> MatmulParameters:
    """Count the elements of the model's matrices."""
    dim = config.decoder_dim
    layers = config.decoder_layers
    return MatmulParameters(
        encoder=config.encoder_layers * _layer(config, config.model_dim, config.ff_dim),
        # Two projections: keys and values.
        memory=layers * 2 * config.model_dim * _kv_dim(config, dim),
        # Cross-attention has two more projections, of the queries and of the output.
        decoder=layers * (2 * dim**2 + _layer(config, dim, config.decoder_ff)),
        output=target_vocab_size * dim,
    )


def training_flops(
    config: ModelConfig, target_vocab_size: int, sums: LengthSums, *, passes: int = 1
) -> TrainingFlops:
    """Count the FLOPs of the forward and backward pass over the sentence pairs of ``sums``.

    Args:
        config: The model section.
        target_vocab_size: Size of the target vocabulary.
        sums: Sums of the pairs, from `LengthSums.of_pairs`.
        passes: Passes per pair: 2 with R-Drop.
    """
    matrices = matmul_parameters(config, target_vocab_size)
    # Multiplications in the forward pass: of tokens with matrices, and of queries with keys.
    matmul = (matrices.encoder + matrices.memory) * sums.source_tokens
    matmul += (matrices.decoder + matrices.output) * sums.target_tokens
    scores = config.encoder_layers * config.model_dim * sums.source_squares
    scores += config.decoder_layers * config.decoder_dim * (sums.target_squares + sums.products)
    factor = TRAINING_FLOPS * passes
    # Twice the scores, because the product of attention weights with values costs the same.
    return TrainingFlops(factor * matmul, factor * 2 * scores)


def _layer(config: ModelConfig, dim: int, ff_dim: int) -> int:
    """Count the matrix elements of self-attention and feed-forward in one layer."""
    # Projections of queries and output, then of keys and values.
    attention = 2 * dim**2 + 2 * dim * _kv_dim(config, dim)
    # Matrices into the inner dimension: SwiGLU has a second one, for the gate. One leads back.
    num_inner = 2 if config.activation == "swiglu" else 1
    return attention + (num_inner + 1) * dim * ff_dim


def _kv_dim(config: ModelConfig, dim: int) -> int:
    """Return the width of the keys (and of the values) of all heads together."""
    return (config.num_kv_heads or config.num_heads) * (dim // config.num_heads)

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
        updates = None
        if report:
            updates = _updates_per_epoch(config, report)
        limits = []
        if training.max_steps:
            limits.append(training.max_steps)
        if training.max_epochs and updates:
            limits.append(round(training.max_epochs * updates))
        total_steps = min(limits, default=None)
        return cls(total_steps=total_steps, updates_per_epoch=updates, report=report)


def advise(config: RunConfig, plan: Plan | None = None) -> Iterator[str]:
    """Yield warnings about a training run, each with the setting to change.

    Args:
        config: The configuration.
        plan: Size of the training run. If None, it is estimated.
    """
    plan = plan or Plan.estimate(config)
    total = plan.total_steps
    in_epoch = plan.updates_per_epoch
    if total is not None:
        yield from _about_warmup(config, total)
    if total and in_epoch and total < in_epoch:
        change = f"`set` training.max_steps={ceil(in_epoch)}"
        if config.training.max_minutes is not None and total != config.training.max_steps:
            change = "`set` training.max_minutes=null `set` training.max_epochs=1"
            if config.training.max_steps is not None:
                change += " `set` training.max_steps=null"
        yield (
            f"training ends at update {total:,}, but an epoch has {in_epoch:,.0f} updates: "
            f"{int(100 * (1 - total / in_epoch))}% of the pairs are never used; to use all pairs, "
            f"{change}"
        )
    if plan.report is None:
        return
    num_pairs = sum(_sizes(config, plan.report))
    if num_pairs < _FEW_PAIRS:
        return
    if in_epoch and in_epoch < _FEW_UPDATES:
        yield (
            f"an epoch of {num_pairs:,} pairs has only {in_epoch:,.0f} updates, as batches are "
            f"large; make batch.max_tokens at least {_FEW_UPDATES / in_epoch:.0f} times smaller"
        )
    if config.tokenizer.kind in ("bpe", "unigram") and not config.training.keeps_vocabulary:
        yield from _about_vocabulary(config, num_pairs, plan.report)


def _about_warmup(config: RunConfig, total: int) -> Iterator[str]:
    schedule = config.training.schedule
    rate = build_schedule(schedule, model_dim=config.model.model_dim, total_steps=total)
    warmup = schedule.warmup_updates(total)
    advice = "set training.schedule.warmup_ratio to 0.06, a fraction of all updates"
    if total > 1 and rate(total) > rate(total - 1):
        yield (
            f"training ends during warm-up, after {total:,} of {warmup:,} warm-up updates: "
            f"the learning rate never falls; {advice}"
        )
    elif warmup > total / 2 > 1:
        yield f"warm-up ({warmup:,} updates) takes over half of {total:,} updates; {advice}"


def _about_vocabulary(config: RunConfig, num_pairs: int, report: PrepareReport) -> Iterator[str]:
    usual = usual_vocab_size(num_pairs)
    for size in dict.fromkeys(config.tokenizer.vocab_sizes):
        if usual / _VOCAB_FACTOR <= size <= usual * _VOCAB_FACTOR:
            continue
        lines = [f"{side.mean_length:.0f}" for side in report.sides if side.vocab_size == size]
        measured = ""
        if lines:
            measured = f" ({' and '.join(dict.fromkeys(lines))} subwords per line)"
        kind = "small" if size < usual else "large"
        yield (
            f"a vocabulary of {size:,} subwords is {kind} for {num_pairs:,} pairs{measured}: about "
            f"{usual:,} are usual (tokenizer.vocab_size)"
        )


def _sizes(config: RunConfig, report: PrepareReport) -> list[int]:
    counts = (report.counts.get(name, {}) for name in corpus_names(config.data.training))
    return [count.get(KEPT, 0) for count in counts]


def _updates_per_epoch(config: RunConfig, report: PrepareReport) -> float | None:
    batch = config.batch
    sizes = _sizes(config, report)
    num_pairs = sum(map(mul, sizes, epoch_weights(config.data, sizes)))
    tokens = sum(side.tokens for side in report.sides) + 2 * sum(sizes)
    tokens_in_epoch = round(tokens * num_pairs / (sum(sizes) or 1))
    most_tokens = batch.tokens_per_update or batch.max_tokens
    num_batches = [0.0]
    if isinstance(most_tokens, int):
        num_batches.append(tokens_in_epoch / most_tokens)
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
        memory=layers * 2 * config.model_dim * _kv_dim(config, dim),
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
    matmul = (matrices.encoder + matrices.memory) * sums.source_tokens
    matmul += (matrices.decoder + matrices.output) * sums.target_tokens
    scores = config.encoder_layers * config.model_dim * sums.source_squares
    scores += config.decoder_layers * config.decoder_dim * (sums.target_squares + sums.products)
    each = TRAINING_FLOPS * passes
    return TrainingFlops(each * matmul, each * 2 * scores)


def _layer(config: ModelConfig, dim: int, ff_dim: int) -> int:
    """Count the matrix elements of self-attention and feed-forward in one layer."""
    attention = 2 * dim**2 + 2 * dim * _kv_dim(config, dim)
    gates = 2 if config.activation == "swiglu" else 1
    return attention + (gates + 1) * dim * ff_dim


def _kv_dim(config: ModelConfig, dim: int) -> int:
    """Return the width of the keys (and of the values) of all heads together."""
    return (config.num_kv_heads or config.num_heads) * (dim // config.num_heads)

"""What one process trains with; `nmt.commands.train.build` puts it together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nmt.config.data import DataConfig
from nmt.config.model import ModelConfig
from nmt.config.training import TrainingConfig
from nmt.data.augment import Augmenter
from nmt.data.corpus import corpus_names
from nmt.data.findings import KEPT, READ
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.data.resegment import InTurn, Resegment, Resegmenter
from nmt.device.compilation import Compilation, compile_layers, pays
from nmt.device.device import choose_device
from nmt.device.distributed import Processes
from nmt.device.precision import choose_precision
from nmt.errors import ConfigError
from nmt.model.transformer import build_model, count_parameters
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training.losses import OBJECTIVES, objective_name
from nmt.training.optimizer import build_optimizer, freeze
from nmt.training.update import Updater
from nmt.training.validation import Validator

# Keys of the model section that change no weight's meaning.
_REGULARISATION = ("preset", "dropout", "attention_dropout", "activation_dropout", "word_dropout")
_COUNTED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What one process trains with, before its first update."""

    training: TrainingConfig
    data: PreparedData
    updater: Updater  # Of a model with new weights.
    loader: Loader
    validator: Validator

    def compile(self) -> Compilation:
        """Compile the layers, where that is wanted."""
        updater, loader = self.updater, self.loader
        num_parameters = sum(p.numel() for p in updater.model.parameters())
        num_tokens = int(loader.config.max_tokens or 0) * loader.config.accumulate
        return compile_layers(
            self.training.compile,
            updater.device,
            switch=updater.model.compile_layers,
            warm_up=lambda: updater.warm_up(loader.batch(loader.plan(0)[0])),
            is_worth_it=pays(self.training.max_steps, num_parameters, num_tokens),
        )

    def facts(self, corpora: DataConfig, total_steps: int | None) -> dict[str, Any]:
        """Return what a start records: what trains, on what, by which schedule, on which data."""
        training, schedule, counts = (
            self.training,
            self.training.schedule,
            self.data.manifest.counts,
        )
        dropped: Counter[str] = Counter()
        for name in corpus_names(corpora.train):
            reasons = counts.get(name, {})
            dropped += Counter({k: n for k, n in reasons.items() if k not in (READ, KEPT)})
        share = schedule.warmup and f"{schedule.warmup:.2%} of the updates"
        rise = f"{share or f'{schedule.warmup_steps:,} updates'} of warm-up to {schedule.peak_lr:g}"
        return {
            "device": str(self.updater.device),
            "precision": self.updater.precision.name,
            "threads": torch.get_num_threads(),
            "processes": self.updater.processes.size,
            "parameters": sum(count_parameters(self.updater.model).values()),
            "schedule": f"{schedule.shape}: {rise}",
            "metric": training.validation.metric,
            "pairs": len(self.data.train),
            "dropped": dict(dropped.most_common()),
            "augmented": _augmented(self.loader.resegment, len(self.data.train)) or None,
            "total_steps": total_steps,
        }

    def describe(self) -> str:
        """Return in a phrase what trains, on what."""
        sizes, size = count_parameters(self.updater.model), self.updater.processes.size
        parts = ", ".join(f"{name} {number:,}" for name, number in sizes.items())
        return (
            f"{sum(sizes.values()):,} parameters ({parts}), {len(self.data.train):,} pairs, "
            f"{self.updater.precision.name} on {self.updater.device}, "
            f"{torch.get_num_threads()} threads"
            + (f" in each of {size} processes" if size > 1 else "")
        )


def _augmented(resegment: Resegment | None, num_pairs: int) -> dict[str, int]:
    """Return how many pairs get each kind of noise in the first epoch."""
    changes = resegment.changes if isinstance(resegment, InTurn) else [resegment]
    counts = Counter[str]()
    for augmenter in (change for change in changes if isinstance(change, Augmenter)):
        for start in range(0, num_pairs, _COUNTED_AT_ONCE):
            rows = np.arange(start, min(start + _COUNTED_AT_ONCE, num_pairs))
            drawn = augmenter.drawn(0, rows)
            counts.update({kind: int(own.sum()) for kind, own in drawn.items()})
    return dict(counts)


def build_updater(
    model: ModelConfig, training: TrainingConfig, vocab_sizes: Sequence[int], processes: Processes
) -> Updater:
    """Return a new model with its optimizer, and what makes updates of it."""
    device = choose_device(training.device)
    torch.manual_seed(training.seed)
    transformer = build_model(model, *vocab_sizes).to(device)
    transformer.recompute = training.activation_checkpointing
    freeze(transformer, training.freeze)
    precision = choose_precision(training.precision, device)
    return Updater(
        transformer,
        build_optimizer(
            transformer, training.optimizer, precision.weight_dtype, ema_decay=training.ema_decay
        ),
        precision,
        OBJECTIVES[objective_name(training)](training),
        clip_norm=training.optimizer.clip_norm,
        processes=processes,
    )


def redrawn_text(
    data: PreparedData, corpora: DataConfig, bpe_dropout: float, *, seed: int, longest: int
) -> Resegment | None:
    """Return what draws noise and subwords of the stored text again in each epoch, if any.

    Args:
        data: The pairs.
        corpora: Say which of them get noise.
        bpe_dropout: Share of the merges left out.
        seed: Of the run: each seed draws others.
        longest: A sentence that would have more subwords keeps those that are stored.

    Raises:
        ConfigError: There is no such thing as BPE-dropout of this vocabulary.
    """
    rates = [corpus.augment.rates for corpus in corpora.train]
    changes: list[Resegment] = []
    if any(rates) or bpe_dropout:
        tokenizers = load_tokenizers(data.tokenizer_dir)
        if any(rates):
            starts = np.searchsorted(data.train.corpus, np.arange(len(rates)), side="right")
            changes.append(Augmenter(tokenizers, starts, rates, seed=seed, longest=longest))
        if bpe_dropout:
            source = _subword_dropout(tokenizers.source, bpe_dropout)
            is_joint = tokenizers.target is tokenizers.source
            target = source if is_joint else _subword_dropout(tokenizers.target, bpe_dropout)
            changes.append(Resegmenter((source, target), seed=seed, longest=longest))
    return InTurn(*changes) if len(changes) > 1 else next(iter(changes), None)


def _subword_dropout(tokenizer: Tokenizer, rate: float) -> SubwordDropout:
    pieces, scores, is_normal = zip(*tokenizer.pieces(), strict=True)
    # The n-th merge has the score -n; other kinds of vocabulary have probabilities.
    if any(score % 1 for score in scores):
        raise ConfigError(
            "batch.bpe_dropout needs a BPE vocabulary, and that of the prepared data is another.",
            fix="Set batch.bpe_dropout to 0.",
        )
    return SubwordDropout(pieces, scores, is_normal, rate)


def check_shape(model: ModelConfig, start: ModelConfig, where: object) -> None:
    """Refuse to begin with the weights of another model.

    Raises:
        ConfigError: Names the keys that differ.
    """
    was, now = (each.model_dump() for each in (start, model))
    differing = [
        f"model.{key}: {was[key]} there, {now[key]} here"
        for key in now
        if key not in _REGULARISATION and was[key] != now[key]
    ]
    if differing:
        raise ConfigError(
            f"{where} (training.start_from) has another model:\n  " + "\n  ".join(differing),
            fix=f"Copy the model section of {where}/config.yaml.",
        )

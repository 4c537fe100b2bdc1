"""The configuration and prepared data -> what makes updates: model, optimizer, loader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nmt.config.run import RunConfig
from nmt.data.loader import Loader
from nmt.data.prepared import PreparedData
from nmt.data.resegment import Resegmenter
from nmt.engine.compilation import Compilation, compile_layers
from nmt.engine.device import choose_device, seed_rank
from nmt.engine.distributed import OneProcess, Processes
from nmt.engine.precision import choose_precision
from nmt.errors import ConfigError
from nmt.model.transformer import build_model
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training.losses import choose_form
from nmt.training.objective import build_objective
from nmt.training.optimizer import build_optimizer
from nmt.training.parameters import freeze
from nmt.training.update import Updater, UpdateStats

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What one process trains with, before its first update."""

    config: RunConfig
    data: PreparedData
    device: torch.device
    updater: Updater
    """Of a model with new weights."""
    loader: Loader
    compilation: Compilation
    """Whether the layers are compiled."""

    @classmethod
    def build(cls, config: RunConfig, processes: Processes | None = None) -> TrainingSetup:
        """Make everything, and seed the random generators.

        Raises:
            NmtError: Data, configuration or device do not allow it; see the message.
        """
        processes = processes or OneProcess()
        training = config.training
        data, device = PreparedData.open(config.prepared_dir), choose_device(training.device)
        manifest = data.manifest
        torch.manual_seed(training.seed)
        vocab_sizes = (manifest.source_vocab_size, manifest.target_vocab_size)
        model = build_model(config.model, *vocab_sizes).to(device)
        model.recompute = training.activation_checkpointing
        freeze(model, training.freeze)
        precision = choose_precision(training.precision, device)
        optimizer = build_optimizer(
            model, training.optimizer, precision.weight_dtype, ema_decay=training.ema_decay
        )
        form = choose_form(precision.dtype, device, manifest.target_vocab_size)
        updater = Updater(
            model,
            optimizer,
            precision,
            build_objective(training, form),
            clip_norm=training.optimizer.clip_norm,
            processes=processes,
        )
        loader = Loader(
            data.train,
            config.batch,
            weights=[corpus.weight for corpus in config.data.train],
            seed=training.seed,
            rank=processes.rank,
            num_ranks=processes.size,
            resegment=_resegmenter(config, data.tokenizer_dir),
        )
        seed_rank(training.seed, processes.rank)
        compilation = compile_layers(
            training.compile,
            device,
            switch=model.compile_layers,
            warm_up=lambda: updater.warm_up(loader.batch(loader.plan(0)[0])),
        )
        return cls(config, data, device, updater, loader, compilation)

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return source and target tokens of each pair, EOS included."""
        store = self.data.train
        source, target = store.source_lengths[rows], store.target_lengths[rows]
        return source.astype(np.int64) + 1, target.astype(np.int64) + 1

    def update(self, rows: Rows) -> UpdateStats:
        """Make an update of one batch that changes no weight."""
        return self.updater([self.loader.batch(rows)], 0.0)

    def largest_batches(self, plan: Sequence[Rows]) -> list[Rows]:
        """Return the batch with the most tokens and, if another, the one with the most scores."""
        tokens, scores = [], []
        for rows in plan:
            source, target = self.lengths(rows)
            longest, longest_target = int(source.max()), int(target.max())
            tokens.append(int(source.sum() + target.sum()))
            squares = longest**2 + longest_target**2 + longest * longest_target
            scores.append(len(rows) * squares)
        return [plan[i] for i in sorted({int(np.argmax(tokens)), int(np.argmax(scores))})]


def _resegmenter(config: RunConfig, tokenizer_dir: Path) -> Resegmenter | None:
    rate = config.batch.bpe_dropout
    if not rate:
        return None
    tokenizers = load_tokenizers(tokenizer_dir)

    def dropout(tokenizer: Tokenizer) -> SubwordDropout:
        pieces, scores, is_normal = zip(*tokenizer.pieces(), strict=True)
        # The n-th merge has the score -n; other kinds of vocabulary have probabilities.
        if any(score % 1 for score in scores):
            raise ConfigError(
                f"batch.bpe_dropout needs a BPE vocabulary, and {tokenizer_dir} holds another.",
                fix="Set batch.bpe_dropout to 0.",
            )
        return SubwordDropout(pieces, scores, is_normal, rate)

    source = dropout(tokenizers.source)
    is_joint = tokenizers.target is tokenizers.source
    sides = (source, source if is_joint else dropout(tokenizers.target))
    return Resegmenter(sides, seed=config.training.seed, longest=config.filters.max_length)

"""Configuration and prepared data -> what makes updates; and what fine-tuning begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nmt.checkpoint.model_folder import ModelBundle, load_folder_config
from nmt.checkpoint.run import machine
from nmt.config.data import BatchConfig
from nmt.config.run import RunConfig
from nmt.data.augment import Augmenter
from nmt.data.corpus import corpus_names
from nmt.data.findings import KEPT, READ
from nmt.data.loader import Loader
from nmt.data.mixing import build_stages, tempered_weights
from nmt.data.prepared import PreparedData
from nmt.data.resegment import InTurn, Resegment, Resegmenter
from nmt.device import own_cores
from nmt.device.compilation import Compilation, compile_layers, pays
from nmt.device.device import choose_device, seed_rank
from nmt.device.distributed import Processes
from nmt.device.precision import choose_precision
from nmt.errors import ConfigError
from nmt.metrics.metric import METRICS
from nmt.model.transformer import build_model, count_parameters
from nmt.text.subword_dropout import SubwordDropout
from nmt.text.tokenizer import Tokenizer, load_tokenizers
from nmt.training.losses import choose_form
from nmt.training.objectives import build_objective
from nmt.training.optimizer import freeze
from nmt.training.optimizers import build_optimizer
from nmt.training.update import Updater, UpdateStats

Rows = npt.NDArray[np.int64]
# Keys of the model section that change no weight's meaning.
_REGULARISATION = ("preset", "dropout", "attention_dropout", "activation_dropout", "word_dropout")
_ANY_SIZE = 8
_COUNTED_AT_ONCE = 1 << 20
_MAX_WORKERS = 4


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """What one process trains with, before its first update."""

    config: RunConfig
    batch: BatchConfig
    """Its batch section, with numbers in place of ``auto``."""
    data: PreparedData
    updater: Updater
    """Of a model with new weights."""
    loader: Loader
    compilation: Compilation
    """Whether the layers are compiled."""

    @classmethod
    def build(
        cls,
        config: RunConfig,
        batch: BatchConfig,
        data: PreparedData,
        processes: Processes | None = None,
    ) -> TrainingSetup:
        """Make everything, and seed the random generators.

        Args:
            config: The experiment.
            batch: Its batch section, with numbers.
            data: Its prepared data.
            processes: Those that train together.

        Raises:
            NmtError: Data, configuration or device do not allow it; see the message.
        """
        training, max_length = config.training, config.filters.max_length
        processes = processes or Processes()
        device = choose_device(training.device)
        updater = _updater(config, data, device, processes)
        weights = [corpus.weight for corpus in config.data.train]
        sizes = np.bincount(data.train.corpus, minlength=len(weights)).tolist()
        metric = training.validation.metric
        is_error = metric == "loss" or METRICS[metric].lower_is_better
        loader = Loader(
            data.train,
            batch,
            weights=tempered_weights(weights, sizes, config.data.temperature),
            stages=build_stages(config.data, sizes, lower_is_better=is_error),
            seed=training.seed,
            rank=processes.rank,
            num_ranks=processes.size,
            resegment=_resegment(config, data),
            source_bos=config.model.source_bos,
            num_workers=_num_workers() if updater.pace.uses_threads else 0,
            longest=max_length + 1 + config.model.source_bos
            if updater.precision.repeats_sizes
            else None,
        )
        seed_rank(training.seed, processes.rank)
        num_tokens = int(batch.max_tokens or 0) * batch.accumulate
        compilation = compile_layers(
            training.compile,
            device,
            switch=updater.model.compile_layers,
            warm_up=lambda: updater.warm_up(loader.batch(loader.plan(0)[0])),
            is_worth_it=pays(
                training.max_steps, sum(p.numel() for p in updater.model.parameters()), num_tokens
            ),
        )
        return cls(config, batch, data, updater, loader, compilation)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.updater.model.output_weight.device

    def record(self) -> dict[str, Any]:
        """Return what a checkpoint says of machine and batches, compared when it is resumed."""
        precision, is_compiled = self.updater.precision.name, self.compilation.is_on
        return {
            "machine": machine(self.device) | {"precision": precision, "compiled": is_compiled},
            "batch": self.batch.model_dump(mode="json"),
        }

    def facts(self) -> dict[str, Any]:
        """Return what a start records: what trains, on what, by which schedule, on which data."""
        training, schedule = self.config.training, self.config.training.schedule
        counts = self.data.manifest.counts
        dropped: Counter[str] = Counter()
        for name in corpus_names(self.config.data.train):
            reasons = counts.get(name, {})
            dropped += Counter({k: n for k, n in reasons.items() if k not in (READ, KEPT)})
        share = schedule.warmup and f"{schedule.warmup:.2%} of the updates"
        rise = f"{share or f'{schedule.warmup_steps:,} updates'} of warm-up to {schedule.peak_lr:g}"
        return {
            "device": str(self.device),
            "precision": self.updater.precision.name,
            "threads": torch.get_num_threads(),
            "processes": self.updater.processes.size,
            "parameters": sum(count_parameters(self.updater.model).values()),
            "schedule": f"{schedule.shape}: {rise}",
            "metric": training.validation.metric,
            "pairs": len(self.data.train),
            "dropped": dict(dropped.most_common()),
            "augmented": self._augmented() or None,
        }

    def _augmented(self) -> dict[str, int]:
        """Return how many pairs get each kind of noise in the first epoch."""
        augmenter, counts = augmenter_of(self.config, self.data), Counter[str]()
        if augmenter is None:
            return {}
        num_pairs = len(self.data.train)
        for start in range(0, num_pairs, _COUNTED_AT_ONCE):
            rows = np.arange(start, min(start + _COUNTED_AT_ONCE, num_pairs))
            drawn = augmenter.drawn(0, rows)
            counts.update({kind: int(own.sum()) for kind, own in drawn.items()})
        return dict(counts)

    def describe(self) -> str:
        """Return in a line what trains, on what, and how large batches are if that was measured."""
        sizes, size = count_parameters(self.updater.model), self.updater.processes.size
        parts = ", ".join(f"{name} {number:,}" for name, number in sizes.items())
        remark, batch = self.compilation.remark, ""
        if self.config.batch.max_tokens == "auto":
            batch = f"; batches of {self.batch.max_tokens:,} tokens fit, "
            batch += f"{self.batch.accumulate} to an update"
        return (
            f"{sum(sizes.values()):,} parameters ({parts}), {len(self.data.train):,} pairs, "
            f"{self.updater.precision.name} on {self.device}, {torch.get_num_threads()} threads"
            + (f" in each of {size} processes" if size > 1 else "")
            + (f", {remark}" if remark else "")
            + batch
        )

    def lengths(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return source and target tokens of each pair, special ones included."""
        return self.loader.lengths(rows)

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


def _updater(
    config: RunConfig, data: PreparedData, device: torch.device, processes: Processes
) -> Updater:
    training = config.training
    sizes = data.manifest.source_vocab_size, data.manifest.target_vocab_size
    torch.manual_seed(training.seed)
    model = build_model(config.model, *sizes).to(device)
    model.recompute = training.activation_checkpointing
    freeze(model, training.freeze)
    precision = choose_precision(training.precision, device, bf16_weights=training.bf16_weights)
    optimizer = build_optimizer(
        model, training.optimizer, precision.weight_dtype, ema_decay=training.ema_decay
    )
    form = choose_form(precision.dtype, device, sizes[1])
    return Updater(
        model,
        optimizer,
        precision,
        build_objective(training, form),
        clip_norm=training.optimizer.clip_norm,
        processes=processes,
    )


def _num_workers() -> int:
    """Half of the cores: the others give the device its work and write checkpoints."""
    return max(1, min(_MAX_WORKERS, own_cores() // 2))


def _resegment(config: RunConfig, data: PreparedData) -> Resegment | None:
    """Return what draws noise and subwords of the stored text again in each epoch, if any."""
    augmenter, rate = augmenter_of(config, data), config.batch.bpe_dropout
    changes: list[Resegment] = [augmenter] if augmenter else []
    changes += [_resegmenter(rate, config, data)] if rate else []
    return InTurn(*changes) if len(changes) > 1 else next(iter(changes), None)


def augmenter_of(config: RunConfig, data: PreparedData) -> Augmenter | None:
    """Return what gives training pairs noise; None if no corpus asks for it."""
    rates = [corpus.augment.rates for corpus in config.data.train]
    if not any(rates):
        return None
    return Augmenter(
        load_tokenizers(data.tokenizer_dir),
        np.searchsorted(data.train.corpus, np.arange(len(rates)), side="right"),
        rates,
        seed=config.training.seed,
        longest=config.filters.max_length,
    )


def _resegmenter(rate: float, config: RunConfig, data: PreparedData) -> Resegmenter:
    tokenizers = load_tokenizers(data.tokenizer_dir)

    def dropout(tokenizer: Tokenizer) -> SubwordDropout:
        pieces, scores, is_normal = zip(*tokenizer.pieces(), strict=True)
        # The n-th merge has the score -n; other kinds of vocabulary have probabilities.
        if any(score % 1 for score in scores):
            raise ConfigError(
                f"batch.bpe_dropout needs a BPE vocabulary, and {data.tokenizer_dir} holds "
                "another.",
                fix="Set batch.bpe_dropout to 0.",
            )
        return SubwordDropout(pieces, scores, is_normal, rate)

    source = dropout(tokenizers.source)
    is_joint = tokenizers.target is tokenizers.source
    sides = (source, source if is_joint else dropout(tokenizers.target))
    return Resegmenter(sides, seed=config.training.seed, longest=config.filters.max_length)


def check_start(config: RunConfig) -> None:
    """Refuse a run that could not begin, before its data are prepared.

    Raises:
        ConfigError: ``training.start_from`` has another model, or ``training.freeze`` names no part
            of this one.
        DeviceError: There is no such device as ``training.device``.
    """
    choose_device(config.training.device)
    folder = config.training.start_from
    if folder is not None and (folder / "config.yaml").is_file():
        _check_shape(config, load_folder_config(folder))
    if not config.training.freeze:
        return
    with torch.device("meta"):  # names alone
        freeze(build_model(config.model, _ANY_SIZE, _ANY_SIZE), config.training.freeze)


def _check_shape(config: RunConfig, start: RunConfig) -> None:
    was, now = (c.model.model_dump() for c in (start, config))
    differing = [
        f"model.{key}: {was[key]} there, {now[key]} here"
        for key in now
        if key not in _REGULARISATION and was[key] != now[key]
    ]
    if differing:
        folder = config.training.start_from
        raise ConfigError(
            f"{folder} (training.start_from) has another model:\n  " + "\n  ".join(differing),
            fix=f"Copy the model section of {folder}/config.yaml.",
        )


def start_notes(config: RunConfig, start: ModelBundle) -> Iterator[str]:
    """Yield what may surprise about a run that begins with the weights of ``start``.

    Raises:
        ConfigError: ``start`` has another model.
    """
    _check_shape(config, start.config)
    folder = config.training.start_from
    was, now = ((c.source_language, c.target_language) for c in (start.config, config))
    if was != now:
        languages = f"from {was[0]} to {was[1]}, this run is from {now[0]} to {now[1]}"
        yield f"{folder} was trained {languages}"
    size = start.tokenizers.target.vocab_size
    if "tokenizer" in config.model_fields_set and config.tokenizer.vocab_sizes[1] != size:
        yield (
            f"the vocabulary is that of {folder} ({size:,} entries): the tokenizer section changes "
            "nothing"
        )

"""What looks wrong about a training before it begins. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from nmt.config.run import RunConfig, usual_vocab_size
from nmt.data.corpus import corpus_names
from nmt.data.prepare_report import KEPT, PrepareReport
from nmt.errors import DataError
from nmt.training.schedule import build_schedule

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


def advise_on(config: RunConfig) -> Iterator[str]:
    """Yield what will disappoint by the configuration, and by the data if they are prepared."""
    yield from advise(config, Plan.estimate(config))


def advise(config: RunConfig, plan: Plan) -> Iterator[str]:
    """Yield what will disappoint, and what to set instead."""
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
    if config.tokenizer.kind in ("bpe", "unigram") and config.training.start_from is None:
        yield from _about_vocabulary(config, num_pairs, plan.report)


def _about_warmup(config: RunConfig, total: int) -> Iterator[str]:
    schedule = config.training.schedule
    rate = build_schedule(schedule, model_dim=config.model.model_dim, total_steps=total)
    warmup = schedule.warmup_updates(total)
    advice = "try training.schedule.warmup 0.06, a share of the run"
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
    return max(counts, default=0.0) / batch.accumulate or None

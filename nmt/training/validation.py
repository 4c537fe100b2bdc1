"""A model and held-out pairs -> loss and scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from nmt.data.batch import Batch, collate
from nmt.data.batching import plan_batches
from nmt.data.store import ParallelStore
from nmt.engine.distributed import Processes
from nmt.metrics.metric import as_quality
from nmt.training.report import ValidationReport
from nmt.training.signals import SharedStop
from nmt.training.update import Updater

REPORTED_METRICS = ("bleu", "chrf")
"""What is computed of decoded text, beside the metric that names the best checkpoint."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a validation found."""

    loss: float
    """Cross-entropy of the reference per token, without smoothing, in nats."""
    text: Mapping[str, float] = field(default_factory=dict)
    """Scores of the decoded translations by metric; none without a text."""
    bleu_tokenizer: str | None = None
    """What BLEU's words were found with; None where there is no BLEU."""
    samples: tuple[tuple[str, str, str], ...] = ()
    """A few of (source, translation, reference)."""

    @property
    def perplexity(self) -> float:
        """exp(loss), or a very large number where that is beyond any float."""
        return math.exp(min(self.loss, 700))

    def value(self, metric: str) -> float:
        """Return the score by ``metric``, higher is better; by the loss if there is no text."""
        if metric == "loss" or not self.text:
            return -self.loss
        return as_quality(self.text, metric)

    def report(self, step: int, epoch: int, seconds: float) -> ValidationReport:
        """Tell of the validation at ``step``, which took ``seconds``."""
        return ValidationReport(
            step=step,
            epoch=epoch,
            loss=self.loss,
            perplexity=self.perplexity,
            scores=self.text or dict.fromkeys(REPORTED_METRICS),
            bleu_tokenizer=self.bleu_tokenizer,
            seconds=seconds,
            samples=self.samples,
        )


@dataclass(frozen=True, slots=True)
class TextScores:
    """Scores of decoded text."""

    scores: Mapping[str, float]
    """By metric."""
    bleu_tokenizer: str
    """What BLEU's words were found with."""
    samples: tuple[tuple[str, str, str], ...]


class TextValidator(Protocol):
    """Translates the validation set with the model as it is, and scores the text."""

    def __call__(self) -> TextScores:
        """Return the scores."""
        ...


class Validator:
    """Measures one model on one validation set.

    Args:
        updater: Computes losses as training does.
        store: The held-out pairs.
        max_tokens: Tokens in a batch.
        text_validator: Decodes and scores; None leaves BLEU and chrF out.
        stop: Heeded between batches.
    """

    def __init__(
        self,
        updater: Updater,
        store: ParallelStore,
        *,
        max_tokens: int,
        text_validator: TextValidator | None,
        stop: SharedStop,
    ) -> None:
        self._updater = updater
        self._text_validator = text_validator
        self._stop = stop
        self._batches = _fixed_batches(store, max_tokens, updater.processes)

    def __call__(self) -> Scores:
        """Return loss and scores of the weights to be used. Draws no random numbers.

        Raises:
            Interrupted: It was given up, in all processes.
        """
        with self._updater.optimizer.eval_weights():
            return self._measure()

    def _measure(self) -> Scores:
        model = self._updater.model
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            loss_sum, tokens = map(sum, zip(*self._stop.gather(self._sum_loss), strict=True))
            text = self._text_validator() if self._text_validator else None
        model.train(was_training)
        loss = loss_sum / max(tokens, 1)
        if text is None:
            return Scores(loss)
        return Scores(loss, text.scores, text.bleu_tokenizer, text.samples)

    def _sum_loss(self) -> tuple[float, int]:
        """Return loss and tokens of the batches of this process."""
        tokens, device = 0, self._updater.model.output_weight.device
        total = torch.zeros((), dtype=torch.float64, device=device)
        for batch in self._batches:
            self._stop.check()
            loss = self._updater.validation_loss(batch.to(device))
            total += loss.loss_sum
            tokens += loss.num_tokens
        return float(total), tokens


def _fixed_batches(store: ParallelStore, max_tokens: int, processes: Processes) -> Sequence[Batch]:
    """Return the part of this process."""
    lengths = (store.source_lengths + 1, store.target_lengths + 1)
    longest = int(np.add(*lengths).max(initial=0))
    plan = plan_batches(*lengths, max_tokens=max(max_tokens, longest), noise=0, seed=0, epoch=0)
    return [collate(store, rows) for rows in plan[processes.rank :: processes.size]]

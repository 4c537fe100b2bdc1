"""A model and held-out pairs -> loss and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch

from nmt.config.decoding import DecodingConfig
from nmt.data.batch import Batch, collate
from nmt.data.batching import plan_batches
from nmt.data.store import ParallelStore
from nmt.engine.distributed import Processes, interleave
from nmt.metrics.metric import MetricOptions, Scorer, as_quality
from nmt.metrics.sacrebleu import bleu_tokenizer
from nmt.runtime.torch_engine import TorchEngine
from nmt.text.tokenizer import load_tokenizers
from nmt.training.report import ValidationReport
from nmt.training.setup import TrainingSetup
from nmt.training.signals import SharedStop
from nmt.translation.translator import Translator

REPORTED_METRICS = ("bleu", "chrf")
"""What is computed of decoded text, beside the metric that names the best checkpoint."""
_NUM_SAMPLES = 3


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


def decoding_scores(
    setup: TrainingSetup,
    decoding: DecodingConfig,
    *,
    max_length: int,
    target_language: str,
    stop: SharedStop,
) -> Callable[[], Mapping[str, Any]] | None:
    """Return what translates the validation set, and scores that; None if the set has no text.

    Its results are fields of `Scores`.

    Args:
        setup: What is trained; processes share the work.
        decoding: How to search, but for the beam.
        max_length: Most tokens of a segment.
        target_language: Chooses BLEU's tokenizer, as in `nmt evaluate`.
        stop: Heeded between batches.
    """
    config, processes = setup.training.validation, setup.updater.processes
    source = setup.data.valid_source[: config.max_sentences]
    reference = setup.data.valid_target[: config.max_sentences]
    if not source:
        return None
    translator = Translator(
        TorchEngine(setup.updater.model),
        load_tokenizers(setup.data.tokenizer_dir),
        decoding.plain(config.beam_size),
        max_length=max_length,
        check=stop.check,
    )
    tokenizer = bleu_tokenizer(MetricOptions(target_language=target_language))
    options = MetricOptions(tokenize=tokenizer, target_language=target_language)
    names = dict.fromkeys((*REPORTED_METRICS, config.metric))
    scorers = [Scorer(name, [reference], options) for name in names if name != "loss"]

    def translate() -> list[str]:
        own = source[processes.rank :: processes.size]
        return [result.text for result in translator.translate(own)]

    def score() -> Mapping[str, Any]:
        hypotheses = interleave(stop.gather(translate))
        samples = zip(source, hypotheses, reference, strict=True)
        return {
            "text": {scorer.name: scorer.score(hypotheses).value for scorer in scorers},
            "bleu_tokenizer": tokenizer,
            "samples": tuple(islice(samples, _NUM_SAMPLES)),
        }

    return score


class Validator:
    """Measures a model on its validation set.

    Args:
        setup: What is trained; losses are computed as training does.
        decoding: Translates and scores: see `decoding_scores`. None leaves BLEU and chrF out.
        stop: Heeded between batches.
    """

    def __init__(
        self,
        setup: TrainingSetup,
        decoding: Callable[[], Mapping[str, Any]] | None,
        stop: SharedStop,
    ) -> None:
        self._updater, self._decoding, self._stop = setup.updater, decoding, stop
        max_tokens = int(setup.batch.max_tokens)
        self._batches = _fixed_batches(setup.data.valid, max_tokens, setup.updater.processes)

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
            text = self._decoding() if self._decoding else {}
        model.train(was_training)
        return Scores(loss_sum / max(tokens, 1), **text)

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

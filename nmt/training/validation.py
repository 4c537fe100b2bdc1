"""A model and held-out pairs -> loss and scores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch

from nmt.config.decoding import DecodingConfig
from nmt.data.batch import Batch
from nmt.data.loader import Loader, plan_batches
from nmt.device.distributed import Processes, interleave
from nmt.files.progress import progress_bar
from nmt.inference.options import TranslationOptions
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import Translator
from nmt.metrics.metric import METRICS, MetricOptions, Scorer, as_quality
from nmt.metrics.sacrebleu import bleu_tokenizer
from nmt.text.tokenizer import load_tokenizers
from nmt.training.report import Event
from nmt.training.setup import TrainingSetup
from nmt.training.signals import SharedStop

T = TypeVar("T")
REPORTED_METRICS = ("bleu", "chrf")
"""What is computed of decoded text, beside the metric that names the best checkpoint."""
_LONGEST = 2.0, 5
"""Factor and offset of outputs: a model that has not learned to end must not be waited for."""
_USUAL = 1.0, 3
_PARTS, _LINES = 6, 40
"""Batches and lines that an estimate looks at."""
_READABLE = 1e6  # perplexities above are shown by their magnitude


@dataclass(frozen=True, slots=True)
class Scores:
    """What a validation found."""

    loss: float
    """Cross-entropy of the reference per token, without smoothing, in nats."""
    text: Mapping[str, float] = field(default_factory=dict)
    """Scores of the decoded translations by metric; none without a text."""
    bleu_tokenizer: str | None = None
    """What BLEU's words were found with; scores by different ones cannot be compared."""
    samples: tuple[tuple[str, str, str], ...] = ()
    """(source, translation, reference) of the best, the median and the worst sentence by chrF."""
    sample_chrf: tuple[float, ...] = ()
    """The chrF of each."""
    objective: float | None = None
    """What training minimises, per token, without dropout: to be compared with its loss."""
    alarms: int | None = None
    """Translations that look degenerate to the guard's widest limits; None without a text."""

    @property
    def perplexity(self) -> float:
        """exp(loss), or a very large number where that is beyond any float."""
        return math.exp(min(self.loss, 700))

    def value(self, metric: str) -> float:
        """Return the score by ``metric``, higher is better; by the loss if there is no text."""
        if metric == "loss" or not self.text:
            return -self.loss
        return as_quality(metric, self.text[metric])

    def __str__(self) -> str:
        # The perplexity of a model that has gone astray may have hundreds of digits.
        shown = f"{self.perplexity:{'.2f' if self.perplexity < _READABLE else '.3g'}}"
        text = f"perplexity {shown}"
        for metric, value in self.text.items():
            is_other = metric == "bleu" and self.bleu_tokenizer not in (None, "13a")
            label = f" (tokenizer {self.bleu_tokenizer})" if is_other else ""
            text += f", {METRICS[metric].label} {value:.2f}{label}"
        return text

    def event(self, step: int, epoch: int, seconds: float) -> Event:
        """Report the validation at ``step``, which took ``seconds``."""
        values = {
            "epoch": epoch,
            "loss": self.loss,
            "perplexity": self.perplexity,
            "bleu_tokenizer": self.bleu_tokenizer,
            "seconds": seconds,
            "objective": self.objective,
            "alarms": self.alarms,
            "samples": self.samples,
            "sample_chrf": self.sample_chrf,
            **(self.text or dict.fromkeys(REPORTED_METRICS)),
        }
        text = f"validation at step {step:,}: {self} ({seconds:.1f} s)"
        return Event(step, text, "validation", values)


class Validator:
    """Measures a model on its validation set.

    Losses are computed as training does. The text of the set, if it has one, is translated and
    scored by `REPORTED_METRICS`, with BLEU's tokenizer chosen as in `nmt evaluate`. On a CPU the
    saved float32 weights translate: 16-bit kernels would be made for each of a search's many sizes.

    Args:
        setup: What is trained; processes share the work.
        stop: Heeded between batches.
    """

    def __init__(self, setup: TrainingSetup, stop: SharedStop) -> None:
        self._updater, self._stop, self._processes = setup.updater, stop, setup.updater.processes
        config = setup.config
        loader = replace(setup.loader, store=setup.data.valid, resegment=None)
        self._batches = _fixed_batches(loader, self._processes)
        validation, language = config.training.validation, config.target_language
        self._tag = config.data.valid.tag
        self._source = setup.data.valid_source[: validation.max_sentences]
        self._reference = setup.data.valid_target[: validation.max_sentences]
        if self._source:
            self._tokenizer = bleu_tokenizer(MetricOptions(target_language=language))
            tokenizers = load_tokenizers(setup.data.tokenizer_dir)
            plain = config.decoding.plain(validation.beam_size)
            options = TranslationOptions(
                decoding=bounded(plain, *_LONGEST),
                max_length=config.filters.max_length,
                retry=False,
                tag=self._tag,
                progress=lambda _: stop.check(),
            )
            model = setup.updater.model
            self._translator = Translator(TorchEngine(model, end_loops=True), tokenizers, options)
            usual = replace(options, decoding=bounded(plain, *_USUAL))
            self._estimator = Translator(TorchEngine(model), tokenizers, usual)
            metric = MetricOptions(tokenize=self._tokenizer, target_language=language)
            names = dict.fromkeys((*REPORTED_METRICS, validation.metric))
            self._scorers = [Scorer(n, [self._reference], metric) for n in names if n != "loss"]

    def __call__(self) -> Scores:
        """Return loss and scores of the weights to be used. Draws no random numbers.

        Raises:
            Interrupted: It was given up, in all processes.
        """
        model = self._updater.model
        was_training = model.training
        with self._updater.optimizer.eval_weights():
            model.eval()
            with torch.inference_mode():
                parts = self._stop.gather(self._sum_losses)
                loss_sum, objective, tokens = map(sum, zip(*parts, strict=True))
                text = self._text_scores() if self._source else {}
            model.train(was_training)
        count = max(tokens, 1)
        return Scores(loss_sum / count, objective=objective / count, **text)

    def estimate_seconds(self, most_seconds: float) -> float:
        """Return about how long a validation of a trained model takes, from parts of one.

        Outputs end near the length of their sources, as this model's own may know no end. The parts
        are smaller where they would take longer than about ``most_seconds``.

        Raises:
            Interrupted: It was given up, in all processes.
        """
        own, most = self._source[self._processes.rank :: self._processes.size], most_seconds / 2

        def losses(number: int) -> int:
            part = copy(self)
            part._source, part._batches = [], _spread(self._batches, number)
            part()
            return len(part._batches)

        def translate(number: int) -> int:
            few = _spread(own, number)
            self._stop.gather(lambda: bool(self._estimator.translate(few)))
            return len(few)

        share = self._processes.share
        seconds = _warm_seconds(losses, _PARTS, most, share) * len(self._batches)
        if self._source:
            model = self._updater.model
            was_training = model.training
            with torch.inference_mode():
                seconds += _warm_seconds(translate, _LINES, most, share) * len(own)
            model.train(was_training)
        return seconds

    def _text_scores(self) -> Mapping[str, Any]:
        """Translate the set and score that; return fields of `Scores`."""
        rank, size = self._processes.rank, self._processes.size
        own = self._source[rank::size]
        optimizer, repeats = self._updater.optimizer, self._updater.precision.repeats_sizes
        lent = optimizer.parameters.lend(optimizer.weights()) if repeats else nullcontext()
        options: dict[str, Any] = {"total": len(own), "leave": False, "shown": not rank}
        with lent, progress_bar("validating: translation", unit="lines", **options) as bar:

            def progress(count: int) -> None:
                self._stop.check()
                bar.update(count)

            translate = self._translator.with_options(progress=progress).translate
            parts = self._stop.gather(lambda: [(r.text, bool(r.alarms)) for r in translate(own)])
        hypotheses, alarms = zip(*interleave(parts), strict=True)
        tables = {scorer.name: scorer.statistics(hypotheses) for scorer in self._scorers}
        chrf = next(scorer for scorer in self._scorers if scorer.name == "chrf")
        of_sentences = chrf.sentence_scores(tables["chrf"])
        chosen = choose_samples(of_sentences)
        samples = list(zip(self._source, hypotheses, self._reference, strict=True))
        return {
            "text": {each.name: each.total(tables[each.name]).value for each in self._scorers},
            "bleu_tokenizer": self._tokenizer,
            "samples": tuple(samples[row] for row in chosen),
            "sample_chrf": tuple(of_sentences[row] for row in chosen),
            "alarms": sum(alarms),
        }

    def _sum_losses(self) -> tuple[float, float, int]:
        """Return loss, objective and tokens of the batches of this process."""
        tokens, device = 0, self._updater.model.output_weight.device
        totals = torch.zeros(2, dtype=torch.float64, device=device)
        options: dict[str, Any] = {"total": len(self._batches), "leave": False}
        shown = not self._processes.rank
        with progress_bar("validating: loss", unit="batches", shown=shown, **options) as bar:
            for batch in self._batches:
                self._stop.check()
                on_device = batch.to(device)
                loss = self._updater.validation_loss(on_device)
                objective = self._updater.objective_loss(on_device)
                totals += torch.stack((loss.loss_sum, objective.loss_sum))
                tokens += loss.num_tokens
                bar.update()
        loss_sum, objective_sum = totals.tolist()
        return loss_sum, objective_sum, tokens


def bounded(options: DecodingConfig, factor: float, offset: int) -> DecodingConfig:
    """Return options whose outputs are no longer than factor x source + offset."""
    factor, offset = (
        min(factor, options.max_length_factor),
        min(offset, options.max_length_offset),
    )
    return options.model_copy(update={"max_length_factor": factor, "max_length_offset": offset})


def _spread(items: Sequence[T], number: int) -> Sequence[T]:
    """Return about so many, evenly spread."""
    return items[:: -(-len(items) // number) or 1]


def _warm_seconds(
    work: Callable[[int], int], number: int, most: float, share: Callable[[bool], bool]
) -> float:
    """Return how long work takes by item the second time: the first has kernels to find.

    Begins with a few items, twice, and goes on with ``number`` only if that takes less than
    ``most``.

    Args:
        work: Does about so many items; returns how many.
        number: The most.
        most: Seconds.
        share: Lets all processes decide alike.
    """
    seconds, end = 0.0, time.perf_counter() + most
    few = -(-number // _PARTS)
    for size in (few, few, number, number):
        if share(size > few and time.perf_counter() + size * seconds > end):
            break
        begin = time.perf_counter()
        done = work(size)
        seconds = (time.perf_counter() - begin) / max(done, 1)
    return seconds


def choose_samples(scores: Sequence[float]) -> list[int]:
    """Return which sentence has the best, the median and the worst score, the first of equals.

    >>> choose_samples([3.0, 9.0, 1.0, 9.0, 4.0]), choose_samples([2.0])
    ([1, 4, 2], [0])
    """
    ranked = sorted(range(len(scores)), key=lambda row: -scores[row])
    return list(dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1])))


def _fixed_batches(loader: Loader, processes: Processes) -> Sequence[Batch]:
    """Return the part of this process."""
    lengths, most = loader.lengths(slice(None)), loader.config.max_tokens
    if most is not None:
        most = max(int(most), int(np.add(*lengths).max(initial=0)))
    pairs = loader.config.max_sentences
    plan = plan_batches(*lengths, max_tokens=most, max_sentences=pairs, noise=0, seed=0, epoch=0)
    return [loader.batch(rows) for rows in plan[processes.rank :: processes.size]]

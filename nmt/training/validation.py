"""Validation during training: loss, BLEU and chrF on one or several validation sets."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any, Literal, TypeVar

import torch

from nmt.config.data import Direction
from nmt.data.loader import Batch, Loader
from nmt.data.plan import epoch_random, plan_batches
from nmt.data.store import Rows
from nmt.device.device import precise_dtype
from nmt.device.distributed import Processes, interleave
from nmt.errors import DataError
from nmt.files.progress import progress_bar
from nmt.inference.torch_engine import TorchEngine
from nmt.inference.translator import TranslationOptions, Translator
from nmt.metrics.metric import (
    REPORTED_METRICS,
    MetricOptions,
    MetricScorer,
    References,
    as_quality,
    default_metrics,
    format_score,
    label_of,
)
from nmt.metrics.program import score_by_program
from nmt.metrics.sacrebleu import bleu_tokenizer
from nmt.metrics.scoring import Resampling, confidence_interval, resample_scores
from nmt.model.transformer import evaluating
from nmt.text.tokenizer import Tokenizers
from nmt.training.events import TrainingEvent
from nmt.training.processes import StopSignal
from nmt.training.update import Updater

T = TypeVar("T")
logger = logging.getLogger(__name__)

COMMAND = "command"  # Name of the score of `training.validation.command`.
_NO_SCORER = ("loss", COMMAND)
_RESAMPLING = Resampling(count=200)
_FEWEST_LINES = 8  # fewer translations are not judged
_SHOWN = 60  # characters of a translation in a message
_READABLE = 1e6  # larger perplexities are shown in scientific notation


@dataclass(frozen=True)
class Scores:
    """Result of a validation: the scores of a set, or the combined scores of several sets."""

    loss: float  # Cross-entropy of the first references per token, without smoothing, in nats.
    # Scores of the translations, by metric; empty if the set has no text.
    text: Mapping[str, float] = field(default_factory=dict)
    # Tokenizer of BLEU. Scores with different tokenizers are not comparable.
    bleu_tokenizer: str | None = None
    # (source, translation, references) of the best, the median and the worst sentence by chrF.
    samples: tuple[tuple[str, str, str], ...] = ()
    sample_chrf: tuple[float, ...] = ()  # chrF of each sample.
    # Training loss per token, without dropout, for comparison with the loss of the updates.
    objective: float = math.nan
    # Number of suspicious translations; None if the set has no text.
    alarms: int | None = None
    # Why the scores of the translations say nothing: most of them are alike, or the scores are no
    # better than by chance. Empty if they say something, None if the set has no text.
    problem: str | None = None
    # Scores of each set by name, if there are several; then the scores above are those that choose
    # the best checkpoint.
    sets: Mapping[str, Scores] = field(default_factory=dict)
    # ``mean`` or ``minimum``, if several sets choose; then there are no samples above.
    combination: str | None = None

    @property
    def perplexity(self) -> float:
        """exp(loss), capped at exp(700) so that it fits a float."""
        return math.exp(min(self.loss, 700))

    def value(self, metric: str) -> float:
        """Return the score by ``metric``, or the negative loss without text. Higher is better."""
        if metric == "loss" or not self.text:
            return -self.loss
        return as_quality(metric, self.text[metric])

    def __str__(self) -> str:
        if self.sets:
            sets = dict(self.sets)
            if self.combination:
                sets = {self.combination: replace(self, sets={}), **self.sets}
            return "; ".join(f"{name}: {scores}" for name, scores in sets.items())
        # The perplexity of a diverged model may have hundreds of digits.
        style = ".2f" if self.perplexity < _READABLE else ".3g"
        description = f"perplexity {self.perplexity:{style}}"
        for metric, value in self.text.items():
            score = "failed" if math.isnan(value) else format_score(metric, value)
            description += f", {label_of(metric)} {score}"
            # The usual tokenizer is not worth a remark.
            if metric == "bleu" and self.bleu_tokenizer not in (None, "13a"):
                description += f" (tokenizer {self.bleu_tokenizer})"
        return description

    def event(self, step: int, epoch: int, seconds: float) -> TrainingEvent:
        """Return the event of this validation, which took ``seconds``, for the reporters."""
        values = self._values(epoch=epoch, perplexity=self.perplexity, seconds=seconds)
        if self.sets:
            values["sets"] = {
                name: scores._values(perplexity=scores.perplexity)
                for name, scores in self.sets.items()
            }
        text = f"validation at step {step:,}: {self} ({seconds:.1f} s)"
        return TrainingEvent(step, text, "validation", values)

    def _values(self, **added: float) -> dict[str, Any]:
        """Return the values of a line of ``metrics.jsonl``, without those of the sets.

        The scores in `text` become values by the names of their metrics; null without text.
        """
        values = asdict(replace(self, sets={})) | added
        del values["sets"], values["combination"]
        text = values.pop("text") or dict.fromkeys(REPORTED_METRICS)
        return values | text


def combine(
    sets: Mapping[str, Scores], choosing: Sequence[str], choose_by: Literal["mean", "minimum"]
) -> Scores:
    """Return the scores that choose the best checkpoint, with the scores of each set.

    The combined score by each metric is the mean or the worst score of the sets that choose. It is
    NaN if one of these has no score.

    Args:
        sets: Scores of each set by name.
        choosing: Names of the sets that choose, at least one.
        choose_by: How to combine them, if there are several.

    >>> sets = {"de": Scores(2.0, {"bleu": 30.0}), "fr": Scores(1.0, {"bleu": 20.0})}
    >>> combine(sets, ["de", "fr"], "minimum").value("bleu")
    20.0
    """
    choosing_scores = [sets[name] for name in choosing]
    first_scores = choosing_scores[0]
    if len(choosing_scores) == 1:
        return replace(first_scores, sets=sets if len(sets) > 1 else {})

    def combined(metric: str, values: Sequence[float]) -> float:
        """Return the mean or the worst of ``values``, the scores of the sets by ``metric``."""
        if any(map(math.isnan, values)):
            return math.nan
        # A higher quality is better, for every metric; `as_quality` is its own inverse.
        qualities = [as_quality(metric, value) for value in values]
        quality = min(qualities)
        if choose_by == "mean":
            quality = fmean(qualities)
        return as_quality(metric, quality)

    text = {}
    for metric in first_scores.text:
        text[metric] = combined(metric, [scores.text[metric] for scores in choosing_scores])
    tokenizers = {scores.bleu_tokenizer for scores in choosing_scores}
    return Scores(
        loss=combined("loss", [scores.loss for scores in choosing_scores]),
        text=text,
        bleu_tokenizer=first_scores.bleu_tokenizer if len(tokenizers) == 1 else None,
        objective=combined("loss", [scores.objective for scores in choosing_scores]),
        alarms=sum(scores.alarms or 0 for scores in choosing_scores),
        # Each set must have one.
        problem=min((scores.problem or "" for scores in choosing_scores), key=len),
        sets=sets,
        combination=choose_by,
    )


@dataclass(frozen=True)
class HeldOutText:
    """The text of a validation set, and how to translate and score it."""

    sources: Sequence[str]
    references: References
    tokenizers: Tokenizers
    options: TranslationOptions
    language: str  # Language code of the references.
    # Metric that chooses the best checkpoint. `REPORTED_METRICS` are computed in addition.
    metric: str = "bleu"
    device: str = "cpu"  # Device of a neural metric.
    command: Sequence[str] = ()  # The user's program: see `training.validation.command`.
    # Factor and offset that limit the output length by the source length. A model that has not
    # learned to produce EOS must not delay training.
    longest: tuple[float, int] = (2.0, 5)

    def translator(self, engine: TorchEngine, progress: Callable[[int], object]) -> Translator:
        """Return a translator that calls ``progress`` with the number of translated sources."""
        decoding = self.options.decoding
        max_factor, max_offset = self.longest
        limits = {
            "max_length_factor": min(max_factor, decoding.max_length_factor),
            "max_length_offset": min(max_offset, decoding.max_length_offset),
        }
        limited_decoding = decoding.model_copy(update=limits)
        options = replace(self.options, decoding=limited_decoding, progress=progress)
        return Translator(engine, self.tokenizers, options)

    @cached_property
    def scorers(self) -> dict[str, MetricScorer]:
        """Metrics by name. The first access loads their models."""
        defaults = default_metrics([self.language])
        # If the metric that chooses is one of them, it comes first: False is less than True. A
        # metric that is not one of them comes last.
        names = sorted(defaults, key=lambda name: name != self.metric)
        if self.metric not in (*defaults, *_NO_SCORER):
            names.append(self.metric)
        scorers = [self._scorer(name, self.references) for name in names]
        return {scorer.name: scorer for scorer in scorers}

    def _scorer(self, metric: str, references: References) -> MetricScorer:
        options = MetricOptions(
            tokenize=self._bleu_tokenizer,
            target_language=self.language,
            source=self.sources,
            device=self.device,
        )
        return MetricScorer(metric, references, options)

    @cached_property
    def _bleu_tokenizer(self) -> str:
        return bleu_tokenizer(MetricOptions(target_language=self.language))

    def score(self, hypotheses: Sequence[str]) -> dict[str, Any]:
        """Return the fields of `Scores` that depend on the translations, by name, except `alarms`.

        BLEU uses the same tokenizer as `nmt evaluate`.
        """
        # Statistics of the sentences, by metric.
        tables = {name: scorer.statistics(hypotheses) for name, scorer in self.scorers.items()}
        scores = {}
        for name, table in tables.items():
            scores[name] = self.scorers[name].total(table).value
        if self.command:
            scores[COMMAND] = self.run_command(hypotheses)
        sentence_chrf = self.scorers["chrf"].sentence_scores(tables["chrf"])
        rows = choose_samples(sentence_chrf)
        references = map(" / ".join, zip(*self.references, strict=True))
        sentences = list(zip(self.sources, hypotheses, references, strict=True))
        return {
            "text": scores,
            "bleu_tokenizer": self._bleu_tokenizer,
            "samples": tuple(sentences[row] for row in rows),
            "sample_chrf": tuple(sentence_chrf[row] for row in rows),
            "problem": self.problem_of(hypotheses),
        }

    def problem_of(self, hypotheses: Sequence[str]) -> str:
        """Return why the scores of translations say nothing, for `Scores.problem`.

        A score is noise if its 95% interval over the sentences reaches down to the score against
        references of other sentences.
        """
        num_lines = len(hypotheses)
        if num_lines < _FEWEST_LINES:
            return ""
        text, count = Counter(hypotheses).most_common(1)[0]
        if count > num_lines / 2 and len({*self.references[0]}) > num_lines / 2:
            return f"{count:,} of {num_lines:,} translations are the same: {text[:_SHOWN]!r}"
        name, scorer = next(iter(self.scorers.items()))  # BLEU or chrF
        table = scorer.statistics(hypotheses)
        samples = resample_scores([table], [scorer.metric.score], _RESAMPLING)
        lowest = confidence_interval(samples[0], seed=_RESAMPLING.seed).low
        half = num_lines // 2
        shuffled = [[*lines[half:], *lines[:half]] for lines in self.references]
        by_chance = self._scorer(name, shuffled).score(hypotheses).value
        if lowest > by_chance:
            return ""
        score = format_score(name, scorer.total(table).value)
        chance = f"against references of other sentences it is {format_score(name, by_chance)}"
        return f"{label_of(name)} {score} is noise: {chance}"

    def run_command(self, hypotheses: Sequence[str], *, is_trial: bool = False) -> float:
        """Return the score by `command`; NaN, after a warning, if the program fails.

        Raises:
            DataError: The program fails in a trial.
        """
        texts = {"source": [self.sources], "hypothesis": [hypotheses], "reference": self.references}
        try:
            return score_by_program(self.command, texts)
        except DataError as error:
            if is_trial:
                raise
            logger.warning("the metric command has no score. %s", error.problem)
            return math.nan


@dataclass(frozen=True)
class ValidationSet:
    """A validation set, as one process needs it."""

    name: str
    direction: Direction  # Its languages.
    num_pairs: int
    batches: Sequence[Batch]  # Batches of this process: see `fixed_batches`.
    text: HeldOutText | None  # None if the set has no text or is not translated.
    is_choosing: bool = True  # Whether its scores choose the best checkpoint.

    def subset(self, num_batches: int, num_lines: int) -> ValidationSet:
        """Return a set with about this many batches and lines, at equal distances."""
        text = None
        if self.text is not None and num_lines:
            text = replace(
                self.text,
                sources=_spread(self.text.sources, num_lines),
                references=[_spread(lines, num_lines) for lines in self.text.references],
            )
        return replace(self, batches=_spread(self.batches, num_batches), text=text)

    def part(self, share: float) -> ValidationSet:
        """Return a set with this share of the batches and lines."""
        num_lines = 0
        if self.text is not None:
            num_lines = math.ceil(share * len(self.text.sources))
        return self.subset(math.ceil(share * len(self.batches)), num_lines)

    def sample(self, *, num_batches: int = 0, num_lines: int = 0) -> ValidationSet:
        """Return a smaller set for timing.

        Limits outputs to about the length of their sources, because an untrained model does not
        produce EOS.
        """
        sample = self.subset(num_batches, num_lines)
        text = sample.text
        if text is not None:
            # A factor and an offset; and no command, which may need all lines or a constant time.
            text = replace(text, longest=(1.0, 3), command=())
        # `combine` needs a set that chooses.
        return replace(sample, text=text, is_choosing=True)

    @property
    def size(self) -> int:
        """Number of batches of this process; without batches, number of lines of all processes."""
        if self.batches or self.text is None:
            return len(self.batches)
        return len(self.text.sources)


@dataclass(frozen=True)
class Validator:
    """Computes loss and scores on the validation sets; processes share the work.

    The loss is computed in the precision of training. On a CPU, translation uses float32 weights,
    because oneDNN would compile a 16-bit kernel for each of the many sizes of a search. On any
    device it uses float32 if frozen weights have 16 bits, because the trained weights have 32.
    """

    updater: Updater  # Updater of the model.
    sets: Sequence[ValidationSet]
    stop: StopSignal  # A signal interrupts the validation in all processes.
    choose_by: Literal["mean", "minimum"] = "mean"  # `training.validation.choose_by`
    end_loops: bool = True  # Whether to end outputs that repeat themselves.

    def __call__(self) -> Scores:
        """Return loss and scores of the weights that `ModelOptimizer.weights` returns.

        Draws no random numbers, so that validation does not change training.

        Raises:
            StoppedBySignal: A signal interrupted the validation, in all processes.
        """
        with (
            self.updater.optimizer.eval_weights(),
            evaluating(self.updater.model),
            torch.inference_mode(),
        ):
            sets = {held_out.name: self._scores(held_out) for held_out in self.sets}
        choosing = [held_out.name for held_out in self.sets if held_out.is_choosing]
        return combine(sets, choosing, self.choose_by)

    def _scores(self, held_out: ValidationSet) -> Scores:
        """Return loss and scores on one validation set, the same in all processes."""
        processes = self.updater.processes
        # One tuple for each process.
        sums = self.stop.gather(partial(self._sum_losses, held_out.batches), processes)
        loss_sum, objective_sum, num_tokens = map(sum, zip(*sums, strict=True))
        num_tokens = max(num_tokens, 1)  # without batches the sums are 0
        text_fields = dict[str, Any]()  # Fields of `Scores`.
        if held_out.text is not None:
            shares = self.stop.gather(partial(self._translate, held_out.text), processes)
            hypotheses, alarms = zip(*interleave(shares), strict=True)
            # The first process computes the scores, which may be slow. The others return nothing.
            score: Callable[[], dict[str, Any]] = dict
            if processes.rank == 0:
                score = partial(held_out.text.score, hypotheses)
            text_fields, *_ = self.stop.gather(score, processes)
            text_fields["alarms"] = sum(alarms)
        return Scores(loss_sum / num_tokens, objective=objective_sum / num_tokens, **text_fields)

    @cached_property
    def _engine(self) -> TorchEngine:
        return TorchEngine(self.updater.model, end_loops=self.end_loops)

    def _translate(self, text: HeldOutText) -> list[tuple[str, bool]]:
        """Return translations of the lines of this process, and whether each is suspicious."""
        processes = self.updater.processes
        optimizer = self.updater.optimizer
        sources = text.sources[processes.rank :: processes.size]
        # Weights in float32, if those of the model are not: see the class. `lend` also converts
        # frozen weights that another file contains.
        weights: Mapping[str, torch.Tensor] = {}
        if self.updater.precision.weight_dtype != torch.float32:
            weights = optimizer.weights()
        with (
            optimizer.parameters.lend(weights),
            self._progress("translation", "lines", len(sources)) as bar,
        ):
            results = text.translator(self._engine, bar.update).translate(sources)
        return [(result.text, bool(result.alarms)) for result in results]

    def _progress(self, what: str, unit: str, total: int) -> Any:
        shown = self.updater.processes.rank == 0
        text = f"validating: {what}"
        return progress_bar(text, unit=unit, total=total, leave=False, shown=shown)

    def _sum_losses(self, batches: Sequence[Batch]) -> tuple[float, float, int]:
        """Return summed cross-entropy, summed training loss and number of tokens of ``batches``."""
        device = self.updater.device
        num_tokens = 0
        sums = torch.zeros(2, dtype=precise_dtype(device), device=device)
        with self._progress("loss", "batches", len(batches)) as bar:
            for batch in batches:
                on_device = batch.to(device)
                loss = self.updater.validation_loss(on_device)
                objective = self.updater.objective_loss(on_device)
                sums += torch.stack((loss.loss_sum, objective.loss_sum))
                num_tokens += loss.num_tokens
                bar.update()
        loss_sum, objective_sum = sums.tolist()
        return loss_sum, objective_sum, num_tokens


def _spread(items: Sequence[T], count: int) -> Sequence[T]:
    """Return about ``count`` evenly spaced items."""
    if not count:
        return []
    step = max(math.ceil(len(items) / count), 1)
    return items[::step]


def choose_samples(scores: Sequence[float]) -> list[int]:
    """Return the indices of the best, median and worst score; of equal scores, the first index.

    >>> choose_samples([3.0, 9.0, 1.0, 9.0, 4.0]), choose_samples([2.0])
    ([1, 4, 2], [0])
    """
    ranked = sorted(range(len(scores)), key=lambda row: -scores[row])
    median = ranked[len(ranked) // 2]
    return list(dict.fromkeys([ranked[0], median, ranked[-1]]))


def fixed_batches(loader: Loader, processes: Processes, among: Rows) -> list[Batch]:
    """Return this process's share of a fixed set of batches.

    The shares of all processes together cover the rows ``among`` of the store.
    """
    source_lengths, target_lengths = loader.lengths(among)
    max_tokens = loader.config.max_tokens
    if max_tokens is not None:  # the limit must not drop the longest pair
        most_tokens = (source_lengths + target_lengths).max(initial=0)
        max_tokens = max(int(max_tokens), int(most_tokens))
    plan = plan_batches(
        source_lengths,
        target_lengths,
        max_tokens=max_tokens,
        max_sentences=loader.config.max_sentences,
        noise=0,
        random=epoch_random(0, 0),  # the same in all processes and at every start
    )
    # Each batch of the plan is an array of indices in `among`.
    share = plan[processes.rank :: processes.size]
    return [loader.batch(among[indices]) for indices in share]

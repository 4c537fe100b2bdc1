"""Validation during training: loss, BLEU and chrF on one or several validation sets."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np
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
from nmt.metrics.metric import MetricOptions, MetricScorer, as_quality, format_score, label_of
from nmt.metrics.program import score_by_program
from nmt.metrics.sacrebleu import bleu_tokenizer
from nmt.metrics.selection import REPORTED_METRICS, default_metrics
from nmt.text.tokenizer import Tokenizers
from nmt.training.events import Event
from nmt.training.processes import StopSignal
from nmt.training.update import Updater

T = TypeVar("T")
logger = logging.getLogger(__name__)

COMMAND = "command"  # Name of the score of `training.validation.command`.
_NO_SCORER = ("loss", COMMAND)
_READABLE = 1e6  # larger perplexities are shown in scientific notation


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of a validation: the scores of a set, or the combined scores of several sets."""

    loss: float  # Cross-entropy of the references per token, without smoothing, in nats.
    # Scores of the translations, by metric; empty if the set has no text.
    text: Mapping[str, float] = field(default_factory=dict)
    # Tokenizer of BLEU. Scores with different tokenizers are not comparable.
    bleu_tokenizer: str | None = None
    # (source, translation, reference) of the best, the median and the worst sentence by chrF.
    samples: tuple[tuple[str, str, str], ...] = ()
    sample_chrf: tuple[float, ...] = ()  # chrF of each sample.
    # Training loss per token, without dropout, for comparison with the loss of the updates.
    objective: float = math.nan
    # Number of suspicious translations; None if the set has no text.
    alarms: int | None = None
    # Scores of each set by name, if there are several; then the scores above choose the best.
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
            combined = {self.combination: replace(self, sets={})} if self.combination else {}
            return "; ".join(f"{name}: {x}" for name, x in {**combined, **self.sets}.items())
        # The perplexity of a diverged model may have hundreds of digits.
        shown = f"{self.perplexity:{'.2f' if self.perplexity < _READABLE else '.3g'}}"
        text = f"perplexity {shown}"
        for metric, value in self.text.items():
            is_other = metric == "bleu" and self.bleu_tokenizer not in (None, "13a")
            label = f" (tokenizer {self.bleu_tokenizer})" if is_other else ""
            shown = "failed" if math.isnan(value) else format_score(metric, value)
            text += f", {label_of(metric)} {shown}{label}"
        return text

    def event(self, step: int, epoch: int, seconds: float) -> Event:
        """Return the event of this validation, which took ``seconds``, for the reporters."""
        values = self._values(epoch=epoch, perplexity=self.perplexity, seconds=seconds)
        if self.sets:
            values["sets"] = {n: x._values(perplexity=x.perplexity) for n, x in self.sets.items()}
        text = f"validation at step {step:,}: {self} ({seconds:.1f} s)"
        return Event(step, text, "validation", values)

    def _values(self, **others: float) -> dict[str, Any]:
        """Return the values of a line of ``metrics.jsonl``, without those of the sets."""
        values = asdict(replace(self, sets={})) | others
        del values["sets"], values["combination"]
        return values | (values.pop("text") or dict.fromkeys(REPORTED_METRICS))


def combine(
    sets: Mapping[str, Scores], choosing: Sequence[str], choose_by: Literal["mean", "minimum"]
) -> Scores:
    """Return the scores that choose the best checkpoint, with the scores of each set.

    The combined score by each metric is the mean or the worst score of the sets that choose. It is
    NaN if a set has no score.

    >>> sets = {"de": Scores(2.0, {"bleu": 30.0}), "fr": Scores(1.0, {"bleu": 20.0})}
    >>> combine(sets, ["de", "fr"], "minimum").value("bleu")
    20.0
    """
    chosen = [sets[name] for name in choosing]
    first, choose = chosen[0], fmean if choose_by == "mean" else min
    if len(chosen) == 1:
        return replace(first, sets=sets if len(sets) > 1 else {})

    def pick(metric: str, values: Sequence[float]) -> float:
        if any(map(math.isnan, values)):
            return math.nan
        return as_quality(metric, choose(as_quality(metric, value) for value in values))

    return Scores(
        pick("loss", [scores.loss for scores in chosen]),
        {name: pick(name, [scores.text[name] for scores in chosen]) for name in first.text},
        first.bleu_tokenizer if len({x.bleu_tokenizer for x in chosen}) == 1 else None,
        objective=pick("loss", [scores.objective for scores in chosen]),
        alarms=sum(scores.alarms or 0 for scores in chosen),
        sets=sets,
        combination=choose_by,
    )


@dataclass(frozen=True)
class HeldOutText:
    """The text of a validation set, and how to translate and score it."""

    sources: Sequence[str]
    references: Sequence[str]
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
        limits = zip(("max_length_factor", "max_length_offset"), self.longest, strict=True)
        lower = {name: min(limit, getattr(decoding, name)) for name, limit in limits}
        decoding = decoding.model_copy(update=lower)
        options = replace(self.options, decoding=decoding, progress=progress)
        return Translator(engine, self.tokenizers, options)

    @cached_property
    def scorers(self) -> dict[str, MetricScorer]:
        """Metrics by name. The first access loads their models."""
        options = MetricOptions(
            tokenize=self._bleu_tokenizer, target_language=self.language, source=self.sources,
            device=self.device,
        )  # fmt: skip
        names = list(default_metrics([self.language]))
        if self.metric in names:  # the metric that chooses comes first
            names.remove(self.metric)
            names.insert(0, self.metric)
        else:
            names.append(self.metric)
        scorers = [
            MetricScorer(x, [self.references], options) for x in names if x not in _NO_SCORER
        ]
        return {scorer.name: scorer for scorer in scorers}

    @cached_property
    def _bleu_tokenizer(self) -> str:
        return bleu_tokenizer(MetricOptions(target_language=self.language))

    def score(self, hypotheses: Sequence[str]) -> dict[str, Any]:
        """Return fields of `Scores`. BLEU uses the same tokenizer as `nmt evaluate`."""
        tables = {name: scorer.statistics(hypotheses) for name, scorer in self.scorers.items()}
        of_sentences = self.scorers["chrf"].sentence_scores(tables["chrf"])
        chosen = choose_samples(of_sentences)
        samples = list(zip(self.sources, hypotheses, self.references, strict=True))
        scores = {name: self.scorers[name].total(tables[name]).value for name in tables}
        return {
            "text": scores | ({COMMAND: self.run_command(hypotheses)} if self.command else {}),
            "bleu_tokenizer": self._bleu_tokenizer,
            "samples": tuple(samples[row] for row in chosen),
            "sample_chrf": tuple(of_sentences[row] for row in chosen),
        }

    def run_command(self, hypotheses: Sequence[str], *, is_trial: bool = False) -> float:
        """Return the score by `command`; NaN, after a warning, if the program fails.

        Raises:
            DataError: The program fails in a trial.
        """
        texts = {"source": self.sources, "hypothesis": hypotheses, "reference": self.references}
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

    def sample(self, *, num_batches: int = 0, num_lines: int = 0) -> ValidationSet:
        """Return a smaller set for timing, with about this many batches and lines.

        Limits outputs to about the length of their sources, because an untrained model does not
        produce EOS.
        """
        text = self.text
        if text is not None:
            sides = text.sources, text.references
            sources, references = (_spread(side, num_lines) for side in sides)
            text = replace(text, sources=sources, references=references, longest=(1.0, 3))
            text = replace(text, command=())  # which may need all lines, or a constant time
        batches = _spread(self.batches, num_batches)
        text = text if num_lines else None
        return replace(self, batches=batches, text=text, is_choosing=True)

    @property
    def size(self) -> int:
        """Number of batches of this process; without batches, number of lines of all processes."""
        return len(self.batches) or (len(self.text.sources) if self.text else 0)


@dataclass(frozen=True)
class Validator:
    """Computes loss and scores on the validation sets; processes share the work.

    The loss is computed in the precision of training. On a CPU, translation uses float32 weights,
    because oneDNN would compile a 16-bit kernel for each of the many sizes of a search. So it does
    if frozen weights have 16 bits, because the trained weights have 32.
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
        model = self.updater.model
        was_training = model.training
        with self.updater.optimizer.eval_weights():
            model.eval()
            with torch.inference_mode():
                sets = {held_out.name: self._scores(held_out) for held_out in self.sets}
            model.train(was_training)
        choosing = [held_out.name for held_out in self.sets if held_out.is_choosing]
        return combine(sets, choosing, self.choose_by)

    def _scores(self, held_out: ValidationSet) -> Scores:
        processes, text = self.updater.processes, dict[str, Any]()
        parts = self.stop.gather(partial(self._sum_losses, held_out.batches), processes)
        loss_sum, objective, tokens = map(sum, zip(*parts, strict=True))
        if held_out.text is not None:
            lines = self.stop.gather(partial(self._translate, held_out.text), processes)
            hypotheses, alarms = zip(*interleave(lines), strict=True)
            # One process computes the scores, which may be slow.
            own = held_out.text if not processes.rank else None
            score = partial(own.score, hypotheses) if own else dict[str, Any]
            text = {**self.stop.gather(score, processes)[0], "alarms": sum(alarms)}
        count = max(tokens, 1)
        return Scores(loss_sum / count, objective=objective / count, **text)

    @cached_property
    def _engine(self) -> TorchEngine:
        return TorchEngine(self.updater.model, end_loops=self.end_loops)

    def _translate(self, text: HeldOutText) -> list[tuple[str, bool]]:
        """Return translations of the lines of this process, and whether each is suspicious."""
        rank, size = self.updater.processes.rank, self.updater.processes.size
        own, optimizer = text.sources[rank::size], self.updater.optimizer
        is_narrow = self.updater.precision.weight_dtype != torch.float32
        lent = optimizer.parameters.lend(optimizer.weights() if is_narrow else {})
        options: dict[str, Any] = {"total": len(own), "leave": False, "shown": not rank}
        with lent, progress_bar("validating: translation", unit="lines", **options) as bar:
            results = text.translator(self._engine, bar.update).translate(own)
        return [(result.text, bool(result.alarms)) for result in results]

    def _sum_losses(self, batches: Sequence[Batch]) -> tuple[float, float, int]:
        """Return summed cross-entropy, summed training loss and tokens of this process."""
        tokens, device = 0, self.updater.device
        totals = torch.zeros(2, dtype=precise_dtype(device), device=device)
        options: dict[str, Any] = {"total": len(batches), "leave": False}
        shown = not self.updater.processes.rank
        with progress_bar("validating: loss", unit="batches", shown=shown, **options) as bar:
            for batch in batches:
                on_device = batch.to(device)
                loss = self.updater.validation_loss(on_device)
                objective = self.updater.objective_loss(on_device)
                totals += torch.stack((loss.loss_sum, objective.loss_sum))
                tokens += loss.num_tokens
                bar.update()
        loss_sum, objective_sum = totals.tolist()
        return loss_sum, objective_sum, tokens


def _spread(items: Sequence[T], number: int) -> Sequence[T]:
    """Return about ``number`` evenly spaced items."""
    return items[:: -(-len(items) // number) or 1] if number else []


def choose_samples(scores: Sequence[float]) -> list[int]:
    """Return the indices of the best, median and worst score; of equal scores, the first index.

    >>> choose_samples([3.0, 9.0, 1.0, 9.0, 4.0]), choose_samples([2.0])
    ([1, 4, 2], [0])
    """
    ranked = sorted(range(len(scores)), key=lambda row: -scores[row])
    return list(dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1])))


def fixed_batches(loader: Loader, processes: Processes, among: Rows | None = None) -> list[Batch]:
    """Return this process's share of a fixed set of batches.

    The shares of all processes together cover the rows ``among``, by default the whole store.
    """
    among = np.arange(len(loader.store)) if among is None else among
    lengths, most = loader.lengths(among), loader.config.max_tokens
    if most is not None:  # the limit must not drop the longest pair
        most = max(int(most), int(np.add(*lengths).max(initial=0)))
    pairs, random = loader.config.max_sentences, epoch_random(0, 0)
    plan = plan_batches(*lengths, max_tokens=most, max_sentences=pairs, noise=0, random=random)
    return [loader.batch(among[rows]) for rows in plan[processes.rank :: processes.size]]

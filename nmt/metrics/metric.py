"""The interface and the registry of metrics, and the scoring of a system with a metric.

To add a metric, write a subclass of `Metric` and register it under a name: in `METRICS` below, or
in another program with ``METRICS.register("exact", ExactMatch)``. The name is then valid in ``nmt
evaluate``, in its gates, and in ``training.validation.metric``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nmt.errors import ConfigError, DataError
from nmt.registry import Registry
from nmt.text.languages import writes_spaces

if TYPE_CHECKING:  # `--help` imports this module, and numpy is slow to import
    import numpy as np
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
# Paired bootstrap resampling, or approximate randomization.
Significance = Literal["bs", "ar"]
# One or more streams of lines. Line i of each stream is a reference of sentence i.
References = Sequence[Sequence[str]]
# Computed in every validation and evaluation.
REPORTED_METRICS = ("bleu", "chrf")


@dataclass(frozen=True, kw_only=True)
class MetricOptions:
    """Inputs of a metric other than references: text preparation, source lines, device."""

    tokenize: str | None = None  # Tokenizer of BLEU; chosen by ``target_language`` if None.
    lowercase: bool = False  # Ignore case in BLEU and chrF (TER always does).
    # Language code of the hypotheses, for example ``zh`` or ``de-AT``.
    target_language: str | None = None
    source: Sequence[str] | None = None  # Source lines, if known.
    argument: str = ""  # Text after the colon of a name such as ``comet:MODEL``.
    device: str = "auto"  # Device of a neural metric.


class Metric(ABC):
    """A metric with fixed references.

    `statistics` compares texts; `score` only uses sums of statistics. So texts are compared once,
    however often sentences are resampled.

    Args:
        references: Streams of reference lines.
        options: Preparation of texts.
    """

    label: str  # Name in tables and charts.
    lower_is_better = False  # Whether the metric counts errors.
    decimals = 2  # Decimals of scores in tables and messages.
    argument = ""  # Word for the text after a colon, if the name can have one.
    signature: str  # Settings that are needed to reproduce the score.

    @abstractmethod
    def __init__(self, references: References, options: MetricOptions) -> None: ...

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the D statistics of each sentence. (n, D)."""

    def score(self, sums: Floats) -> Floats:
        """Return the scores of R corpora from the sums of their statistics. (R, D) -> (R,).

        Default: the mean of sentence scores, if the statistics of a sentence are its score and 1.
        """
        return sums[:, 0] / sums[:, 1]

    def sentence_score(self, statistics: Floats) -> Floats:
        """Return sentence-level scores. (n, D) -> (n,)."""
        return self.score(statistics)


# Metrics by their names in flags, configurations and results.
METRICS = Registry[type[Metric]]("metric", suggest=False)


@dataclass(frozen=True, kw_only=True)
class ConfidenceInterval:
    """The 95% interval of a score over resampled test sets."""

    mean: float  # Mean of the resampled scores.
    half_width: float  # Half of ``high - low``: the number after the plus-minus sign.
    low: float  # 2.5th percentile of the resampled scores.
    high: float  # 97.5th percentile of the resampled scores.
    resamples: int  # Number of resampled test sets.
    seed: int  # Seed of the resampling.


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between a system and a baseline on the same sentences."""

    baseline: str  # Name of the baseline.
    delta: float  # Score of the system minus score of the baseline.
    # 95% interval of the difference over resampled test sets; None without resampling.
    low: float | None = None
    high: float | None = None
    # Probability of a difference this large by chance; None without resampling.
    p_value: float | None
    significance: Significance = "bs"  # The significance test.
    # Resampled test sets, or trials of approximate randomization; 0 without a test.
    resamples: int
    seed: int  # Seed of the test.


@dataclass(frozen=True, kw_only=True)
class Score:
    """The score of one system under one metric."""

    metric: str  # Name of the metric.
    value: float  # In full precision. BLEU and chrF: 0 to 100; TER may exceed 100; COMET: 0 to 1.
    signature: str  # Settings that are needed to reproduce the score, in sacrebleu's format.
    # 95% interval by bootstrap resampling, if requested.
    confidence: ConfidenceInterval | None = None
    comparison: Comparison | None = None  # Difference from the baseline, if there is one.

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON. Fields that are None are left out."""
        return given_values(self)


def given_values(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not None, as plain values for JSON."""
    fields = asdict(record).items()
    return {name: value for name, value in fields if value is not None}


class MetricScorer:
    """Scores any number of systems with one metric on one test set.

    Args:
        name: Name of the metric, with an argument after a colon if it takes one.
        references: Streams of reference lines.
        options: Preparation of texts, and source.

    Raises:
        ConfigError: The metric or tokenizer is unknown, or its package or model is not installed.
        DataError: There are no reference lines, or the streams have different lengths.
    """

    def __init__(self, name: str, references: References, options: MetricOptions) -> None:
        self.name, argument = split_argument(name)
        if not references or not references[0]:
            raise DataError("The reference is empty.", fix="Pass a file with references.")
        # Messages number the streams from 1. All streams must be as long as the first.
        for number, stream in enumerate(references[1:], start=2):
            _check_lengths("reference 1", references[0], f"reference {number}", stream)
        self._reference = references[0]
        kind = METRICS[self.name]
        self.metric = kind(references, replace(options, argument=argument))

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the statistics of each sentence of a system. (n, D).

        Args:
            hypotheses: Line i translates sentence i.

        Raises:
            DataError: The number of lines differs from the references.
        """
        _check_lengths("the hypothesis", hypotheses, "the reference", self._reference)
        return self.metric.statistics(hypotheses)

    def total(self, statistics: Floats) -> Score:
        """Return the corpus score of sentences with these statistics. (n, D)."""
        sums = statistics.sum(0, keepdims=True)
        (value,) = self.metric.score(sums).tolist()
        signature = self.metric.signature
        return Score(metric=self.name, value=value, signature=signature)

    def score(self, hypotheses: Sequence[str]) -> Score:
        """Return the corpus score of a system; see `statistics`."""
        return self.total(self.statistics(hypotheses))

    def sentence_scores(self, statistics: Floats) -> list[float]:
        """Return sentence-level scores, equal to sacrebleu's, from statistics (n, D)."""
        scores = self.metric.sentence_score(statistics)
        return scores.tolist()


def _check_lengths(
    name: str, lines: Sequence[str], other_name: str, other_lines: Sequence[str]
) -> None:
    num_lines = len(lines)
    num_other_lines = len(other_lines)
    if num_lines != num_other_lines:
        fix = "Pass files with the same number of lines; line i of each is sentence i."
        counts = (num_lines, num_other_lines)
        raise DataError.not_parallel(name, other_name, counts, fix=fix)


def split_argument(metric: str) -> tuple[str, str]:
    """Split a metric into name and argument: ``comet:MODEL`` into ``comet`` and ``MODEL``.

    Raises:
        ConfigError: The metric is unknown or does not take an argument.
    """
    name, _, argument = metric.partition(":")
    # ``bleu:`` is refused, too, although the text after its colon is empty.
    if not METRICS[name].argument and metric != name:
        raise ConfigError(f"{metric}: {name} does not take an argument.", fix=f"Use {name}.")
    return name, argument


def registered_name(metric: str) -> str:
    """Return a metric with its registered name: ``COMET:M`` becomes ``comet:M``."""
    name, colon, argument = metric.partition(":")
    return (name if name in METRICS else name.lower()) + colon + argument


def requested_metrics(texts: Sequence[str]) -> dict[str, str]:
    """Return metrics by name: ``BLEU,comet:M`` becomes ``{bleu: bleu, comet: comet:M}``.

    Args:
        texts: Metrics in any case, separated by commas. Without texts, the result is empty.

    Raises:
        ConfigError: A metric is unknown, or occurs with two arguments, or ``texts`` contain no
            metric. The message lists all unknown metrics.
    """
    entries = [entry.strip() for entry in ",".join(texts).split(",")]
    if texts and not any(entries):
        raise ConfigError("`metric` is empty.", fix="Add a metric, such as bleu.")
    # Metrics with their arguments, in the requested order, each once.
    requested = dict.fromkeys(registered_name(entry) for entry in entries if entry)
    metrics = {metric.partition(":")[0]: metric for metric in requested}
    unknown = [name for name in metrics if name not in METRICS]
    if unknown:
        valid_names = ", ".join(name for name in METRICS if name != "external")
        fix = f"Use {valid_names}. For a different metric, pass `external` COMMAND. It reads one "
        fix += "JSON object per line (source, hypothesis, references), and writes one number each."
        raise ConfigError(f"Unknown metrics: {', '.join(unknown)}.", fix=fix)
    if len(metrics) < len(requested):  # one name with two arguments
        problem = f"{', '.join(requested)}: a metric occurs twice."
        raise ConfigError(problem, fix="Use two commands.")
    return metrics


def default_metrics(languages: Iterable[str | None]) -> tuple[str, ...]:
    """Return BLEU and chrF; chrF first if a target language is written without spaces.

    BLEU counts words, so it depends on the tool that separates the words of such a language. chrF
    counts characters.

    Args:
        languages: Codes of the target languages; None if a language is not known.

    >>> default_metrics(["de", None]), default_metrics(["de", "tha"])
    (('bleu', 'chrf'), ('chrf', 'bleu'))
    """
    for language in languages:
        if language is not None and not writes_spaces(language):
            return tuple(reversed(REPORTED_METRICS))
    return REPORTED_METRICS


def label_of(metric: str) -> str:
    """Return the display name of a metric, such as BLEU; unknown names are unchanged."""
    kind = METRICS.find(metric)
    return kind.label if kind else metric


def lower_is_better(metric: str) -> bool:
    """Whether a lower score is better: a loss, or a metric that counts errors."""
    if metric == "loss":
        return True
    kind = METRICS.find(metric) or Metric  # a metric that is not registered has the defaults
    return kind.lower_is_better


def as_quality(metric: str, value: float) -> float:
    """Return a score or a difference of scores, negated if lower is better."""
    return -value if lower_is_better(metric) else value


def format_score(metric: str, value: float, style: str = "") -> str:
    """Format a score with the decimals of its metric; ``style`` is ``+`` for a difference."""
    kind = METRICS.find(metric) or Metric
    return f"{value:{style}.{kind.decimals}f}"

"""What a metric is, the registry of metrics, and scoring a system by one of them.

To add a metric, write a subclass of `Metric` and register it under a name: in `METRICS` below, or
from another program with ``METRICS.register("exact", ExactMatch)``. The name is then valid in
``nmt evaluate``, its gates, and ``training.validation.metric``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from nmt.errors import DataError
from nmt.registry import Registry

if TYPE_CHECKING:  # help lists the metrics, and numpy takes time to load
    import numpy as np
    import numpy.typing as npt

Floats: TypeAlias = "npt.NDArray[np.float64]"
# Paired bootstrap resampling, or approximate randomisation.
Significance: TypeAlias = Literal["bs", "ar"]
# Streams of lines; line i of each is a reference of sentence i. At least one stream.
References = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """How text is prepared before it is compared."""

    tokenize: str | None = None  # Tokenizer of BLEU; by ``target_language`` when None.
    lowercase: bool = False  # Ignore case in BLEU and chrF (TER always does).
    # Language code of the hypotheses, for example ``zh`` or ``de-AT``.
    target_language: str | None = None


class Metric(ABC):
    """One metric with its references read in.

    Statistics of sentences are apart from the score of their sums, so that text is compared once,
    however often sentences are resampled.
    """

    label: ClassVar[str]  # Name in tables and curves.
    lower_is_better: ClassVar[bool] = False  # Whether it counts errors.
    signature: str  # What is needed to repeat the score.

    @abstractmethod
    def __init__(self, references: References, options: MetricOptions) -> None: ...

    @abstractmethod
    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return numbers of each sentence whose sums give the score. (n, D)."""

    @abstractmethod
    def score(self, sums: Floats) -> Floats:
        """Return the scores of corpora whose statistics sum to the rows. (R, D) -> (R,)."""

    def sentence_score(self, statistics: Floats) -> Floats:
        """Return the score of each sentence by itself. (n, D) -> (n,)."""
        return self.score(statistics)


# The metrics by name, as in flags, configurations and results.
METRICS: Registry[type[Metric]] = Registry(
    "metric",
    {
        "bleu": "nmt.metrics.sacrebleu:Bleu",
        "chrf": "nmt.metrics.sacrebleu:Chrf",
        "chrf++": "nmt.metrics.sacrebleu:ChrfPlusPlus",
        "ter": "nmt.metrics.sacrebleu:Ter",
    },
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """The 95% interval of a score over resampled test sets."""

    mean: float  # Mean of the resampled scores.
    # Half of the distance between ``low`` and ``high``: the number after the plus-minus sign.
    half_width: float
    low: float  # 2.5% of the resampled scores are below.
    high: float  # 2.5% of the resampled scores are above.
    resamples: int  # Resampled test sets.
    seed: int  # Seed of the draws.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A system against a baseline on the same sentences."""

    baseline: str  # Name of the baseline.
    delta: float  # Score of the system minus score of the baseline.
    # 2.5% of the differences on resampled test sets are below; None without resampling.
    low: float | None = None
    high: float | None = None  # 2.5% of them are above.
    # How often chance alone makes a difference this large; None without resampling.
    p_value: float | None
    significance: Significance = "bs"  # What the p-value comes from.
    # Resampled test sets, or trials of approximate randomisation; 0 if there were none.
    resamples: int
    seed: int  # Seed of the draws.


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number for one system under one metric."""

    metric: str  # Name of the metric.
    value: float  # From 0 to 100 (TER may exceed it); full precision.
    # How it was computed (sacrebleu's record): with it, anyone can repeat the number.
    signature: str
    # 95% interval by bootstrap resampling, if it was asked for.
    confidence: Confidence | None = None
    comparison: Comparison | None = None  # Difference from a baseline, if one was given.

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; what was not asked for is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Scorer:
    """One metric with its references read in, ready for any number of systems.

    Args:
        name: Of the metric.
        references: See `References`.
        options: Preparation of the text.

    Raises:
        ConfigError: An unknown metric or tokenizer, or one whose package is not installed.
        DataError: No reference lines, or streams of different lengths.
    """

    def __init__(self, name: str, references: References, options: MetricOptions) -> None:
        kind = METRICS[name]
        if not references or not references[0]:
            raise DataError(
                "There are no reference lines.", fix="Give a reference with text in it."
            )
        for number, stream in enumerate(references[1:], start=2):
            _check_lengths("reference 1", references[0], f"reference {number}", stream)
        self.name, self._reference = name, references[0]
        self.metric: Metric = kind(references, options)

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the statistics of each sentence of a system. (n, D).

        Args:
            hypotheses: Line i translates sentence i.

        Raises:
            DataError: More or fewer lines than the references have.
        """
        _check_lengths("the hypothesis", hypotheses, "the reference", self._reference)
        return self.metric.statistics(hypotheses)

    def total(self, statistics: Floats) -> Score:
        """Return the score of a test set with these statistics of its sentences. (n, D)."""
        (value,) = self.metric.score(statistics.sum(0, keepdims=True)).tolist()
        return Score(metric=self.name, value=value, signature=self.metric.signature)

    def score(self, hypotheses: Sequence[str]) -> Score:
        """Return the score of a system; see `statistics`."""
        return self.total(self.statistics(hypotheses))

    def sentence_scores(self, statistics: Floats) -> list[float]:
        """Return the score of each sentence by itself, as sacrebleu does at sentence level."""
        scores: list[float] = self.metric.sentence_score(statistics).tolist()
        return scores


def _check_lengths(name: str, lines: Sequence[str], other: str, others: Sequence[str]) -> None:
    if len(lines) != len(others):
        raise DataError.not_parallel(
            name,
            other,
            (len(lines), len(others)),
            fix="Line i of both must belong to sentence i: give as many lines of each.",
        )


def label_of(metric: str) -> str:
    """Return the name of a metric in tables; an external one is in no registry."""
    return METRICS[metric].label if metric in METRICS else metric


def as_quality(metric: str, value: float) -> float:
    """Return a score, or a difference of scores, with its sign such that higher is better."""
    is_error = metric in METRICS and METRICS[metric].lower_is_better
    return -value if is_error else value

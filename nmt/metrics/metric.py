"""What a metric is, the registry of metrics, and scoring a system by one of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from nmt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nmt.metrics.significance import Comparison, Confidence, Floats

References = Sequence[Sequence[str]]
"""Streams of lines; line i of each is a reference of sentence i. At least one stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """How text is prepared before it is compared."""

    tokenize: str | None = None
    """Tokenizer of BLEU; by ``target_language`` when None."""
    lowercase: bool = False
    """Ignore case in BLEU and chrF (TER always does)."""
    target_language: str | None = None
    """Language code of the hypotheses, for example ``zh`` or ``de-AT``."""


class Metric(Protocol):
    """One metric with its references read in.

    Statistics of sentences are apart from the score of their sums, so that text is compared once,
    however often sentences are resampled.
    """

    @property
    def signature(self) -> str:
        """What is needed to repeat the score."""
        ...

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return numbers of each sentence whose sums give the score. (n, D)."""
        ...

    def score(self, sums: Sequence[float]) -> float:
        """Return the score of a corpus whose statistics sum to ``sums``. (D,)."""
        ...


MetricBuilder = Callable[[References, MetricOptions], Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricKind:
    """An entry of the registry."""

    build: str | MetricBuilder
    """Makes the metric; as ``module:function`` it is loaded on first use."""
    label: str
    """Name in tables and curves."""
    lower_is_better: bool = False
    """Whether it counts errors."""


METRICS: dict[str, MetricKind] = {}
"""The metrics by name, as flags, configurations and results spell them."""


def register_metric(
    name: str,
    build: str | MetricBuilder,
    *,
    label: str | None = None,
    lower_is_better: bool = False,
) -> None:
    """Make a metric known by ``name`` to evaluation, gates and validation."""
    METRICS[name] = MetricKind(build=build, label=label or name, lower_is_better=lower_is_better)


def check_metric(name: str) -> str:
    """Return the name of a metric.

    Raises:
        ConfigError: There is no such metric.
    """
    if name in METRICS:
        return name
    near = difflib.get_close_matches(name.lower(), METRICS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"There is no metric {name!r}.{hint}", fix=f"Use {', '.join(METRICS)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One number for one system under one metric."""

    metric: str
    """Name of the metric."""
    value: float
    """From 0 to 100 (TER may exceed it); full precision."""
    signature: str
    """How it was computed (sacrebleu's record): with it, anyone can repeat the number."""
    confidence: Confidence | None = None
    """95% interval by bootstrap resampling, if it was asked for."""
    comparison: Comparison | None = None
    """Difference from a baseline, if one was given."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what was not asked for is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatistics:
    """One system under one metric: the score, and what resampling needs."""

    score: Score
    """The score of the whole test set."""
    table: Floats
    """Statistics of each sentence. (n, D)."""
    score_sums: Callable[[Sequence[float]], float]
    """Score of a corpus whose statistics sum to the argument. (D,)."""


class Scorer:
    """One metric with its references read in, ready for any number of systems.

    Args:
        metric: Name of the metric.
        references: See `References`.
        options: Preparation of the text.

    Raises:
        ConfigError: An unknown metric or tokenizer, or one whose package is not installed.
        DataError: No reference lines, or streams of different lengths.
    """

    def __init__(self, metric: str, references: References, options: MetricOptions) -> None:
        self.name = check_metric(metric)
        _check_references(references)
        self._num_sentences = len(references[0])
        self._metric = _load(METRICS[metric].build)(references, options)

    def statistics(self, hypotheses: Sequence[str]) -> SystemStatistics:
        """Score a system.

        Args:
            hypotheses: Line i translates sentence i.

        Raises:
            DataError: More or fewer lines than the references have.
        """
        if len(hypotheses) != self._num_sentences:
            raise DataError.not_parallel(
                "the hypothesis",
                "the reference",
                (len(hypotheses), self._num_sentences),
                fix="Line i of both must belong to sentence i: give as many lines of each.",
            )
        table = self._metric.statistics(hypotheses)
        # Summed as sacrebleu does, so that the last digit is the same.
        value = self._metric.score([sum(column) for column in table.T.tolist()])
        score = Score(metric=self.name, value=value, signature=self._metric.signature)
        return SystemStatistics(score=score, table=table, score_sums=self._metric.score)

    def score(self, hypotheses: Sequence[str]) -> Score:
        """Return the score of a system; see `statistics`."""
        return self.statistics(hypotheses).score


def _load(build: str | MetricBuilder) -> MetricBuilder:
    if not isinstance(build, str):
        return build
    module, _, function = build.partition(":")
    return getattr(import_module(module), function)


def _check_references(references: References) -> None:
    if not references or not references[0]:
        raise DataError("There are no reference lines.", fix="Give a reference with text in it.")
    for number, stream in enumerate(references[1:], start=2):
        if len(stream) != len(references[0]):
            raise DataError.not_parallel(
                "reference 1",
                f"reference {number}",
                (len(references[0]), len(stream)),
                fix="Line i of both must belong to sentence i: give as many lines of each.",
            )


def as_quality(scores: Mapping[str, float], metric: str) -> float:
    """Return the score by ``metric`` with its sign such that higher is better."""
    return -scores[metric] if METRICS[metric].lower_is_better else scores[metric]

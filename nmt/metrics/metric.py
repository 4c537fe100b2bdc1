"""What a metric is, the registry of metrics, and scoring a system by one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from nmt.config.keys import did_you_mean
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

    def score(self, sums: Floats) -> Floats:
        """Return the scores of corpora whose statistics sum to the rows. (R, D) -> (R,)."""
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
"""The metrics by name, as in flags, configurations and results."""


def label_of(metric: str) -> str:
    """Return the name of a metric in tables; an external one is in no registry."""
    return METRICS[metric].label if metric in METRICS else metric


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
    hint = did_you_mean(name.lower(), METRICS)
    other = "`nmt evaluate --external COMMAND` scores with another program"
    raise ConfigError(
        f"There is no metric {name!r}.{hint}", fix=f"Use {', '.join(METRICS)}; {other}."
    )


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
        if not references or not references[0]:
            raise DataError(
                "There are no reference lines.", fix="Give a reference with text in it."
            )
        for number, stream in enumerate(references[1:], start=2):
            _check_lengths("reference 1", references[0], f"reference {number}", stream)
        self._reference = references[0]
        build = METRICS[metric].build
        if isinstance(build, str):
            module, _, function = build.partition(":")
            build = getattr(import_module(module), function)
        self.metric: Metric = build(references, options)

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
        """Return the score of each sentence by itself, as ``sacrebleu --sentence-level`` does.

        BLEU then takes the orders that a short sentence has (``eff:yes``).
        """
        score = getattr(self.metric, "sentence_score", self.metric.score)
        found: Floats = score(statistics)
        return found.tolist()


def _check_lengths(name: str, lines: Sequence[str], other: str, others: Sequence[str]) -> None:
    if len(lines) != len(others):
        raise DataError.not_parallel(
            name,
            other,
            (len(lines), len(others)),
            fix="Line i of both must belong to sentence i: give as many lines of each.",
        )


def as_quality(scores: Mapping[str, float], metric: str) -> float:
    """Return the score by ``metric`` with its sign such that higher is better."""
    kind = METRICS.get(metric)
    return -scores[metric] if kind and kind.lower_is_better else scores[metric]

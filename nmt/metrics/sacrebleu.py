"""BLEU, chrF and TER by sacrebleu: the only module here that imports it.

sacrebleu keeps per-sentence statistics apart from the score made of their sums. Both halves are
used separately, so that text is compared once, however often the sentences are resampled.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from sacrebleu import DATASETS, utils
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.errors import ConfigError, DataError
from nmt.metrics.base import METRICS, Score
from nmt.metrics.significance import Floats, SufficientStatistics

TOKENIZERS = tuple(BLEU.TOKENIZERS)
"""Tokenizers of BLEU that ``--tokenize`` accepts."""

_LANGUAGE_TOKENIZERS: Mapping[str, str] = MappingProxyType({
    "zh": "zh", "zho": "zh", "cmn": "zh", "ja": "ja-mecab", "jpn": "ja-mecab",
    "ko": "ko-mecab", "kor": "ko-mecab",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOptions:
    """How text is prepared before it is compared."""

    tokenize: str | None = None
    """Tokenizer of BLEU, one of `TOKENIZERS`; by ``target_language`` when None."""
    lowercase: bool = False
    """Ignore case in BLEU and chrF (TER always does)."""
    target_language: str | None = None
    """Language code of the hypotheses, for example ``zh`` or ``de-AT``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStatistics:
    """One system under one metric: the score, and what resampling needs."""

    score: Score
    """The score of the whole test set."""
    statistics: SufficientStatistics
    """What the score is made of, sentence by sentence."""


class Scorer:
    """One metric with its references read in, ready for any number of systems.

    Args:
        metric: One of `METRICS`.
        references: Streams of lines; line i of each is a reference of sentence i. At least one.
        options: Preparation of the text.

    Raises:
        ConfigError: An unknown metric or tokenizer, or one whose package is not installed.
        DataError: No reference lines, or streams of different lengths.
    """

    def __init__(
        self, metric: str, references: Sequence[Sequence[str]], options: MetricOptions
    ) -> None:
        self.metric = check_metric(metric)
        _check_references(references)
        self._num_sentences = len(references[0])
        self._engine: Any = _ENGINES[metric](options, references)

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
        rows = self._engine._extract_corpus_statistics(hypotheses, None)
        # Summed by sacrebleu itself: integers stay integers, and the last digit is the same.
        value = float(self._engine._aggregate_and_compute(rows).score)
        signature = self._engine.get_signature().format()
        return SystemStatistics(
            score=Score(metric=self.metric, value=value, signature=signature),
            statistics=SufficientStatistics(
                table=np.array(rows, dtype=np.float64), score=self._score_sums
            ),
        )

    def _score_sums(self, sums: Floats) -> float:
        return float(self._engine._compute_score_from_stats(sums.tolist()).score)


def corpus_score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metric: str,
    options: MetricOptions | None = None,
) -> Score:
    """Score one system under one metric.

    Args:
        hypotheses: Line i translates sentence i.
        references: One or more streams of lines, each as long as ``hypotheses``.
        metric: One of `METRICS`.
        options: Preparation of the text; mixed case and tokenizer 13a when None.

    Raises:
        ConfigError: See `Scorer`.
        DataError: No lines, or streams of different lengths.
    """
    scorer = Scorer(metric, references, options or MetricOptions())
    return scorer.statistics(hypotheses).score


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str],
    options: MetricOptions | None = None,
) -> list[Score]:
    """Score one system under several metrics; see `corpus_score`."""
    return [corpus_score(hypotheses, references, metric, options) for metric in metrics]


def check_metric(metric: str) -> str:
    """Return the name of a metric.

    Raises:
        ConfigError: There is no such metric.
    """
    if metric in METRICS:
        return metric
    near = difflib.get_close_matches(metric.lower(), METRICS, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise ConfigError(f"There is no metric {metric!r}.{hint}", fix=f"Use {', '.join(METRICS)}.")


def default_tokenizer(language: str | None) -> str:
    """Return BLEU's tokenizer for a target language.

    >>> default_tokenizer("zh-CN"), default_tokenizer("de"), default_tokenizer(None)
    ('zh', '13a', '13a')
    """
    primary = re.split("[-_]", language or "", maxsplit=1)[0].lower()
    return _LANGUAGE_TOKENIZERS.get(primary, "13a")


def resolve_tokenizer(options: MetricOptions) -> MetricOptions:
    """Return the options with a tokenizer that works here: ``char`` where the right one is missing.

    For scores that only have to be comparable with each other, as in training.
    """
    name = options.tokenize or default_tokenizer(options.target_language)
    try:
        _make_bleu(replace(options, tokenize=name), None)
    except ConfigError:
        return replace(options, tokenize="char")
    return replace(options, tokenize=name)


def bleu_words(language: str | None) -> Callable[[str], list[str]]:
    """Return what cuts a line into the words that BLEU counts in a language.

    Raises:
        ConfigError: The language's tokenizer is not installed.
    """
    engine: Any = _make_bleu(MetricOptions(target_language=language), None)
    return lambda line: list(engine._preprocess_segment(line).split())


def _make_bleu(options: MetricOptions, references: Sequence[Sequence[str]] | None) -> Metric:
    name = options.tokenize or default_tokenizer(options.target_language)
    if name not in TOKENIZERS:
        near = difflib.get_close_matches(name.lower(), TOKENIZERS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"There is no tokenizer {name!r}.{hint}", fix=f"Use {', '.join(TOKENIZERS)}."
        )
    try:
        # `force` silences a warning that names a flag of sacrebleu's own command line.
        return BLEU(lowercase=options.lowercase, force=True, tokenize=name, references=references)
    except (RuntimeError, ImportError, OSError, SystemExit) as error:
        extra = name.partition("-")[0]
        remedy = (
            f"Run `pip install 'sacrebleu[{extra}]'`, or score with `--tokenize char`"
            if name.endswith("mecab")
            else "Its model is downloaded on first use; check the connection"
        )
        why = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"BLEU's tokenizer {name} cannot be used here: {why}",
            fix=f"{remedy}. chrf needs no tokenizer.",
        ) from error


def _make_chrf(options: MetricOptions, references: Sequence[Sequence[str]] | None) -> Metric:
    return CHRF(lowercase=options.lowercase, references=references)


def _make_chrf_plus(options: MetricOptions, references: Sequence[Sequence[str]] | None) -> Metric:
    return CHRF(lowercase=options.lowercase, word_order=2, references=references)


def _make_ter(options: MetricOptions, references: Sequence[Sequence[str]] | None) -> Metric:  # noqa: ARG001
    return TER(references=references)


_ENGINES: Mapping[
    str, Callable[[MetricOptions, Sequence[Sequence[str]] | None], Metric]
] = MappingProxyType({
    "bleu": _make_bleu, "chrf": _make_chrf, "chrf++": _make_chrf_plus, "ter": _make_ter,
})  # fmt: skip


def _check_references(references: Sequence[Sequence[str]]) -> None:
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


def published_test_set(name: str, pair: str) -> tuple[Path, list[Path]]:
    """Return the source and reference files of a test set, downloading them on first use.

    Args:
        name: sacrebleu's name, for example ``wmt14``.
        pair: Source and target language, for example ``en-de``.

    Raises:
        DataError: There is no such test set or pair, or the download fails.
    """
    check_published(name, pair)
    try:
        source, references = (
            utils.get_source_file(name, pair),
            utils.get_reference_files(name, pair),
        )
    except (Exception, SystemExit) as error:  # sacrebleu raises bare ones, and exits
        raise DataError(
            f"The test set {name} ({pair}) cannot be downloaded: {error}",
            fix="Check the connection, or set SACREBLEU to a folder that holds it already.",
        ) from error
    if not references:
        raise DataError(
            f"The test set {name} ({pair}) has no reference.", fix="Choose another test set."
        )
    return Path(source), [Path(reference) for reference in references]


def check_published(name: str, pair: str) -> None:
    """Check that sacrebleu knows a test set and has it for a pair of languages; no download.

    Raises:
        ConfigError: It does not. Names what is near or what there is.
    """
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        raise ConfigError(
            f"There is no test set {name!r}.",
            fix=f"Did you mean {', '.join(near)}?" if near else "`sacrebleu --list` shows all.",
        )
    pairs = utils.get_langpairs_for_testset(name)
    if pair not in pairs:
        raise ConfigError(
            f"The test set {name} has no pair {pair!r}.", fix=f"It has {', '.join(sorted(pairs))}."
        )

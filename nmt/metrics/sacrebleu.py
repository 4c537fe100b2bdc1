"""BLEU, chrF and TER by sacrebleu.

sacrebleu keeps per-sentence statistics apart from the score made of their sums, but has no public
name for the two halves: `SacreBleuMetric` is the only place that knows the private ones.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric as SacreBleuBase
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.config.keys import did_you_mean
from nmt.errors import ConfigError
from nmt.metrics.metric import MetricOptions, References
from nmt.metrics.significance import Floats

logger = logging.getLogger(__name__)

TOKENIZERS = tuple(BLEU.TOKENIZERS)
"""Tokenizers of BLEU that ``--tokenize`` accepts."""

_LANGUAGE_TOKENIZERS = {
    "zh": "zh", "zho": "zh", "cmn": "zh", "ja": "ja-mecab", "jpn": "ja-mecab",
    "ko": "ko-mecab", "kor": "ko-mecab",
}  # fmt: skip
_UNUSABLE = (RuntimeError, ImportError, OSError, SystemExit)
"""What a tokenizer raises whose library or model is missing."""


class SacreBleuMetric:
    """A metric of sacrebleu that has read its references; see `nmt.metrics.metric.Metric`."""

    def __init__(self, metric: SacreBleuBase) -> None:
        self._metric: Any = metric
        single: Any = copy(metric)
        single.effective_order = True  # of BLEU
        self._single = single

    @property
    def signature(self) -> str:
        """How it was computed: the record of sacrebleu."""
        return self._metric.get_signature().format()

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the counts of each sentence. (n, D)."""
        return np.array(self._metric._extract_corpus_statistics(hypotheses, None), np.float64)

    def score(self, sums: Sequence[float]) -> float:
        """Return the score of summed counts."""
        return float(self._metric._compute_score_from_stats(list(sums)).score)

    def sentence_score(self, sums: Sequence[float]) -> float:
        """Return the score of one sentence, whose missing orders of n-grams do not count."""
        return float(self._single._compute_score_from_stats(list(sums)).score)


def make_bleu(references: References, options: MetricOptions) -> SacreBleuMetric:
    """Make BLEU (Papineni et al. 2002) with the tokenizer of the target language."""
    name = bleu_tokenizer(options)
    try:
        return SacreBleuMetric(_bleu(name, lowercase=options.lowercase, references=references))
    except _UNUSABLE as error:
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


def make_chrf(references: References, options: MetricOptions) -> SacreBleuMetric:
    """Make chrF2 (Popović 2015)."""
    return SacreBleuMetric(CHRF(lowercase=options.lowercase, references=references))


def make_chrf_plus_plus(references: References, options: MetricOptions) -> SacreBleuMetric:
    """Make chrF2++ (Popović 2017): chrF with word unigrams and bigrams."""
    return SacreBleuMetric(CHRF(lowercase=options.lowercase, word_order=2, references=references))


def make_ter(references: References, options: MetricOptions) -> SacreBleuMetric:  # noqa: ARG001
    """Make TER (Snover et al. 2006), which ignores case."""
    return SacreBleuMetric(TER(references=references))


def _bleu(tokenizer: str, *, lowercase: bool = False, references: References | None = None) -> BLEU:
    # `force` silences a warning that names a flag of sacrebleu's own command line.
    return BLEU(lowercase=lowercase, force=True, tokenize=tokenizer, references=references)


def default_tokenizer(language: str | None) -> str:
    """Return the usual tokenizer of BLEU for a target language, installed or not.

    >>> default_tokenizer("zh-CN"), default_tokenizer("de"), default_tokenizer(None)
    ('zh', '13a', '13a')
    """
    primary = re.split("[-_]", language or "", maxsplit=1)[0].lower()
    return _LANGUAGE_TOKENIZERS.get(primary, "13a")


def bleu_tokenizer(options: MetricOptions) -> str:
    """Return the tokenizer of BLEU: the one asked for, else the usual one of the target language.

    Where the usual one is not installed (Japanese and Korean need MeCab), BLEU counts characters,
    in validation as in evaluation, and a warning says so.

    Raises:
        ConfigError: The one asked for does not exist.
    """
    if options.tokenize is not None:
        if options.tokenize not in TOKENIZERS:
            hint = did_you_mean(options.tokenize.lower(), TOKENIZERS)
            raise ConfigError(
                f"There is no tokenizer {options.tokenize!r}.{hint}",
                fix=f"Use {', '.join(TOKENIZERS)}.",
            )
        return options.tokenize
    name = default_tokenizer(options.target_language)
    try:
        _bleu(name)
    except _UNUSABLE:
        logger.warning(
            "BLEU counts characters (tokenizer char), as the usual tokenizer %s is not installed; "
            "`pip install 'sacrebleu[%s]'` adds it.",
            name,
            name.partition("-")[0],
        )
        return "char"
    return name


def bleu_words(language: str | None) -> Callable[[str], list[str]]:
    """Return what cuts a line into the words that BLEU counts in a language."""
    metric: Any = _bleu(bleu_tokenizer(MetricOptions(target_language=language)))
    return lambda line: list(metric._preprocess_segment(line).split())

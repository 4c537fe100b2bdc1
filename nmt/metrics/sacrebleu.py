"""BLEU, chrF and TER with the definitions, tokenizers and signatures of sacrebleu.

`nmt.metrics.ngrams` counts n-grams and computes BLEU and chrF; sacrebleu computes TER.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from string import punctuation
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from nmt.config.language_codes import matching
from nmt.errors import ConfigError
from nmt.metrics import ngrams
from nmt.metrics.metric import Floats, Metric, MetricOptions, References
from nmt.metrics.ngrams import BLEU_ORDERS, CHRF_ORDERS
from nmt.text.flat import FlatIds
from nmt.text.languages import writes_spaces

logger = logging.getLogger(__name__)

TOKENIZERS = tuple(BLEU.TOKENIZERS)  # Tokenizers of BLEU.

_LANGUAGE_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
# Errors of a tokenizer whose library or model is missing.
_UNUSABLE = (RuntimeError, ImportError, OSError, SystemExit)
_CHRF_COUNTS = 3
_PUNCTUATION = frozenset(punctuation)


class Bleu(Metric):
    """BLEU (Papineni et al. 2002) with the tokenizer of the target language.

    Statistics (10): words of the hypothesis, words of the reference of closest length, clipped
    matches by order (4), n-grams of the hypothesis by order (4).
    """

    label = "BLEU"

    def __init__(self, references: References, options: MetricOptions) -> None:
        tokenizer = bleu_tokenizer(options)
        # sacrebleu counts the references, for the signature, in the first sentence.
        first = [stream[:1] for stream in references]
        lowercase = options.lowercase
        try:
            # `force` turns off a warning about a flag of sacrebleu's command line.
            metric = BLEU(lowercase=lowercase, force=True, tokenize=tokenizer, references=first)
            self.signature = metric.get_signature().format()
            self._words = ngrams.WordNumbers(_bleu_words(metric, lowercase=lowercase))
            self._references = [self._words.lines(stream) for stream in references]
        except _UNUSABLE as error:
            remedy = "Its model is downloaded at first use: check the connection"
            if tokenizer.endswith("mecab"):
                extra = tokenizer.partition("-")[0]
                remedy = f"Run `pip install 'sacrebleu[{extra}]'`, or set `tokenize` to char"
            reason = str(error).strip().partition("\n")[0]
            problem = f"BLEU's tokenizer {tokenizer} cannot be used here: {reason}"
            fix = f"{remedy}. Or use chrf, which needs no tokenizer."
            raise ConfigError(problem, fix=fix) from error

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the counts of each sentence. (n, 10)."""
        lines = self._words.lines(hypotheses)
        matches = ngrams.match_counts(lines, self._references, BLEU_ORDERS)
        totals = ngrams.count_ngrams(lines, BLEU_ORDERS)
        # Lengths in words, (references, n). Sorted, so that of two lengths that are equally close,
        # `argmin` finds the shorter one, which comes first.
        lengths = np.sort([reference.lengths for reference in self._references], axis=0)
        closest = np.abs(lengths - lines.lengths).argmin(0)  # (n,), an index in ``lengths``
        closest_lengths = np.take_along_axis(lengths, closest[None], 0)[0]
        return np.column_stack([lines.lengths, closest_lengths, matches, totals])

    def score(self, sums: Floats, *, effective: bool = False) -> Floats:
        """Return the scores of summed counts. (R, 10) -> (R,)."""
        matches = sums[:, 2 : 2 + BLEU_ORDERS]
        totals = sums[:, 2 + BLEU_ORDERS :]
        lengths = sums[:, 0]
        reference_lengths = sums[:, 1]
        return ngrams.bleu(lengths, reference_lengths, matches, totals, effective=effective)

    def sentence_score(self, statistics: Floats) -> Floats:
        """Return sentence-level BLEU, which ignores n-gram orders longer than the hypothesis."""
        return self.score(statistics, effective=True)


class Chrf(Metric):
    """chrF2 (Popović 2015).

    Statistics (3 M for M orders): n-grams of the hypothesis, n-grams of the reference, and matches,
    for each order of characters, then of words. The reference with the highest score is used.
    """

    label = "chrF"
    _word_orders = 0

    def __init__(self, references: References, options: MetricOptions) -> None:
        first = [stream[:1] for stream in references]
        self._lowercase = options.lowercase
        metric = CHRF(lowercase=options.lowercase, word_order=self._word_orders, references=first)
        self.signature = metric.get_signature().format()
        self._words = ngrams.WordNumbers(_split_punctuation)
        self._references = [self._lines(stream) for stream in references]

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the counts of each sentence. (n, 3 M)."""
        lines = self._lines(hypotheses)
        # For each stream of references: counts, (n, 3 M), and their scores, (n,).
        tables = [self._counts(lines, reference) for reference in self._references]
        scores = [self.score(table) for table in tables]
        best_streams = np.array(scores).argmax(0)  # (n,)
        rows = np.arange(len(hypotheses))
        return np.array(tables)[best_streams, rows]

    def score(self, sums: Floats) -> Floats:
        """Return the scores of summed counts. (R, 3 M) -> (R,)."""
        # Each order has three neighbouring columns.
        totals = sums[:, 0::_CHRF_COUNTS]
        reference_totals = sums[:, 1::_CHRF_COUNTS]
        matches = sums[:, 2::_CHRF_COUNTS]
        return ngrams.chrf(totals, reference_totals, matches)

    def _lines(self, texts: Sequence[str]) -> list[FlatIds]:
        """Convert texts to characters and, for chrF++, to words: one or two `FlatIds`."""
        if self._lowercase:
            texts = [text.lower() for text in texts]
        lines = [ngrams.characters(texts)]
        if self._word_orders:
            lines.append(self._words.lines(texts))
        return lines

    def _counts(self, hypotheses: Sequence[FlatIds], references: Sequence[FlatIds]) -> Floats:
        """Return the counts of each sentence for one stream of references. (n, 3 M).

        Args:
            hypotheses: Characters of the sentences, then words if needed: see `_lines`.
            references: The same of the references.
        """
        tables = []  # For characters, then for words: (n, orders, 3).
        max_orders = (CHRF_ORDERS, self._word_orders)
        # Not strict, because the order of words is left over if there are only characters.
        for lines, reference, max_order in zip(hypotheses, references, max_orders, strict=False):
            matches = ngrams.match_counts(lines, [reference], max_order)
            reference_totals = ngrams.count_ngrams(reference, max_order)
            # As in sacrebleu, orders without n-grams in the reference are not counted.
            totals = ngrams.count_ngrams(lines, max_order) * (reference_totals > 0)
            counts = [totals, reference_totals, matches]
            tables.append(np.stack(counts, axis=-1))
        table = np.concatenate(tables, axis=1)  # (n, M, 3)
        return table.reshape(len(table), -1)


class ChrfPlusPlus(Chrf):
    """chrF2++ (Popović 2017): chrF with word unigrams and bigrams."""

    label = "chrF++"
    _word_orders = 2


class Ter(Metric):
    """TER (Snover et al. 2006). Always ignores case.

    Statistics (2): number of edits, and mean length of the references in words.
    """

    label = "TER"
    lower_is_better = True

    def __init__(self, references: References, options: MetricOptions) -> None:  # noqa: ARG002
        self._metric = TER(references=[stream[:1] for stream in references])
        self.signature = self._metric.get_signature().format()
        self._references = references

    def statistics(self, hypotheses: Sequence[str]) -> Floats:
        """Return the counts of each sentence. (n, 2)."""
        statistics = []
        references_by_sentence = zip(*self._references, strict=True)
        for hypothesis, references in zip(hypotheses, references_by_sentence, strict=True):
            score: Any = self._metric.sentence_score(hypothesis, references)
            statistics.append((score.num_edits, score.ref_length))
        return np.array(statistics, np.float64)

    def score(self, sums: Floats) -> Floats:
        """Return the scores of summed counts. (R, 2) -> (R,).

        If the reference is empty, the score is 100, or 0 if the hypothesis is empty, too.
        """
        edits, lengths = sums.T
        rates = (edits > 0).astype(np.float64)  # The rates for a reference length of 0.
        np.divide(edits, lengths, out=rates, where=lengths > 0)
        return 100 * rates


def default_tokenizer(language: str | None) -> str:
    """Return the default tokenizer of BLEU for a target language, whether installed or not.

    >>> default_tokenizer("zh-CN"), default_tokenizer("tha"), default_tokenizer("de")
    ('zh', 'char', '13a')
    """
    # At most one code matches.
    for code in matching(language or "", _LANGUAGE_TOKENIZERS):
        return _LANGUAGE_TOKENIZERS[code]
    if language is None or writes_spaces(language):
        return "13a"
    return "char"


def bleu_tokenizer(options: MetricOptions) -> str:
    """Return the tokenizer of BLEU: ``options.tokenize``, or the default of the target language.

    If the default is not installed (Japanese and Korean need MeCab), BLEU counts characters, with a
    warning.

    Raises:
        ConfigError: ``options.tokenize`` is unknown.
    """
    if options.tokenize is not None:
        if options.tokenize not in TOKENIZERS:
            raise ConfigError.unknown("tokenizer of BLEU", options.tokenize, TOKENIZERS)
        return options.tokenize
    name = default_tokenizer(options.target_language)
    try:
        BLEU(tokenize=name, force=True)  # fails if the tokenizer is not installed
    except _UNUSABLE:
        text = "BLEU's tokenizer %s is not installed, so BLEU counts characters; "
        text += "`pip install 'sacrebleu[%s]'` installs it."
        logger.warning(text, name, name.partition("-")[0])
        return "char"
    return name


def bleu_words(language: str | None) -> Callable[[str], list[str]]:
    """Return a function that splits a line into words, as BLEU does for this target language."""
    tokenizer = bleu_tokenizer(MetricOptions(target_language=language))
    return _bleu_words(BLEU(force=True, tokenize=tokenizer))


def _bleu_words(metric: BLEU, *, lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return a function that splits a line into words with the tokenizer of ``metric``."""
    tokenize: Callable[[str], str] = metric.tokenizer

    def words(line: str) -> list[str]:
        if lowercase:
            line = line.lower()
        return tokenize(line.rstrip()).split()

    return words


def _split_punctuation(line: str) -> list[str]:
    """Split a line into words, and one punctuation mark off the end or the start of each word.

    These are the words of chrF++. A mark at the end takes precedence.

    >>> _split_punctuation("(now) (then .")
    ['(now', ')', '(', 'then', '.']
    """
    words = []
    for word in line.split():
        first = word[0]
        last = word[-1]
        if len(word) > 1 and last in _PUNCTUATION:
            words += [word[:-1], last]
        elif len(word) > 1 and first in _PUNCTUATION:
            words += [first, word[1:]]
        else:
            words.append(word)
    return words

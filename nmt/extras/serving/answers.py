"""Results of sentences -> what a client gets for a text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

from nmt.inference.alignment import Matrix, as_pharaoh, words_of
from nmt.inference.result import Alternative, Result, TokenScore
from nmt.text.sentences import SplitText

Span: TypeAlias = tuple[int, int]
"""Start and end, in characters."""
_WORD = re.compile(r"\S+")
_END = "</s>"


@dataclass(frozen=True, slots=True)
class _Sentence:
    """A sentence and its translation, with places in the texts that they are part of."""

    result: Result
    source: Span
    target: Span

    @property
    def source_words(self) -> list[Span]:
        """Between spaces."""
        return _words(self.result.source, self.source[0])

    @property
    def target_words(self) -> list[Span]:
        """Between spaces."""
        return _words(self.result.text, self.target[0])

    @property
    def is_matched(self) -> bool:
        """Whether the words of its attention are those of its texts."""
        rows, words = self.result.attention, self.source_words
        fits = rows is not None and len(rows) == len(self.target_words)
        return fits and all(len(row) == len(words) for row in rows or ())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        names = ("score", "log_prob", "alternatives", "alarms", "confidence")
        values = self.result.as_dict()
        own = {name: values[name] for name in names if name in values}
        return {"source": list(self.source), "target": list(self.target), **own}


def _words(text: str, offset: int) -> list[Span]:
    return [(offset + found.start(), offset + found.end()) for found in _WORD.finditer(text)]


def word_probabilities(tokens: Sequence[TokenScore], count: int) -> list[float] | None:
    """Return the probability of each word: the product over its subwords.

    Args:
        tokens: Of a translation, with the ends of its segments.
        count: Words that its text has.

    Returns:
        None if the subwords make another number of words.

    >>> tokens = [TokenScore("\u2581a", -1.0), TokenScore("b", -1.0), TokenScore("</s>", 0.0)]
    >>> word_probabilities(tokens, 1)
    [0.1353]
    """
    found: list[float] = []
    pieces: list[TokenScore] = []
    for token in tokens:
        if token.piece != _END:
            pieces.append(token)
            continue
        sums: dict[int, float] = {}
        for word, piece in zip(words_of([each.piece for each in pieces]), pieces, strict=True):
            sums[word] = sums.get(word, 0.0) + piece.log_prob
        found += [round(math.exp(total), 4) for total in sums.values()]
        pieces = []
    return found if len(found) == count else None


def join_results(
    source: str,
    split: SplitText,
    results: Sequence[Result],
    joiner: str,
    with_attention: bool,
) -> dict[str, Any]:
    """Return the answer for a text, from the results of its sentences.

    A text of one sentence gets what `nmt translate --format json` writes for that line. Of several,
    ``score`` is the mean, ``log_prob`` the sum, ``confidence`` the mean by source characters.
    """
    gaps = split.gaps_for(joiner)
    pairs = zip([result.text for result in results], gaps[1:], strict=True)
    translation = gaps[0] + "".join(map("".join, pairs))
    sentences = list(_placed(split, results, joiner))
    if len(results) == 1:
        values = {**results[0].as_dict(), "source": source, "translation": translation}
    else:
        values = {
            "source": source,
            "translation": translation,
            **_sums(translation, results),
            **_details(sentences, with_attention),
        }
    if not with_attention:
        values.pop("attention", None)
    values["sentences"] = [each.as_dict() for each in sentences]
    if any(name in values for name in ("alignment", "tokens", "attention")):
        values["words"] = _word_lists(source, translation, sentences)
    return values


def _placed(split: SplitText, results: Sequence[Result], joiner: str) -> Iterator[_Sentence]:
    """Yield sentences with their places."""
    source = target = 0
    gaps = zip(split.gaps, split.gaps_for(joiner), strict=True)
    for (before, after), sentence, result in zip(gaps, split.sentences, results, strict=False):
        source, target = source + len(before), target + len(after)
        ends = source + len(sentence), target + len(result.text)
        yield _Sentence(result, (source, ends[0]), (target, ends[1]))
        source, target = ends


def _sums(translation: str, results: Sequence[Result]) -> dict[str, Any]:
    known = [(r.confidence, len(r.source)) for r in results if r.confidence is not None]
    weight = sum(size for _, size in known)
    score = sum(result.score for result in results) / max(1, len(results))
    log_prob = math.fsum(result.log_prob for result in results)
    values: dict[str, Any] = {
        "score": score,
        "log_prob": log_prob,
        "alternatives": [Alternative(translation, score, log_prob).as_dict()] if results else [],
        "alarms": list(dict.fromkeys(chain(*(result.alarms for result in results)))),
        "retried": list(dict.fromkeys(chain(*(result.retried for result in results)))),
    }
    if weight:
        values["confidence"] = round(sum(x * size for x, size in known) / weight, 2)
    return values


def _details(sentences: Sequence[_Sentence], with_attention: bool) -> dict[str, Any]:
    """Return alignment, attention and tokens of a whole text, by its words."""
    results = [each.result for each in sentences]
    values: dict[str, Any] = {}
    if any(result.alignment is not None for result in results):
        values["alignment"] = as_pharaoh(tuple(_links(sentences)))
    if with_attention and any(result.attention is not None for result in results):
        values["attention"] = [[round(x, 4) for x in row] for row in _attention(sentences)]
    if any(result.tokens is not None for result in results):
        tokens = chain(*(result.tokens or () for result in results))
        values["tokens"] = [{"piece": t.piece, "log_prob": t.log_prob} for t in tokens]
    return values


def _links(sentences: Sequence[_Sentence]) -> Iterator[Span]:
    source = target = 0
    for each in sentences:
        if each.is_matched:
            for link in each.result.alignment or ():
                yield source + link[0], target + link[1]
        source += len(each.source_words)
        target += len(each.target_words)


def _attention(sentences: Sequence[_Sentence]) -> Iterator[tuple[float, ...]]:
    width, before = sum(len(each.source_words) for each in sentences), 0
    for each in sentences:
        own = len(each.source_words)
        nothing = ((0.0,) * own,) * len(each.target_words)
        rows: Matrix = (each.result.attention or nothing) if each.is_matched else nothing
        for row in rows:
            yield (0.0,) * before + tuple(row) + (0.0,) * (width - before - own)
        before += own


def _word_lists(
    source: str, translation: str, sentences: Sequence[_Sentence]
) -> dict[str, list[Mapping[str, Any]]]:
    targets: list[Mapping[str, Any]] = []
    for each in sentences:
        spans, tokens = each.target_words, each.result.tokens
        known = word_probabilities(tokens, len(spans)) if tokens is not None else None
        for number, span in enumerate(spans):
            shown = {"probability": known[number]} if known else {}
            targets.append({**_word(translation, span), **shown})
    words = chain(*(each.source_words for each in sentences))
    return {"source": [_word(source, span) for span in words], "target": targets}


def _word(text: str, span: Span) -> dict[str, Any]:
    return {"text": text[slice(*span)], "start": span[0], "end": span[1]}

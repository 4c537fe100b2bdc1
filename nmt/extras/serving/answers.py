"""Results of sentences -> what a client gets for a text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from nmt.inference.alignment import Links, as_pharaoh, words_of
from nmt.inference.result import Alternative, Result, TokenScore
from nmt.text.sentences import SplitText

_WORD = re.compile(r"\S+")
_END = "</s>"
_OF_SENTENCE = ("score", "log_prob", "alternatives", "alarms", "confidence")


def join_results(
    source: str, split: SplitText, results: Sequence[Result], joiner: str, *, with_attention: bool
) -> dict[str, Any]:
    """Return the answer for a text, from the results of its sentences.

    A text of one sentence gets what `nmt translate` writes for that line as JSON. Of several,
    ``score`` is the mean, ``log_prob`` the sum, ``confidence`` the mean by source characters.
    Places are counted in characters, words are between spaces.
    """
    gaps = split.gaps_for(joiner)
    translation, place = "", 0
    sentences: list[dict[str, Any]] = []
    words: dict[str, list[dict[str, Any]]] = {"source": [], "target": []}
    links: list[tuple[int, int]] = []
    rows: list[list[float]] = []  # attention of target words
    width = sum(len(sentence.split()) for sentence in split.sentences)
    for before, gap, result in zip(split.gaps, gaps, results, strict=False):
        place, translation = place + len(before), translation + gap
        own = _words(result.source, place), _words(result.text, len(translation))
        first, sizes = (len(words["source"]), len(words["target"])), (len(own[0]), len(own[1]))
        attention, alignment = _of_words(result, *sizes)
        left, right = [0.0] * first[0], [0.0] * (width - first[0] - sizes[0])
        if with_attention:
            rows += [[*left, *row, *right] for row in attention]
        links += [(first[0] + i, first[1] + j) for i, j in alignment]
        known = word_probabilities(result.tokens or (), sizes[1])
        for word, probability in zip(own[1], known or (), strict=False):
            word["probability"] = probability
        words["source"] += own[0]
        words["target"] += own[1]
        values = result.as_dict()
        ends = place + len(result.source), len(translation) + len(result.text)
        spans = {"source": [place, ends[0]], "target": [len(translation), ends[1]]}
        sentences.append({**spans, **{x: values[x] for x in _OF_SENTENCE if x in values}})
        place, translation = ends[0], translation + result.text
    translation += gaps[-1]
    if len(results) == 1:
        answer = results[0].as_dict()
    else:
        answer = _sums(translation, results)
        if any(result.alignment is not None for result in results):
            answer["alignment"] = as_pharaoh(tuple(links))
        if any(result.attention is not None for result in results):
            answer["attention"] = rows
        if any(result.tokens is not None for result in results):
            answer["tokens"] = [x for result in results for x in result.as_dict().get("tokens", ())]
    answer |= {"source": source, "translation": translation, "sentences": sentences}
    if answer.keys() & {"alignment", "tokens", "attention"}:
        answer["words"] = words
    if not with_attention:
        answer.pop("attention", None)
    return answer


def _of_words(result: Result, source: int, target: int) -> tuple[list[list[float]], Links]:
    """Return attention and alignment of a sentence with so many words on both sides.

    The model may have read or written other words: then both mean nothing, and there are none.
    """
    rows = [[round(x, 4) for x in row] for row in result.attention or ()]
    if len(rows) == target and all(len(row) == source for row in rows):
        return rows, result.alignment or ()
    return [[0.0] * source for _ in range(target)], ()


def _words(text: str, offset: int) -> list[dict[str, Any]]:
    return [
        {"text": word[0], "start": offset + word.start(), "end": offset + word.end()}
        for word in _WORD.finditer(text)
    ]


def _sums(translation: str, results: Sequence[Result]) -> dict[str, Any]:
    known = [(r.confidence, len(r.source)) for r in results if r.confidence is not None]
    score = sum(result.score for result in results) / max(1, len(results))
    log_prob = math.fsum(result.log_prob for result in results)
    values: dict[str, Any] = {
        "score": score,
        "log_prob": log_prob,
        "alternatives": [Alternative(translation, score, log_prob).as_dict()] if results else [],
        "alarms": list(dict.fromkeys(chain(*(result.alarms for result in results)))),
        "retried": list(dict.fromkeys(chain(*(result.retried for result in results)))),
    }
    if weight := sum(size for _, size in known):
        values["confidence"] = round(sum(x * size for x, size in known) / weight, 2)
    return values


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

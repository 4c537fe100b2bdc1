"""Trim and grow SentencePiece vocabularies, with the law that other text is tokenized as before.

SentencePiece's BPE joins the adjacent pair whose joined text is the piece with the best score, the
leftmost of equal pairs first, and finally splits unused pieces again. Two facts follow. The merges
inside a piece depend on that piece only, because no merge crossed its borders; so a smaller
vocabulary needs the pieces of these merges, and no others. And merges with worse scores than all
old pieces come after all old merges; so new pieces only join old ones. An old piece that its own
text never reaches is the exception: new pieces must not be its beginning or end.

A unigram model takes the path with the highest sum of scores, so pieces outside of the path do not
matter. Two exceptions: the scores of unknown characters and of user-defined symbols derive from the
lowest and the highest score.

Source: Sennrich et al. (2016), "Neural Machine Translation of Rare Words with Subword Units"; Kudo
(2018), "Subword Regularization"; trimming as in Abdaoui et al. (2020), "Load What You Need".
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, log
from typing import Any
from unicodedata import category

import numpy as np
import numpy.typing as npt
from sentencepiece.sentencepiece_model_pb2 import (  # type: ignore[attr-defined]
    ModelProto,
    NormalizerSpec,
    TrainerSpec,
)

from nmt.text import NUM_SPECIAL
from nmt.text.tokenizer import Tokenizer

_KINDS = ModelProto.SentencePiece
_SPACE = "\u2581"
_WORD = re.compile(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")
_FEWEST = 2  # A new piece occurs at least twice.
_CLASSES = {"L": "letter", "M": "letter", "N": "digit"}  # by category; others are punctuation
_LONGEST = 16  # Maximum characters of a new piece, as in SentencePiece.


def is_bpe(model: Any) -> bool:
    """Whether a SentencePiece model merges pairs (BPE)."""
    return bool(model.trainer_spec.model_type == TrainerSpec.BPE)


def tokenizer_of(model: Any, *, is_raw: bool = False, shows_unused: bool = False) -> Tokenizer:
    """Return a tokenizer that applies a SentencePiece model.

    Args:
        model: The model.
        is_raw: Split text as it is, without normalization and first space.
        shows_unused: Show the unused pieces that BPE builds, and otherwise splits again.
    """
    changed = with_pieces(model, model.pieces)
    for piece in changed.pieces if shows_unused else ():
        piece.type = _KINDS.NORMAL if piece.type == _KINDS.UNUSED else piece.type
    if is_raw:
        plain = NormalizerSpec(add_dummy_prefix=False, remove_extra_whitespaces=False)
        changed.normalizer_spec.CopyFrom(plain)
    return Tokenizer.parse(changed.SerializeToString(deterministic=True))


def with_pieces(model: Any, pieces: Iterable[Any]) -> Any:
    """Return a copy of a SentencePiece model with other pieces."""
    spec, normalizer = model.trainer_spec, model.normalizer_spec
    changed = ModelProto(trainer_spec=spec, normalizer_spec=normalizer, pieces=pieces)
    changed.trainer_spec.vocab_size = len(changed.pieces)
    return changed


def _merges(text: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yield the pieces that BPE builds from the characters of ``text``."""
    symbols = list(text)
    while pairs := [
        (-scores[a + b], place) for place, (a, b) in enumerate(pairwise(symbols)) if a + b in scores
    ]:
        place = min(pairs)[1]
        symbols[place : place + 2] = [symbols[place] + symbols[place + 1]]
        yield symbols[place]


def kept_pieces(
    model: Any, used: npt.NDArray[np.bool_], dropped: Collection[str] = ()
) -> npt.NDArray[np.bool_]:
    """Return which pieces a trimmed vocabulary needs.

    These are the special tokens, user-defined symbols, bytes, the used pieces, all pieces that BPE
    builds on the way to them, their characters, and ASCII characters.

    Args:
        model: SentencePiece model in the layout of nmt: the special tokens come first.
        used: Pieces that occur in the text, for BPE also with the unused ones that it builds. (V,).
        dropped: User-defined symbols to drop.

    Returns:
        True for pieces to keep. (V,).
    """
    kept, texts = used.copy(), [piece.piece for piece in model.pieces]
    kinds = np.array([piece.type for piece in model.pieces])
    scores = np.array([piece.score for piece in model.pieces])
    kept |= np.isin(kinds, (_KINDS.USER_DEFINED, _KINDS.BYTE))
    kept[:NUM_SPECIAL] = True
    is_plain, normal = np.isin(kinds, (_KINDS.NORMAL, _KINDS.UNUSED)), kinds == _KINDS.NORMAL
    ids = {texts[row]: row for row in np.flatnonzero(is_plain)}
    if is_bpe(model):
        ranks = {text: scores[row] for text, row in ids.items()}
        for row in np.flatnonzero(used & is_plain):
            kept[[ids[text] for text in _merges(texts[row], ranks)]] = True
    else:  # the first lowest and the first highest score
        kept[[np.argmin(np.where(normal, sign * scores, np.inf)) for sign in (1, -1)]] = True
    needed = {_SPACE, *map(chr, range(128))}.union(
        *(texts[x] for x in np.flatnonzero(kept & is_plain))
    )
    kept[[ids[char] for char in needed & ids.keys()]] = True
    kept[[row for row, text in enumerate(texts) if text in dropped]] = False
    return kept


def count_words(tokenizer: Tokenizer, lines: Sequence[str], words: Counter[str]) -> None:
    """Add the words of normalized lines to ``words``; a space is part of the word after it."""
    for line in tokenizer.normalize(lines):
        words.update(_WORD.findall(line))


def learned_pieces(models: Sequence[Any], words: Mapping[str, int], num: int) -> dict[str, float]:
    """Learn pieces for new text by BPE on top of the segmentation that the text has today.

    Frequent characters without a piece come first. Pieces have at most 16 characters, and do not
    join letters, digits and punctuation.

    Args:
        models: SentencePiece models that will get these pieces. The last one segments the words.
        words: Words as `count_words` counts them.
        num: Maximum number of pieces.

    Returns:
        Pieces in the order in which they were learned, and the logarithm of their share of all
        pieces.
    """
    known = {piece.piece for model in models for piece in model.pieces}
    forbidden = known.union(*(_barred(model) for model in models if is_bpe(model)))
    characters = Counter[str]()
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    unseen = [x for x in characters if x not in known and category(x) != "Cc"]
    unseen.sort(key=characters.__getitem__, reverse=True)
    new = {x: characters[x] for x in unseen[:num] if characters[x] >= _FEWEST}

    def is_possible(text: str) -> bool:
        classes = {_CLASSES.get(category(char)[0]) for char in text.lstrip(_SPACE)}
        return len(classes) <= 1 and len(text) <= _LONGEST and text not in forbidden

    segmented = _segmented(grown(models[-1], (), dict.fromkeys(new, -inf)), [*words])
    for text, count in _frequent_pairs(segmented, [*words.values()], is_possible):
        if len(new) >= num:
            break
        new.setdefault(text, count)
    total = sum(n * len(parts) for n, parts in zip(words.values(), segmented, strict=True))
    return {text: log(count / max(total, count)) for text, count in new.items()}


def _barred(model: Any) -> set[str]:
    """Return the beginnings and ends of old pieces that their own text does not reach."""
    plain = (_KINDS.NORMAL, _KINDS.UNUSED)
    texts = {piece.piece: row for row, piece in enumerate(model.pieces) if piece.type in plain}
    rows = tokenizer_of(model, is_raw=True, shows_unused=True).encode_batch([*texts])
    lost = [text for ids, (text, row) in zip(rows, texts.items(), strict=True) if ids != [row]]
    cuts = [(text, cut) for text in lost for cut in range(1, len(text))]
    return {part for text, cut in cuts for part in (text[:cut], text[cut:])}


def _segmented(model: Any, texts: Sequence[str]) -> list[list[str]]:
    """Return the pieces of each text; empty strings for unknown characters and bytes."""
    plain = [piece.piece if piece.type == _KINDS.NORMAL else "" for piece in model.pieces]
    rows = tokenizer_of(model, is_raw=True).encode_batch(texts)
    return [[plain[index] for index in ids] for ids in rows]


def _frequent_pairs(
    words: list[list[str]], counts: Sequence[int], is_possible: Callable[[str], bool]
) -> Iterator[tuple[str, int]]:
    """Join the most frequent pair of pieces in all words, again and again.

    Args:
        words: The pieces of each word; changed in place. Empty strings are never joined.
        counts: Frequency of each word.
        is_possible: Whether a text can be a piece.

    Yields:
        The joined text and its frequency.
    """
    frequency, places = Counter[tuple[str, str]](), defaultdict[tuple[str, str], set[int]](set)
    touched = set[tuple[str, str]]()

    def add(place: int, sign: int) -> None:
        for pair in filter(all, pairwise(words[place])):
            frequency[pair] += sign * counts[place]
            touched.add(pair)
            places[pair].add(place)

    for place in range(len(words)):
        add(place, 1)
    heap: list[tuple[int, tuple[str, str]]] = []
    while True:
        for other in touched:
            heapq.heappush(heap, (-frequency[other], other))
        touched.clear()
        if not heap or -heap[0][0] < _FEWEST:
            return
        count, pair = heapq.heappop(heap)
        # Entries with an old frequency are skipped: the pair has a newer entry.
        if -count == frequency[pair] and is_possible("".join(pair)):
            yield "".join(pair), -count
            for place in places.pop(pair):
                add(place, -1)
                words[place] = _joined(words[place], pair)
                add(place, 1)


def _joined(symbols: Sequence[str], pair: tuple[str, str]) -> list[str]:
    joined: list[str] = []
    for symbol in symbols:
        if joined and (joined[-1], symbol) == pair:
            joined[-1] += symbol
        else:
            joined.append(symbol)
    return joined


def grown(model: Any, tags: Sequence[str], pieces: Mapping[str, float]) -> Any:
    """Return a SentencePiece model with more pieces.

    Args:
        model: SentencePiece model in the layout of nmt: the special tokens come first.
        tags: New user-defined symbols, placed after those that the model has.
        pieces: New pieces, placed at the end, and the logarithm of the share of each. A unigram
            model gets them as scores, between its lowest and highest score. In a BPE model, the
            order counts, and all new pieces follow all old ones.
    """
    scores = [piece.score for piece in model.pieces if piece.type == _KINDS.NORMAL]
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    new = {text: min(max(score, low), high) for text, score in pieces.items()}
    if is_bpe(model):
        lowest = min(piece.score for piece in model.pieces)
        new = {text: lowest - rank for rank, text in enumerate(pieces, start=1)}
    old, place = list(model.pieces), tags_end(model)
    old[place:place] = [_KINDS(piece=tag, score=0.0, type=_KINDS.USER_DEFINED) for tag in tags]
    return with_pieces(model, [*old, *(_KINDS(piece=x, score=y) for x, y in new.items())])


def tags_end(model: Any) -> int:
    """Return the id after the user-defined symbols at the beginning of a vocabulary."""
    first = (_KINDS.CONTROL, _KINDS.USER_DEFINED, _KINDS.UNKNOWN)
    return next(x for x, piece in enumerate(model.pieces) if piece.type not in first)


def old_pieces(model: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of the pieces that spell each text; unknown characters are left out."""
    known = [piece.type in (_KINDS.NORMAL, _KINDS.BYTE) for piece in model.pieces]
    rows = tokenizer_of(model, is_raw=True).encode_batch(texts)
    return [[index for index in ids if known[index]] for ids in rows]
